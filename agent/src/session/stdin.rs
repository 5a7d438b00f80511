//! The stdin of one command on its way into the sandbox. Pure.
//!
//! Bytes are kept in memory until the holder says that it took them over, no more than a window of them. They are not on disk:
//! a client keeps what is not yet taken, and goes on there after a restart of the agent.

use std::collections::VecDeque;

use cloche_proto::frame::{MAX_DATA, MAX_STREAM_BUFFER};

use super::state::StdinState;

/// Why bytes for a stdin were refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StdinError {
    /// It takes no more.
    #[error("the command's stdin is closed")]
    Closed,
    /// After a restart of the agent, before init told how far stdin is.
    #[error("how far the command's stdin is will be known once the sandbox's init answers; retry")]
    NotKnown,
    /// Another client has begun to send it.
    #[error("another client sends the command's stdin now")]
    TakenOver,
    /// Bytes are missing in between.
    #[error("stdin at offset {offset} would leave a gap: the next byte is {expected}")]
    Gap {
        /// The offset given.
        offset: u64,
        /// The one that joins on.
        expected: u64,
    },
}

/// The end of a stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// More may come.
    Open,
    /// The client has ended it.
    Ended,
    /// The holder was told so in this epoch.
    Sent,
}

/// One command's stdin.
#[derive(Debug)]
pub(super) struct Stdin {
    /// The offset of the first byte in `bytes` = what the holder has taken.
    base: u64,
    bytes: VecDeque<u8>,
    /// Where the next frame begins.
    sent: u64,
    /// What the command itself has read, as the holder says.
    drained: u64,
    end: End,
    closed: bool,
    /// `base` is true: a new session's is, a loaded one's from the first report on.
    known: bool,
}

impl Stdin {
    /// Of a session that is new: nothing was sent yet.
    pub(super) fn new(open: bool) -> Self {
        Self {
            base: 0,
            bytes: VecDeque::new(),
            sent: 0,
            drained: 0,
            end: End::Open,
            closed: !open,
            known: true,
        }
    }

    /// Of a session that an earlier agent began.
    pub(super) fn unknown() -> Self {
        Self {
            known: false,
            ..Self::new(true)
        }
    }

    /// The state to show; nothing while it is not known.
    pub(super) fn state(&self) -> Option<StdinState> {
        self.known.then(|| StdinState {
            accepted: self.accepted(),
            taken: self.base,
            closed: self.closed,
        })
    }

    fn accepted(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// Takes bytes that begin at `offset`: those already taken are skipped, and those beyond the window are left to the
    /// caller, which sees by the offset returned how far it came. `end` counts once all bytes before it were taken.
    pub(super) fn accept(
        &mut self,
        offset: u64,
        bytes: &[u8],
        end: bool,
    ) -> Result<u64, StdinError> {
        if !self.known {
            return Err(StdinError::NotKnown);
        }
        let expected = self.accepted();
        let Some(skip) = expected.checked_sub(offset) else {
            // What had not been taken when it was closed is thrown away: what follows need not join on to it.
            return Err(if self.closed {
                StdinError::Closed
            } else {
                StdinError::Gap { offset, expected }
            });
        };
        let rest = usize::try_from(skip)
            .ok()
            .and_then(|skip| bytes.get(skip..))
            .unwrap_or_default();
        // A repeat of what was taken is fine even when nothing new may follow.
        if rest.is_empty() && (!end || self.end != End::Open) {
            return Ok(expected);
        }
        if self.closed || self.end != End::Open {
            return Err(StdinError::Closed);
        }
        let room = MAX_STREAM_BUFFER - self.bytes.len().min(MAX_STREAM_BUFFER);
        let taken = rest.len().min(room);
        self.bytes.extend(&rest[..taken]);
        if end && taken == rest.len() {
            self.end = End::Ended;
        }
        Ok(self.accepted())
    }

    /// The next piece to send: its offset, its bytes, whether stdin ends with it.
    pub(super) fn next(&mut self) -> Option<(u64, Vec<u8>, bool)> {
        if self.closed || !self.known {
            return None;
        }
        let unsent = usize::try_from(self.accepted() - self.sent).unwrap_or(usize::MAX);
        let ahead = usize::try_from(self.sent - self.drained.min(self.sent)).unwrap_or(usize::MAX);
        let length = unsent
            .min(MAX_STREAM_BUFFER.saturating_sub(ahead))
            .min(MAX_DATA);
        let last = self.end != End::Open && length == unsent;
        if length == 0 && (!last || self.end == End::Sent) {
            return None;
        }
        let from = self.bytes.len() - unsent;
        let piece = self.bytes.range(from..from + length).copied().collect();
        let offset = self.sent;
        self.sent += length as u64;
        if last {
            self.end = End::Sent;
        }
        Some((offset, piece, last))
    }

    /// A new epoch: what was sent before may be lost, so nothing is sent until the holder tells how far it is.
    pub(super) fn begin_epoch(&mut self) {
        self.sent = self.base;
        if self.end == End::Sent {
            self.end = End::Ended;
        }
    }

    /// What the holder says. False where that cannot be.
    pub(super) fn report(
        &mut self,
        taken: u64,
        drained: u64,
        closed: bool,
        first_in_epoch: bool,
    ) -> bool {
        if !self.known {
            self.known = true;
            self.base = taken;
            self.sent = taken;
        }
        // In a new epoch the holder may have taken what the old one sent.
        let limit = if first_in_epoch {
            self.accepted()
        } else {
            self.sent
        };
        if taken < self.base || taken > limit || drained > taken || drained < self.drained {
            return false;
        }
        let gone = usize::try_from(taken - self.base).unwrap_or(usize::MAX);
        self.bytes.drain(..gone.min(self.bytes.len()));
        self.base = taken;
        self.sent = self.sent.max(taken);
        self.drained = drained;
        if closed && !self.closed {
            self.closed = true;
            self.bytes = VecDeque::new();
            self.sent = self.base;
        }
        if self.bytes.is_empty() {
            self.bytes = VecDeque::new();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_no_more_than_a_window_and_tells_how_far() {
        let mut stdin = Stdin::new(true);
        let big = vec![7; MAX_STREAM_BUFFER + 5];
        let accepted = stdin.accept(0, &big, true).unwrap();
        assert_eq!(accepted, MAX_STREAM_BUFFER as u64);
        let mut sent = 0;
        while let Some((offset, piece, end)) = stdin.next() {
            assert_eq!(offset, sent);
            assert!(piece.len() <= MAX_DATA && !end);
            sent += piece.len() as u64;
        }
        assert_eq!(sent, accepted);
        // Taken over, but not read by the command: the holder's buffer is still full.
        assert!(stdin.report(accepted, 0, false, false));
        assert_eq!(stdin.accept(accepted, &[7; 5], true), Ok(accepted + 5));
        assert_eq!(stdin.next(), None);
        assert!(stdin.report(accepted, 5, false, false));
        assert_eq!(stdin.next(), Some((accepted, vec![7; 5], true)));
        assert_eq!(stdin.next(), None);
    }

    #[test]
    fn repeats_are_skipped_and_gaps_refused() {
        let mut stdin = Stdin::new(true);
        assert_eq!(stdin.accept(0, b"abc", false), Ok(3));
        assert_eq!(stdin.accept(1, b"bcd", false), Ok(4));
        assert_eq!(
            stdin.accept(6, b"x", false),
            Err(StdinError::Gap {
                offset: 6,
                expected: 4
            })
        );
        assert_eq!(stdin.accept(4, b"", true), Ok(4));
        assert_eq!(stdin.accept(4, b"", true), Ok(4));
        assert_eq!(stdin.accept(4, b"x", false), Err(StdinError::Closed));
        assert_eq!(stdin.next(), Some((0, b"abcd".to_vec(), true)));
    }

    #[test]
    fn a_new_epoch_sends_again_from_where_the_holder_is() {
        let mut stdin = Stdin::new(true);
        stdin.accept(0, b"abcdef", true).unwrap();
        assert!(stdin.next().is_some());
        stdin.begin_epoch();
        assert!(stdin.report(2, 0, false, true));
        assert_eq!(stdin.next(), Some((2, b"cdef".to_vec(), true)));
    }

    #[test]
    fn a_loaded_one_waits_for_the_holder() {
        let mut stdin = Stdin::unknown();
        assert_eq!(stdin.state(), None);
        assert_eq!(stdin.accept(0, b"a", false), Err(StdinError::NotKnown));
        assert!(stdin.report(40, 10, false, true));
        assert_eq!(stdin.accept(40, b"a", false), Ok(41));
    }

    #[test]
    fn what_comes_after_it_was_closed_is_refused_as_such() {
        let mut stdin = Stdin::new(true);
        stdin.accept(0, b"abcdef", false).unwrap();
        stdin.next();
        assert!(stdin.report(2, 2, true, false));
        assert_eq!(stdin.accept(6, b"g", false), Err(StdinError::Closed));
        assert_eq!(stdin.accept(3, b"d", true), Err(StdinError::Closed));
        assert_eq!(stdin.next(), None);
    }

    #[test]
    fn impossible_reports_are_refused() {
        let mut stdin = Stdin::new(true);
        stdin.accept(0, b"abcd", false).unwrap();
        assert!(!stdin.report(1, 0, false, false), "never sent");
        stdin.next();
        assert!(!stdin.report(5, 0, false, false), "more than sent");
        assert!(!stdin.report(2, 3, false, false), "drained before taken");
        assert!(stdin.report(3, 3, false, false));
        assert!(!stdin.report(2, 2, false, false), "went back");
    }
}
