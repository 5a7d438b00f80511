//! Directories in the guest's file system, which is hostile.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, mkdirat};

/// Makes what is missing of the absolute `path`, and has each directory `finish`ed that it made. Each part is looked up from the one
/// before it, and one made here is entered without following a link, so that only a directory that we made is changed. `EINVAL`: the
/// path is not absolute, or has a NUL.
pub fn make(path: &[u8], finish: impl Fn(BorrowedFd<'_>) -> nix::Result<()>) -> nix::Result<()> {
    if !path.starts_with(b"/") || path.contains(&0) {
        return Err(Errno::EINVAL);
    }
    let directory = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_PATH;
    let mut here = open("/", directory, Mode::empty())?;
    let parts = path.split(|byte| *byte == b'/');
    for part in parts.filter(|part| !part.is_empty()) {
        match mkdirat(&here, part, Mode::from_bits_truncate(0o755)) {
            Ok(()) => {
                let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
                let made = openat(&here, part, flags, Mode::empty())?;
                finish(made.as_fd())?;
                here = made;
            }
            // Read-only, or not ours to write to: it may be there all the same.
            Err(Errno::EEXIST | Errno::EROFS | Errno::EACCES | Errno::EPERM) => {
                here = openat(&here, part, directory, Mode::empty())?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
