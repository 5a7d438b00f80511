//! One layer: a tar archive, built entry by entry, so that it can be anything.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// `sha256:` and the digest of bytes.
pub(crate) fn digest(data: &[u8]) -> String {
    let hex = Sha256::digest(data)
        .iter()
        .fold(String::new(), |mut hex, byte| {
            for digit in [byte >> 4, byte & 15] {
                hex.extend(char::from_digit(u32::from(digit), 16));
            }
            hex
        });
    format!("sha256:{hex}")
}

/// How a layer is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// gzip.
    Gzip,
    /// As it is.
    Plain,
}

/// What one entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A file with its content.
    File(Vec<u8>),
    /// A folder.
    Folder,
    /// A symbolic link to a target.
    Link(String),
    /// A hard link to an earlier path.
    Hard(String),
    /// A character device.
    Character(u32, u32),
    /// A block device.
    Block(u32, u32),
    /// A named pipe.
    Pipe,
}

/// A layer being built. Paths and targets are written as they are given, however wrong: `../x`, `/x`, an empty one.
pub struct Layer {
    tar: Builder<Vec<u8>>,
}

impl std::fmt::Debug for Layer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.tar.get_ref().len();
        write!(formatter, "Layer({bytes} bytes)")
    }
}

impl Default for Layer {
    fn default() -> Self {
        Self {
            tar: Builder::new(Vec::new()),
        }
    }
}

impl Layer {
    /// Adds an entry with root as its owner, mode 0755 and the time 1. A path is at most 100 bytes, as an old tar header's.
    pub fn add(self, path: &str, entry: Entry) -> Result<Self> {
        let mode = 0o755;
        self.add_owned(path, entry, mode, 0, 0)
    }

    /// Adds an entry with mode and owner.
    pub fn add_owned(
        mut self,
        path: &str,
        entry: Entry,
        mode: u32,
        uid: u64,
        gid: u64,
    ) -> Result<Self> {
        let mut header = Header::new_gnu();
        header.set_mode(mode);
        header.set_uid(uid);
        header.set_gid(gid);
        header.set_mtime(1);
        let mut content = Vec::new();
        let (kind, target, device) = match entry {
            Entry::File(data) => {
                content = data;
                (EntryType::Regular, None, None)
            }
            Entry::Folder => (EntryType::Directory, None, None),
            Entry::Link(target) => (EntryType::Symlink, Some(target), None),
            Entry::Hard(target) => (EntryType::Link, Some(target), None),
            Entry::Character(major, minor) => (EntryType::Char, None, Some((major, minor))),
            Entry::Block(major, minor) => (EntryType::Block, None, Some((major, minor))),
            Entry::Pipe => (EntryType::Fifo, None, None),
        };
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        if let Some((major, minor)) = device {
            header
                .set_device_major(major)
                .context("a device's number")?;
            header
                .set_device_minor(minor)
                .context("a device's number")?;
        }
        // Not by set_path: it refuses the very paths that a hostile layer has.
        let old = header.as_old_mut();
        put(&mut old.name, path)?;
        put(&mut old.linkname, target.as_deref().unwrap_or_default())?;
        header.set_cksum();
        self.tar
            .append(&header, &content[..])
            .with_context(|| format!("add {path:?} to a layer"))?;
        Ok(self)
    }

    /// Adds a folder of this machine with all in it, as `path` (empty: the root).
    pub fn add_tree(mut self, path: &str, folder: &Path) -> Result<Self> {
        self.tar.follow_symlinks(false);
        let path = if path.is_empty() { "." } else { path };
        self.tar
            .append_dir_all(path, folder)
            .with_context(|| format!("add {} to a layer", folder.display()))?;
        Ok(self)
    }

    /// Adds bytes of the archive itself, at a place where an entry begins.
    pub fn add_raw(mut self, bytes: &[u8]) -> Result<Self> {
        self.tar
            .get_mut()
            .write_all(bytes)
            .context("add bytes to a layer")?;
        Ok(self)
    }

    /// The archive.
    pub fn into_tar(self) -> Result<Vec<u8>> {
        self.tar.into_inner().context("end a layer")
    }
}

fn put(field: &mut [u8], text: &str) -> Result<()> {
    field
        .get_mut(..text.len())
        .with_context(|| format!("{text:?} is too long for a tar header"))?
        .copy_from_slice(text.as_bytes());
    Ok(())
}

impl Packing {
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::Plain => "application/vnd.oci.image.layer.v1.tar",
            Self::Gzip => "application/vnd.oci.image.layer.v1.tar+gzip",
        }
    }

    /// The stored form of an archive, and its media type.
    pub(super) fn pack(self, tar: &[u8]) -> Result<(Vec<u8>, &'static str)> {
        let data = match self {
            Self::Plain => tar.to_vec(),
            Self::Gzip => {
                let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
                gzip.write_all(tar).context("compress a layer")?;
                gzip.finish().context("compress a layer")?
            }
        };
        Ok((data, self.media_type()))
    }
}
