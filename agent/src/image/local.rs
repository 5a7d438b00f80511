//! Images in the node's local image directory: OCI layouts, archives of them, tar files of root file systems.
//!
//! Paths are opened by the kernel's own rules: below the directory, through no symbolic link (openat2, `RESOLVE_BENEATH` and
//! `RESOLVE_NO_SYMLINKS`), regular files only. Content is as little trusted as a registry's: it is copied to the staging directory
//! and verified there, so that it cannot change between check and use.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::Stream;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;
use tar::{EntryType, Header};

use super::digest::Digest;
use super::error::Failure;
use super::manifest::{self, Blob};
use super::unpack::Compression;

/// Most entries of an archive of a layout.
const ARCHIVE_ENTRIES_MAX: usize = 10_000;
/// Size of a tar block.
const TAR_BLOCK: usize = 512;

/// A folder or an archive that holds an OCI layout.
#[derive(Debug)]
pub(super) enum Layout {
    Folder(OwnedFd),
    /// The tar file and where its members are.
    Archive(File, BTreeMap<String, (u64, u64)>),
}

/// Part of a file.
pub(super) struct Section {
    file: File,
    at: u64,
    size: u64,
}

impl Section {
    /// Its size in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// All of a short one.
    fn read(&self, limit: u64) -> Result<Vec<u8>, Failure> {
        if self.size > limit {
            return Err(Failure::Invalid(format!(
                "a document has {} bytes; at most {limit} are allowed",
                self.size
            )));
        }
        // Not more than `limit`, which is a few MiB.
        let mut bytes = vec![0; usize::try_from(self.size).unwrap_or_default()];
        self.file
            .read_exact_at(&mut bytes, self.at)
            .map_err(|error| Failure::io("read a local image", &error))?;
        Ok(bytes)
    }

    /// Its bytes, read off the runtime's threads.
    pub(super) fn stream(self) -> impl Stream<Item = Result<Bytes, Failure>> + Unpin {
        const STEP: u64 = 1 << 20;
        Box::pin(futures::stream::try_unfold(self, async |section| {
            if section.size == 0 {
                return Ok(None);
            }
            super::transfer::blocking(move || {
                let mut bytes =
                    vec![0; usize::try_from(section.size.min(STEP)).unwrap_or_default()];
                let got = section
                    .file
                    .read_at(&mut bytes, section.at)
                    .map_err(|error| Failure::io("read a local image", &error))?;
                if got == 0 {
                    return Ok(None);
                }
                bytes.truncate(got);
                let rest = Section {
                    file: section.file,
                    at: section.at + got as u64,
                    size: section.size - got as u64,
                };
                Ok(Some((Bytes::from(bytes), rest)))
            })
            .await
        }))
    }
}

/// A tar file of a root file system.
pub(super) struct Rootfs {
    pub(super) content: Section,
    pub(super) compression: Compression,
    /// Changes whenever the file does (device, inode, size, times): what was hashed once need not be hashed again.
    pub(super) stamp: String,
}

impl Layout {
    /// Opens the folder `path` of the image directory `root`.
    pub(super) fn open_folder(root: &Path, path: &str) -> Result<Self, Failure> {
        let root = open_root(root)?;
        let folder = open_below(root.as_fd(), Path::new(path), OFlag::O_DIRECTORY)?;
        Ok(Self::Folder(folder))
    }

    /// Opens the archive `path` of the image directory `root` and looks where its members are.
    pub(super) fn open_archive(root: &Path, path: &str) -> Result<Self, Failure> {
        let root = open_root(root)?;
        let (file, size) = open_file(root.as_fd(), Path::new(path))?;
        let members = members(&file, size)?;
        Ok(Self::Archive(file, members))
    }

    fn member(&self, name: &str) -> Result<Section, Failure> {
        match self {
            Self::Folder(folder) => {
                let (file, size) = open_file(folder.as_fd(), Path::new(name))?;
                Ok(Section { file, at: 0, size })
            }
            Self::Archive(file, members) => {
                let &(at, size) = members
                    .get(name)
                    .ok_or_else(|| Failure::NotFound(format!("the archive has no {name}")))?;
                let file = file
                    .try_clone()
                    .map_err(|error| Failure::io("read a local image", &error))?;
                Ok(Section { file, at, size })
            }
        }
    }

    /// The manifest that `tag` names, or its index.
    pub(super) fn resolve(&self, tag: Option<&str>) -> Result<Blob, Failure> {
        let index = self.member("index.json")?.read(manifest::DOCUMENT_MAX)?;
        manifest::select_in_layout(&index, tag)
    }

    /// A manifest or configuration, verified.
    pub(super) fn document(&self, blob: &Blob, what: &str) -> Result<Vec<u8>, Failure> {
        let document = self.blob(&blob.digest)?.read(manifest::DOCUMENT_MAX)?;
        super::transfer::verify(&document, &blob.digest, what)?;
        Ok(document)
    }

    /// A blob, not yet verified.
    pub(super) fn blob(&self, digest: &Digest) -> Result<Section, Failure> {
        self.member(&format!("blobs/sha256/{}", digest.hex()))
            .map_err(|failure| match failure {
                // The index is there and names it: the layout is broken, not absent.
                Failure::NotFound(detail) => {
                    Failure::Invalid(format!("its layout is not whole: {detail}"))
                }
                other => other,
            })
    }
}

impl Rootfs {
    /// Opens the tar file `path` of the image directory `root`.
    pub(super) fn open(root: &Path, path: &str) -> Result<Self, Failure> {
        let root = open_root(root)?;
        let (mut file, size) = open_file(root.as_fd(), Path::new(path))?;
        let failed = |error| Failure::io(format_args!("read {path}"), &error);
        let known = file.metadata().map_err(failed)?;
        let mut magic = [0; 4];
        let got = file.read(&mut magic).map_err(failed)?;
        let compression = match &magic[..got] {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd] => Compression::Zstd,
            _ => Compression::None,
        };
        let stamp = format!(
            "{}:{}:{size}:{}.{}:{}.{}",
            known.dev(),
            known.ino(),
            known.mtime(),
            known.mtime_nsec(),
            known.ctime(),
            known.ctime_nsec()
        );
        Ok(Self {
            content: Section { file, at: 0, size },
            compression,
            stamp,
        })
    }
}

fn open_root(root: &Path) -> Result<OwnedFd, Failure> {
    open(
        root,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )
    .map_err(|errno| {
        Failure::io(
            format_args!("open the image directory {}", root.display()),
            &errno.into(),
        )
    })
}

fn open_below(root: impl AsFd, path: &Path, flags: OFlag) -> Result<OwnedFd, Failure> {
    let how = OpenHow::new()
        // O_NONBLOCK: a pipe must not hold us up.
        .flags(flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    let shown = path.display();
    openat2(root.as_fd(), path, how).map_err(|errno| match errno {
        Errno::ENOENT | Errno::ENOTDIR => {
            Failure::NotFound(format!("the node's image directory has no {shown}"))
        }
        Errno::ELOOP | Errno::EXDEV => Failure::Invalid(format!(
            "{shown} goes through a symbolic link or out of the image directory"
        )),
        errno => Failure::io(format_args!("open {shown}"), &errno.into()),
    })
}

fn open_file(root: impl AsFd, path: &Path) -> Result<(File, u64), Failure> {
    let file = File::from(open_below(root, path, OFlag::O_RDONLY)?);
    let shown = PathBuf::from(path);
    let known = file
        .metadata()
        .map_err(|error| Failure::io(format_args!("read {}", shown.display()), &error))?;
    if !known.is_file() {
        return Err(Failure::Invalid(format!(
            "{} is not a regular file",
            shown.display()
        )));
    }
    Ok((file, known.len()))
}

/// Where the members of a tar file are. Only plain names of ustar matter: those of a layout have 77 bytes at most. A header that
/// carries a long name or PAX records is skipped with its content; the name in the header that follows it is what counts.
fn members(file: &File, size: u64) -> Result<BTreeMap<String, (u64, u64)>, Failure> {
    let malformed = || Failure::Invalid("the archive is not a proper tar file".to_owned());
    let mut members = BTreeMap::new();
    let mut at = 0;
    for _ in 0..ARCHIVE_ENTRIES_MAX {
        let mut block = [0; TAR_BLOCK];
        if at == size
            || (at + TAR_BLOCK as u64 <= size && {
                file.read_exact_at(&mut block, at)
                    .map_err(|error| Failure::io("read a local image", &error))?;
                block == [0; TAR_BLOCK]
            })
        {
            return Ok(members);
        }
        let header = Header::from_byte_slice(&block);
        let length = header.entry_size().map_err(|_| malformed())?;
        let content = at + TAR_BLOCK as u64;
        let end = content
            .checked_add(length)
            .filter(|end| *end <= size)
            .ok_or_else(malformed)?;
        if header.cksum().ok() != Some(checksum(&block)) {
            return Err(malformed());
        }
        if matches!(
            header.entry_type(),
            EntryType::Regular | EntryType::Continuous
        ) && let Ok(name) = String::from_utf8(header.path_bytes().into_owned())
        {
            let name = name.strip_prefix("./").unwrap_or(&name).to_owned();
            members.insert(name, (content, length));
        }
        at = end.next_multiple_of(TAR_BLOCK as u64).min(size);
    }
    Err(Failure::Invalid(format!(
        "the archive has more than {ARCHIVE_ENTRIES_MAX} members"
    )))
}

/// A tar header's checksum: the sum of its bytes, its own field counted as spaces (POSIX.1, pax, "ustar Interchange Format").
fn checksum(block: &[u8; TAR_BLOCK]) -> u32 {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    sum(&block[..148]) + 8 * 32 + sum(&block[156..])
}
