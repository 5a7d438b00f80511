//! Messages with file descriptors over unix sockets.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, accept4, recvmsg, sendmsg};
use nix::sys::socket::{SockFlag, UnixAddr};

/// The most file descriptors that the kernel lets one message carry (`SCM_MAX_FD`). Room for fewer would leave those of a longer
/// message open and unknown.
const MAX_FDS: usize = 253;

/// Sends one message. Never waits where the socket does not block.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> nix::Result<()> {
    let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[] } else { &rights[..] };
    let slices = [IoSlice::new(bytes)];
    loop {
        match sendmsg::<()>(
            socket.as_raw_fd(),
            &slices,
            control,
            MsgFlags::MSG_NOSIGNAL,
            None,
        ) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Receives one message of at most `bytes.len()` bytes, and what file descriptors came with it, close-on-exec. No bytes mean
/// the end.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> nix::Result<(usize, Vec<OwnedFd>)> {
    let mut control = cmsg_space!([libc_int; MAX_FDS]);
    let mut slices = [IoSliceMut::new(bytes)];
    let message = loop {
        match recvmsg::<()>(
            socket.as_raw_fd(),
            &mut slices,
            Some(&mut control),
            MsgFlags::MSG_CMSG_CLOEXEC,
        ) {
            Ok(message) => break message,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    };
    let mut fds = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = part {
            // SAFETY: the kernel has just made these for us; nobody else knows them.
            fds.extend(
                raw.into_iter()
                    .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
            );
        }
    }
    Ok((message.bytes, fds))
}

#[allow(non_camel_case_types)]
type libc_int = nix::libc::c_int;

/// Takes the next connection of a listening socket, close-on-exec and not blocking.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = accept4(listener.as_raw_fd(), flags)?;
    // SAFETY: the kernel has just made it for us; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Connects to the socket at `path`.
pub(crate) fn connect(socket: &OwnedFd, path: &str) -> nix::Result<()> {
    nix::sys::socket::connect(socket.as_fd().as_raw_fd(), &UnixAddr::new(path)?)
}
