//! The pipes of a channel: opened, greeted on, read, written, lost.

use cloche_proto::frame::NONCE;
use tokio::net::unix::pipe;

use super::Channel;
use crate::clock::Now;
use crate::session::bridge::Pipes;

/// Size asked for each pipe, in bytes: a whole stream buffer, so that the holder seldom waits for us.
const PIPE: usize = 1024 * 1024;
/// How a pipe is read, which does not block.
type Read = fn(&pipe::Receiver, &mut [u8]) -> std::io::Result<usize>;

impl Channel {
    pub(super) fn take_pipes(&mut self, pipes: Pipes, donated: bool, now: Now) {
        for end in [&pipes.from_guest, &pipes.to_guest] {
            // A smaller pipe is only slower.
            if let Err(error) = rustix::pipe::fcntl_setpipe_size(end, PIPE) {
                tracing::debug!(%error, "pipe not enlarged");
            }
        }
        let opened = pipe::Receiver::from_owned_fd(pipes.from_guest)
            .and_then(|receiver| Ok((receiver, pipe::Sender::from_owned_fd(pipes.to_guest)?)));
        match opened {
            Ok(opened) => {
                self.pipes = Some(opened);
                self.greet(true, donated, now);
            }
            Err(error) => self.fail(format!("its pipes cannot be used: {error}"), now),
        }
    }

    /// Opens an epoch.
    pub(super) fn greet(&mut self, new_pipes: bool, donated: bool, now: Now) {
        let mut nonce = [0; NONCE];
        match rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty()) {
            Ok(NONCE) => {
                self.table.epoch.begin(nonce, new_pipes);
                self.liveness.greeting(now.boot, donated);
            }
            // 16 bytes are never cut short once the kernel's pool is ready, which it was before this agent ran.
            Ok(_) | Err(_) => self.fail("the kernel gave no random bytes".to_owned(), now),
        }
    }

    pub(super) fn fail(&mut self, why: String, now: Now) {
        tracing::debug!(%why, "channel to cloche-init");
        self.liveness.failed(now.boot);
        self.table.unavailable = self.liveness.is_unavailable().then_some(why);
    }

    pub(super) fn lose_pipes(&mut self) {
        self.pipes = None;
        self.table.epoch.close();
    }

    /// One read; how many bytes came. Less than [`READ`] where there is no more for now.
    pub(super) fn read(&mut self, now: Now) -> usize {
        self.read_by(pipe::Receiver::try_read, now)
    }

    pub(super) fn read_by(&mut self, read: Read, now: Now) -> usize {
        let Some((receiver, _)) = &self.pipes else {
            return 0;
        };
        let count = match read(receiver, &mut self.buffer) {
            Ok(0) => {
                self.lose_pipes();
                self.fail("it closed its end of the pipes".to_owned(), now);
                return 0;
            }
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return 0,
            Err(error) => {
                self.lose_pipes();
                self.fail(format!("its pipe cannot be read: {error}"), now);
                return 0;
            }
        };
        let heard = self.table.epoch.heard();
        let mut events = std::mem::take(&mut self.events);
        self.table
            .epoch
            .on_bytes(&self.buffer[..count], &mut events);
        for event in events.drain(..) {
            self.on_event(event, now);
        }
        self.events = events;
        if self.table.epoch.is_open() && self.table.epoch.heard() > heard {
            self.liveness.heard(now.boot);
        }
        count
    }

    pub(super) fn flush(&mut self, now: Now) {
        while !self.table.epoch.outbox.is_empty() {
            let Some((_, sender)) = &self.pipes else {
                return;
            };
            let outbox = &mut self.table.epoch.outbox;
            match sender.try_write_vectored(&outbox.slices()) {
                Ok(count) => outbox.advance(count),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.lose_pipes();
                    self.fail(format!("its pipe cannot be written: {error}"), now);
                    return;
                }
            }
            self.table.epoch.pump();
        }
    }

    /// Reads what is left in the pipe of a sandbox that has ended. It holds no more than a pipe does. Asks the kernel itself: the
    /// runtime may not have heard yet of what came last.
    pub(super) fn drain(&mut self, now: Now) {
        let ask: Read =
            |receiver, buffer| rustix::io::read(receiver, buffer).map_err(std::io::Error::from);
        let mut drained = 0;
        while drained < 2 * PIPE {
            match self.read_by(ask, now) {
                0 => break,
                count => drained += count,
            }
        }
    }
}

pub(super) async fn readable(pipes: Option<&(pipe::Receiver, pipe::Sender)>) {
    if let Some((receiver, _)) = pipes {
        // An error shows again when it is read.
        drop(receiver.readable().await);
    }
}

pub(super) async fn writable(pipes: Option<&(pipe::Receiver, pipe::Sender)>) {
    if let Some((_, sender)) = pipes {
        drop(sender.writable().await);
    }
}
