//! What a sandbox holds of its writable layer: an unlinked file that only its sentry has open.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a block as `stat` counts them.
const BLOCK: u64 = 512;

/// The writable layer of one sandbox.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    /// The sentry's descriptors.
    descriptors: PathBuf,
    /// Device of the folder of writable layers.
    device: u64,
    /// Its descriptor, once it was found.
    found: Option<PathBuf>,
}

impl Layer {
    /// That of the sentry `pid`, on the file system of the folder `scratch`.
    pub(super) fn new(pid: i32, scratch: &Path) -> std::io::Result<Self> {
        Ok(Self {
            descriptors: format!("/proc/{pid}/fd").into(),
            device: fs::metadata(scratch)?.dev(),
            found: None,
        })
    }

    /// Bytes that it takes on the node's disk; `None` where there is none, or the sentry is gone. Blocking.
    pub(super) fn bytes(&mut self) -> Option<u64> {
        let known = self
            .found
            .take()
            .and_then(|path| Some((self.look(&path)?, path)));
        let (bytes, path) = known.or_else(|| {
            fs::read_dir(&self.descriptors)
                .ok()?
                .filter_map(Result::ok)
                .find_map(|entry| Some((self.look(&entry.path())?, entry.path())))
        })?;
        self.found = Some(path);
        Some(bytes)
    }

    /// A regular file without a name: the sentry has no other on that file system.
    fn look(&self, descriptor: &Path) -> Option<u64> {
        let file = fs::metadata(descriptor).ok()?;
        let is_it = file.is_file() && file.nlink() == 0 && file.dev() == self.device;
        is_it.then(|| file.blocks() * BLOCK)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    use super::*;

    #[test]
    fn the_unnamed_file_is_found_and_weighed() {
        let scratch = tempfile::tempdir().unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        let mut layer = Layer::new(pid, scratch.path()).unwrap();
        assert_eq!(layer.bytes(), None);
        let mut file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(nix::fcntl::OFlag::O_TMPFILE.bits())
            .open(scratch.path())
            .unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        assert_eq!(layer.bytes(), Some(1 << 20));
        file.set_len(0).unwrap();
        assert_eq!(layer.bytes(), Some(0), "space that comes back");
        drop(file);
        assert_eq!(layer.bytes(), None);
    }
}
