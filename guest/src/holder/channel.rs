//! The pipes to and from the agent: those donated as stdin and stdout, or two that the bridge brought.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{read, write};

/// What reading brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// So many bytes.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// The agent is gone.
    End,
}

/// The channel in use. The donated pair is never closed: on a restore the runtime puts new pipes under the same numbers.
#[derive(Debug)]
pub(super) struct Channel {
    donated: (std::io::Stdin, std::io::Stdout),
    bridged: Option<(OwnedFd, OwnedFd)>,
    alive: bool,
}

impl Channel {
    /// The donated pair.
    pub(super) fn donated() -> Self {
        let mut channel = Self {
            donated: (std::io::stdin(), std::io::stdout()),
            bridged: None,
            alive: false,
        };
        channel.return_to_donated();
        channel
    }

    /// Goes back to the donated pair: it is a new one.
    pub(super) fn return_to_donated(&mut self) {
        self.bridged = None;
        self.alive = true;
        self.unblock();
    }

    /// Uses the pair that the bridge brought, and closes the one that an earlier bridge did.
    pub(super) fn adopt(&mut self, input: OwnedFd, output: OwnedFd) {
        self.bridged = Some((input, output));
        self.alive = true;
        self.unblock();
    }

    fn unblock(&mut self) {
        let unblocked = [self.input(), self.output()]
            .into_iter()
            .flatten()
            .all(|fd| {
                fcntl(fd, FcntlArg::F_GETFL)
                    .map(OFlag::from_bits_retain)
                    .and_then(|flags| fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)))
                    .is_ok()
            });
        // What may block the loop is not used.
        self.alive = unblocked;
    }

    /// The agent is gone, or spoke nonsense: nothing is read or written until there is a new pair.
    pub(super) fn hang_up(&mut self) {
        self.bridged = None;
        self.alive = false;
    }

    /// What to wait on for input.
    pub(super) fn input(&self) -> Option<BorrowedFd<'_>> {
        self.alive.then(|| match &self.bridged {
            Some((input, _)) => input.as_fd(),
            None => self.donated.0.as_fd(),
        })
    }

    /// What to wait on while output waits.
    pub(super) fn output(&self) -> Option<BorrowedFd<'_>> {
        self.alive.then(|| match &self.bridged {
            Some((_, output)) => output.as_fd(),
            None => self.donated.1.as_fd(),
        })
    }

    /// Reads what is there.
    pub(super) fn read(&self, buffer: &mut [u8]) -> Heard {
        let Some(input) = self.input() else {
            return Heard::Nothing;
        };
        match read(input, buffer) {
            Ok(0) => Heard::End,
            Ok(count) => Heard::Bytes(count),
            Err(Errno::EAGAIN | Errno::EINTR) => Heard::Nothing,
            Err(_) => Heard::End,
        }
    }

    /// Writes what fits; an error means that the agent is gone.
    pub(super) fn write(&self, bytes: &[u8]) -> nix::Result<usize> {
        let Some(output) = self.output() else {
            return Ok(0);
        };
        match write(output, bytes) {
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(0),
            other => other,
        }
    }
}
