//! How the channel gets to cloche-init.

use std::os::fd::OwnedFd;

use futures::future::BoxFuture;

/// The agent's ends of a pair of pipes to cloche-init.
#[derive(Debug)]
pub struct Pipes {
    /// Read end: frames from the sandbox.
    pub from_guest: OwnedFd,
    /// Write end: frames to the sandbox.
    pub to_guest: OwnedFd,
}

/// What the channel needs of the sandbox's control socket. No user command ever goes this way.
pub trait Bridge: Send + Sync {
    /// New pipes to the holder, by running `/.cloche/init bridge` in the sandbox. Given up after
    /// [`CONNECT_TIMEOUT`](super::channel::CONNECT_TIMEOUT).
    fn connect(&self) -> BoxFuture<'_, Result<Pipes, BridgeError>>;
    /// Sends SIGCONT to the holder, which something may have stopped.
    fn wake(&self) -> BoxFuture<'_, Result<(), BridgeError>>;
}

/// The sandbox could not be bridged to or woken.
#[derive(Debug, thiserror::Error)]
#[error("{operation} the sandbox's init")]
pub struct BridgeError {
    /// `bridge to`, `wake`.
    pub operation: &'static str,
    /// Why.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}
