//! One directory by its descriptor: names, stamps, whole files. Never outside of it, never through a symbolic link.

use std::ffi::CString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};

/// Begins the names of files that are not yet whole.
const TEMPORARY: &str = ".cloche-writing.";

/// A directory.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

/// What identifies a file's content without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size: i64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Why something could not be done with a file of the directory.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A system call failed.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Something else than a regular file.
    #[error("{} is not a regular file: put the file itself here, no link to it", path.display())]
    NotRegular {
        /// Which.
        path: PathBuf,
    },
    /// More bytes than wanted.
    #[error("{} has {size} bytes; at most {most} are allowed", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
        /// How many it has.
        size: i64,
        /// How many it may have.
        most: usize,
    },
}

impl Folder {
    /// Opens the directory at `path`; what it is later does not follow a rename or a new directory in its place.
    pub(crate) fn open(path: &Path) -> Result<Self, FolderError> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let fd =
            open(path, flags, Mode::empty()).map_err(|errno| io("open directory", path, errno))?;
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
    }

    /// Where it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it was removed: what is open of it is empty for ever.
    pub(crate) fn is_removed(&self) -> Result<bool, FolderError> {
        let stat = fstat(&self.fd).map_err(|errno| io("look at directory", &self.path, errno))?;
        Ok(stat.st_nlink == 0)
    }

    /// Every name that is UTF-8, but `.` and `..`, with no order.
    pub(crate) fn names(&self) -> Result<Vec<String>, FolderError> {
        let failed = |errno| io("list directory", &self.path, errno);
        // A descriptor of its own: the position in a directory belongs to the open file.
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let mut dir = Dir::openat(&self.fd, ".", flags, Mode::empty()).map_err(failed)?;
        let mut names = Vec::new();
        for entry in dir.iter() {
            match entry.map_err(failed)?.file_name().to_str() {
                Ok("." | "..") => {}
                Ok(name) => names.push(name.to_owned()),
                Err(_) => {
                    tracing::warn!(directory = %self.path.display(), "a file whose name is not UTF-8 is left alone");
                }
            }
        }
        Ok(names)
    }

    /// The stamp of the regular file `name`; `None` where there is nothing of that name.
    pub(crate) fn stamp(&self, name: &str) -> Result<Option<Stamp>, FolderError> {
        match fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) if is_regular(&stat) => Ok(Some(Stamp::of(&stat))),
            Ok(_) => Err(FolderError::NotRegular {
                path: self.path.join(name),
            }),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(io("look at", &self.path.join(name), errno)),
        }
    }

    /// The content of the regular file `name`, of at most `most` bytes; `None` where there is nothing of that name.
    pub(crate) fn read(&self, name: &str, most: usize) -> Result<Option<Vec<u8>>, FolderError> {
        let path = self.path.join(name);
        // NONBLOCK: opening a pipe would wait for its writer.
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let fd = match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::ENOENT) => return Ok(None),
            Err(Errno::ELOOP | Errno::ENXIO) => return Err(FolderError::NotRegular { path }),
            Err(errno) => return Err(io("open", &path, errno)),
        };
        let stat = fstat(&fd).map_err(|errno| io("look at", &path, errno))?;
        if !is_regular(&stat) {
            return Err(FolderError::NotRegular { path });
        }
        let limit = u64::try_from(most).unwrap_or(u64::MAX);
        let mut bytes = Vec::new();
        // One more than allowed: the file may have grown since.
        let read = std::fs::File::from(fd)
            .take(limit.saturating_add(1))
            .read_to_end(&mut bytes);
        read.map_err(|source| FolderError::Io {
            operation: "read",
            path: path.clone(),
            source,
        })?;
        if bytes.len() > most {
            return Err(FolderError::TooLarge {
                path,
                size: stat.st_size,
                most,
            });
        }
        Ok(Some(bytes))
    }

    /// Puts `bytes` at `name`, whole or not at all, in place of what is there. `durable`: also over a power failure.
    pub(crate) fn replace(
        &self,
        name: &str,
        bytes: &[u8],
        durable: bool,
    ) -> Result<(), FolderError> {
        let path = self.path.join(name);
        let temporary = format!("{TEMPORARY}{name}");
        let flags = OFlag::O_WRONLY
            | OFlag::O_CREAT
            | OFlag::O_TRUNC
            | OFlag::O_NOFOLLOW
            | OFlag::O_NONBLOCK
            | OFlag::O_CLOEXEC;
        // Manifests and statuses may name secrets: the owner's alone.
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let fd = openat(&self.fd, temporary.as_str(), flags, mode)
            .map_err(|errno| io("create", &self.path.join(&temporary), errno))?;
        let mut file = std::fs::File::from(fd);
        let written = file
            .write_all(bytes)
            .and_then(|()| if durable { file.sync_all() } else { Ok(()) })
            .map_err(|source| FolderError::Io {
                operation: "write",
                path: path.clone(),
                source,
            })
            .and_then(|()| {
                renameat(&self.fd, temporary.as_str(), &self.fd, name)
                    .map_err(|errno| io("move into place", &path, errno))
            });
        if let Err(error) = written {
            // The failure that counts is the first; what is left of the file is taken away at the next open.
            drop(self.remove(&temporary));
            return Err(error);
        }
        if durable { self.sync() } else { Ok(()) }
    }

    /// Takes `name` away; whether it was there.
    pub(crate) fn remove(&self, name: &str) -> Result<bool, FolderError> {
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(io("remove", &self.path.join(name), errno)),
        }
    }

    /// Makes what was put and taken away last over a power failure.
    pub(crate) fn sync(&self) -> Result<(), FolderError> {
        fsync(&self.fd).map_err(|errno| io("sync directory", &self.path, errno))
    }

    /// Takes away what a killed agent left half-written.
    pub(crate) fn sweep(&self) -> Result<(), FolderError> {
        for name in self
            .names()?
            .iter()
            .filter(|name| name.starts_with(TEMPORARY))
        {
            self.remove(name)?;
        }
        Ok(())
    }

    /// A path that names this very directory, whatever has become of its name.
    pub(crate) fn magic_path(&self) -> CString {
        CString::new(format!("/proc/self/fd/{}", self.fd.as_raw_fd())).unwrap_or_default()
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Stamp {
    fn of(stat: &FileStat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

fn is_regular(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG
}

fn io(operation: &'static str, path: &Path, errno: Errno) -> FolderError {
    FolderError::Io {
        operation,
        path: path.to_owned(),
        source: errno.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        (place, folder)
    }

    #[test]
    fn what_is_put_is_there_whole() {
        let (place, folder) = folder();
        folder.replace("a.yaml", b"one", true).unwrap();
        let before = folder.stamp("a.yaml").unwrap().unwrap();
        folder.replace("a.yaml", b"two", false).unwrap();
        assert_ne!(folder.stamp("a.yaml").unwrap().unwrap(), before);
        assert_eq!(folder.read("a.yaml", 3).unwrap().unwrap(), b"two");
        assert_eq!(folder.names().unwrap(), ["a.yaml"]);
        assert!(folder.remove("a.yaml").unwrap());
        assert!(!folder.remove("a.yaml").unwrap());
        assert!(folder.read("a.yaml", 3).unwrap().is_none());
        assert!(folder.stamp("a.yaml").unwrap().is_none());
        drop(place);
    }

    #[test]
    fn nothing_but_regular_files_is_read() {
        let (place, folder) = folder();
        let secret = tempfile::NamedTempFile::new().unwrap();
        std::os::unix::fs::symlink(secret.path(), place.path().join("link.yaml")).unwrap();
        std::fs::create_dir(place.path().join("folder.yaml")).unwrap();
        nix::unistd::mkfifo(&place.path().join("pipe.yaml"), Mode::S_IRWXU).unwrap();
        for name in ["link.yaml", "folder.yaml", "pipe.yaml"] {
            assert!(
                matches!(folder.read(name, 10), Err(FolderError::NotRegular { .. })),
                "{name}"
            );
            assert!(
                matches!(folder.stamp(name), Err(FolderError::NotRegular { .. })),
                "{name}"
            );
        }
    }

    #[test]
    fn what_is_too_large_is_not_read() {
        let (_place, folder) = folder();
        folder.replace("a", &[0; 11], false).unwrap();
        let error = folder.read("a", 10).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("has 11 bytes; at most 10 are allowed"),
            "{error}"
        );
        assert_eq!(folder.read("a", 11).unwrap().unwrap().len(), 11);
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let (place, folder) = folder();
        std::fs::create_dir(place.path().join("a.yaml")).unwrap();
        assert!(folder.replace("a.yaml", b"x", true).is_err());
        assert_eq!(folder.names().unwrap(), ["a.yaml"]);
    }

    #[test]
    fn leftovers_of_a_killed_writer_are_swept() {
        let (place, folder) = folder();
        std::fs::write(place.path().join(".cloche-writing.a.yaml"), "half").unwrap();
        std::fs::write(place.path().join(".hidden"), "mine").unwrap();
        folder.sweep().unwrap();
        assert_eq!(folder.names().unwrap(), [".hidden"]);
    }
}
