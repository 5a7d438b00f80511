//! An inotify instance that tokio can wait for.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use nix::errno::Errno;
use nix::sys::inotify::{Inotify, InotifyEvent};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// An inotify instance, registered with the runtime.
pub(crate) struct Events(AsyncFd<Owned>);

/// tokio wants the raw descriptor; nix gives it only borrowed.
struct Owned(Inotify);

impl AsRawFd for Owned {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Events {
    /// Registers `inotify`, which must not block. To be called on a runtime.
    pub(crate) fn register(inotify: Inotify) -> std::io::Result<Self> {
        // SAFETY: `Owned` owns the descriptor for as long as the registration lives, and nothing replaces or closes it: the
        // field is private and the only use of it is to read events.
        let registered =
            unsafe { AsyncFd::register_with_interest(Owned(inotify), Interest::READABLE) };
        Ok(Self(registered?))
    }

    /// Waits for events and takes all that have come. Cancel safe: what was not taken is still readable.
    pub(crate) async fn next(&self) -> std::io::Result<Vec<InotifyEvent>> {
        loop {
            let mut ready = self.0.readable().await?;
            let mut all = Vec::new();
            let end = loop {
                match ready.get_inner().0.read_events() {
                    Ok(events) => all.extend(events),
                    Err(Errno::EINTR) => {}
                    Err(errno) => break errno,
                }
            };
            ready.clear_ready();
            match end {
                Errno::EAGAIN if all.is_empty() => {}
                Errno::EAGAIN => return Ok(all),
                errno => return Err(errno.into()),
            }
        }
    }
}
