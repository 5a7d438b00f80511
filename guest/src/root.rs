//! A root file system that sessions cannot write to, but for some paths.
//!
//! Each of these is bound over itself, then the mount below them is made read-only. So all that can be written stays in the sandbox's
//! one writable layer, under its one size; the holder, in a mount namespace of its own, can still write everywhere.

use cloche_proto::frame::ReadOnlyRoot;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, fchmod};

use crate::directory;

/// Why the root is not read-only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What the kernel said.
    pub source: Errno,
    /// Which of the writable paths it is about.
    pub path: Option<usize>,
}

/// Makes the root of this mount namespace read-only. To be called before the guest runs anything: what lies at the paths must not change
/// meanwhile.
pub fn make_read_only(root: &ReadOnlyRoot) -> Result<(), Fault> {
    for (index, path) in root.writable.iter().enumerate() {
        keep_writable(path).map_err(|source| Fault {
            source,
            path: Some(index),
        })?;
    }
    // Of this mount alone, not of the file system.
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
        .map_err(|source| Fault { source, path: None })
}

fn keep_writable(path: &str) -> nix::Result<()> {
    let everybody = Mode::from_bits_truncate(0o777);
    match directory::make(path.as_bytes(), |made| fchmod(made, everybody)) {
        // No directory: a file can be bound as well, if that is what lies there.
        Ok(()) | Err(Errno::ENOTDIR) => {}
        Err(error) => return Err(error),
    }
    mount(
        Some(path),
        path,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
}
