//! A directory as a layer: a tar stream in which equal directories give equal bytes.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tar::{Builder, EntryType, Header};

/// Of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// With all in it.
    Whole,
    /// The directory, without what is in it.
    Empty,
}

/// Writes everything below `root`, sorted by name, with owners, modes, times (in seconds) and hard links. `keep` is asked
/// with the path of each directory, relative to the root. Extended attributes are left out: gVisor cannot open a file that
/// has one. Sockets and device nodes are refused.
pub(super) fn write(root: &Path, keep: &dyn Fn(&Path) -> Keep, out: &mut dyn Write) -> Result<()> {
    let mut layer = Layer {
        root,
        keep,
        tar: Builder::new(out),
        links: HashMap::new(),
    };
    layer.directory(Path::new(""))?;
    layer.tar.finish().context("finish the layer")
}

struct Layer<'a, W: Write> {
    root: &'a Path,
    keep: &'a dyn Fn(&Path) -> Keep,
    tar: Builder<W>,
    /// Device and inode of files with several names, and the first name.
    links: HashMap<(u64, u64), PathBuf>,
}

impl<W: Write> Layer<'_, W> {
    fn directory(&mut self, path: &Path) -> Result<()> {
        if (self.keep)(path) == Keep::Empty {
            return Ok(());
        }
        let full = self.root.join(path);
        let mut names = std::fs::read_dir(&full)
            .and_then(|entries| {
                entries
                    .map(|entry| entry.map(|entry| entry.file_name()))
                    .collect::<std::io::Result<Vec<_>>>()
            })
            .with_context(|| format!("read {}", full.display()))?;
        names.sort();
        for name in names {
            let path = path.join(name);
            self.entry(&path)
                .with_context(|| format!("add {} to the layer", path.display()))?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path) -> Result<()> {
        let full = self.root.join(path);
        let metadata = std::fs::symlink_metadata(&full)?;
        let kind = metadata.file_type();
        let mut header = header(&metadata);
        if kind.is_dir() {
            header.set_entry_type(EntryType::Directory);
            self.tar.append_data(&mut header, path, std::io::empty())?;
            return self.directory(path);
        }
        if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            self.tar
                .append_link(&mut header, path, std::fs::read_link(&full)?)?;
            return Ok(());
        }
        if !kind.is_file() {
            let what = if kind.is_fifo() {
                "fifo"
            } else {
                "device or socket"
            };
            bail!("is a {what}");
        }
        if metadata.nlink() > 1 {
            let identity = (metadata.dev(), metadata.ino());
            if let Some(first) = self.links.get(&identity) {
                header.set_entry_type(EntryType::Link);
                self.tar.append_link(&mut header, path, first)?;
                return Ok(());
            }
            self.links.insert(identity, path.to_owned());
        }
        header.set_entry_type(EntryType::Regular);
        header.set_size(metadata.len());
        self.tar
            .append_data(&mut header, path, File::open(&full)?)?;
        Ok(())
    }
}

/// All that a layer tells of a file but its kind, name and content.
fn header(metadata: &Metadata) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(metadata.mode() & 0o7777);
    header.set_uid(metadata.uid().into());
    header.set_gid(metadata.gid().into());
    header.set_mtime(metadata.mtime().try_into().unwrap_or(0));
    header.set_size(0);
    header
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn tree() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::create_dir_all(root.join("b/cache/deep")).unwrap();
        std::fs::write(root.join("b/cache/deep/file"), "gone").unwrap();
        std::fs::write(root.join("b/program"), "run").unwrap();
        std::fs::set_permissions(root.join("b/program"), Permissions::from_mode(0o4755)).unwrap();
        std::fs::hard_link(root.join("b/program"), root.join("b/second")).unwrap();
        symlink("/b/program", root.join("a")).unwrap();
        let long = "x".repeat(200);
        std::fs::write(root.join(&long), "").unwrap();
        directory
    }

    fn written(root: &Path) -> Vec<u8> {
        let mut out = Vec::new();
        let keep = |path: &Path| {
            if path == Path::new("b/cache") {
                Keep::Empty
            } else {
                Keep::Whole
            }
        };
        write(root, &keep, &mut out).unwrap();
        out
    }

    #[test]
    fn entries_are_sorted_and_whole() {
        let directory = tree();
        let bytes = written(directory.path());
        let mut archive = tar::Archive::new(&*bytes);
        let mut seen = Vec::new();
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            let link = entry.link_name().unwrap();
            let link = link.map(|link| link.to_string_lossy().into_owned());
            let kind = entry.header().entry_type();
            seen.push((path, kind, entry.header().mode().unwrap() & 0o7000, link));
        }
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            seen,
            [
                ("a".into(), EntryType::Symlink, 0, text("/b/program")),
                ("b".into(), EntryType::Directory, 0, None),
                ("b/cache".into(), EntryType::Directory, 0, None),
                ("b/program".into(), EntryType::Regular, 0o4000, None),
                (
                    "b/second".into(),
                    EntryType::Link,
                    0o4000,
                    text("b/program")
                ),
                ("x".repeat(200), EntryType::Regular, 0, None),
            ]
        );
    }

    #[test]
    fn equal_trees_give_equal_bytes() {
        let directory = tree();
        assert_eq!(written(directory.path()), written(directory.path()));
    }

    #[test]
    fn a_socket_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = write(directory.path(), &|_| Keep::Whole, &mut Vec::new()).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "add socket to the layer: is a device or socket"
        );
    }
}
