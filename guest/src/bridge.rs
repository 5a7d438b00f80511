//! Brings the holder a new channel after a restart of the agent: the agent has this run in the holder's mount namespace, with
//! new pipes as stdin and stdout. It is trusted no more than the guest, which may have put another program in its place: what
//! it can do is hand over two pipes.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::unistd::read;

use crate::sys;

/// Name of the holder's socket in its directory.
pub const SOCKET: &str = "bridge";
/// What the holder answers when it has taken the pipes.
pub const TAKEN: &[u8] = b"k";

/// Why the pipes were not handed over.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// The socket said no.
    #[error("handing the channel to {path}: {source}")]
    Socket {
        /// The socket's path.
        path: String,
        /// What it said.
        source: Errno,
    },
    /// The holder did not take them.
    #[error("the holder did not take the channel")]
    Refused,
}

/// Hands stdin and stdout over. Returns once the holder has taken them.
pub fn run(directory: &str) -> Result<(), BridgeError> {
    let path = format!("{directory}/{SOCKET}");
    let hand_over = || {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        sys::socket::connect(&socket, &path)?;
        let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
        sys::socket::send(socket.as_fd(), TAKEN, &[stdin.as_fd(), stdout.as_fd()])?;
        let mut answer = [0; 1];
        let length = read(&socket, &mut answer)?;
        Ok(&answer[..length] == TAKEN)
    };
    match hand_over() {
        Ok(true) => Ok(()),
        Ok(false) => Err(BridgeError::Refused),
        Err(source) => Err(BridgeError::Socket { path, source }),
    }
}
