//! Terminals, and how much a pipe or terminal holds.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;

mod raw {
    use nix::libc;
    nix::ioctl_read_bad!(pending, libc::FIONREAD, libc::c_int);
    nix::ioctl_read_bad!(number, libc::TIOCGPTN, libc::c_uint);
    nix::ioctl_write_ptr_bad!(lock, libc::TIOCSPTLCK, libc::c_int);
    nix::ioctl_write_int_bad!(control, libc::TIOCSCTTY);
    nix::ioctl_write_ptr_bad!(resize, libc::TIOCSWINSZ, libc::winsize);
}

/// Bytes that can be read from `fd` at once; 0 where that is not known.
pub(crate) fn pending(fd: BorrowedFd<'_>) -> usize {
    let mut count = 0;
    // SAFETY: the request writes one int to the live one given.
    match unsafe { raw::pending(fd.as_raw_fd(), &raw mut count) } {
        Ok(_) => usize::try_from(count).unwrap_or(0),
        Err(_) => 0,
    }
}

/// Unlocks the other side of the terminal whose master is `master`, and tells its name in devpts.
pub(crate) fn unlock(master: BorrowedFd<'_>) -> nix::Result<u32> {
    let mut number = 0;
    let unlocked: libc::c_int = 0;
    // SAFETY: the request writes one unsigned int to the live one given.
    unsafe { raw::number(master.as_raw_fd(), &raw mut number) }?;
    // SAFETY: the request reads one live int.
    unsafe { raw::lock(master.as_raw_fd(), &raw const unlocked) }?;
    Ok(number)
}

/// Makes `terminal` the controlling terminal of this session, whose leader the caller is.
pub(crate) fn control(terminal: BorrowedFd<'_>) -> nix::Result<()> {
    // SAFETY: the request takes a number.
    unsafe { raw::control(terminal.as_raw_fd(), 0) }.map(drop)
}

/// Sets the size in characters; the foreground process group is told by SIGWINCH.
pub(crate) fn resize(terminal: BorrowedFd<'_>, rows: u32, columns: u32) -> nix::Result<()> {
    let size = libc::winsize {
        ws_row: u16::try_from(rows).unwrap_or(u16::MAX),
        ws_col: u16::try_from(columns).unwrap_or(u16::MAX),
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the request reads one live winsize.
    unsafe { raw::resize(terminal.as_raw_fd(), &raw const size) }.map(drop)
}
