//! Standard input on its way: kept until the agent has it safe.

use std::collections::VecDeque;

use crate::agent::v1alpha1::Stdin;

/// Most that is kept unacknowledged, in bytes. A slow command then makes the local writer wait.
pub(super) const WINDOW: usize = 1 << 20;

/// Most that one message carries, in bytes.
const CHUNK: usize = 32 << 10;

/// A part of the stream: from the first byte that the agent does not have to the last one read.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Offset of the first byte in `kept`.
    base: u64,
    kept: VecDeque<u8>,
    /// How much of `kept` was sent over this connection.
    sent: usize,
    /// There is no more to read.
    ended: bool,
    /// That was told over this connection.
    end_sent: bool,
    /// The command takes no more.
    closed: bool,
}

/// The agent wants stdin from a place that it cannot have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Impossible {
    /// What the agent said.
    pub(super) offset: u64,
    /// What there is.
    pub(super) kept: std::ops::RangeInclusive<u64>,
}

impl Window {
    /// How many bytes more may be read from the local side.
    pub(super) fn room(&self) -> usize {
        if self.is_open() {
            WINDOW.saturating_sub(self.kept.len())
        } else {
            0
        }
    }

    /// Whether neither side has ended it.
    pub(super) fn is_open(&self) -> bool {
        !self.closed && !self.ended
    }

    /// Takes what was read.
    pub(super) fn push(&mut self, data: &[u8]) {
        if !self.closed {
            self.kept.extend(data);
        }
    }

    /// There is no more to read.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// The stream begins at `offset`: somebody else sent what is before.
    pub(super) fn begin(&mut self, offset: u64) {
        self.base = offset;
    }

    /// A new connection: everything from `offset` on must be sent again. What is before is kept until it is acknowledged: the agent
    /// has it in its memory alone.
    pub(super) fn resume(&mut self, offset: u64) -> Result<(), Impossible> {
        self.end_sent = false;
        if !self.closed {
            self.sent = self.place(offset)?;
        }
        Ok(())
    }

    /// The agent has everything before `offset` safe. How many bytes more that is.
    pub(super) fn acknowledge(&mut self, offset: u64) -> Result<usize, Impossible> {
        // Of what lies before the first byte of this program, another one has to know.
        if self.closed || offset < self.base {
            return Ok(0);
        }
        let taken = self.place(offset)?;
        self.kept.drain(..taken);
        self.sent = self.sent.saturating_sub(taken);
        self.base = offset;
        Ok(taken)
    }

    /// Where the byte at `offset` is, or would be next.
    fn place(&self, offset: u64) -> Result<usize, Impossible> {
        let last = self.base + self.kept.len() as u64;
        offset
            .checked_sub(self.base)
            .filter(|_| offset <= last)
            .and_then(|place| usize::try_from(place).ok())
            .ok_or(Impossible {
                offset,
                kept: self.base..=last,
            })
    }

    /// The command takes no more: nothing is kept or sent from now on.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.kept = VecDeque::new();
        self.sent = 0;
    }

    /// Whether there is something to send.
    pub(super) fn has_next(&self) -> bool {
        !self.closed && (self.sent < self.kept.len() || (self.ended && !self.end_sent))
    }

    /// What to send next.
    pub(super) fn next(&mut self) -> Option<Stdin> {
        if !self.has_next() {
            return None;
        }
        let until = self.kept.len().min(self.sent + CHUNK);
        let data: Vec<u8> = self.kept.range(self.sent..until).copied().collect();
        let offset = self.base + self.sent as u64;
        self.sent = until;
        self.end_sent = self.ended && self.sent == self.kept.len();
        Some(Stdin {
            offset,
            data,
            end: self.end_sent,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_window_is_bounded_and_opens_with_acknowledgements() {
        let mut window = Window::default();
        window.push(&vec![7; WINDOW]);
        assert_eq!(window.room(), 0);
        window.acknowledge(10).unwrap();
        assert_eq!(window.room(), 10);
        window.end();
        assert_eq!(window.room(), 0);
    }

    #[test]
    fn the_end_is_told_once_per_connection() {
        let mut window = Window::default();
        window.push(b"abc");
        window.end();
        let whole = Stdin {
            offset: 0,
            data: b"abc".to_vec(),
            end: true,
        };
        assert_eq!(window.next(), Some(whole));
        assert_eq!(window.next(), None);
        window.resume(3).unwrap();
        let end = Stdin {
            offset: 3,
            data: Vec::new(),
            end: true,
        };
        assert_eq!(window.next(), Some(end));
    }

    #[test]
    fn an_agent_cannot_ask_for_what_was_taken_or_never_read() {
        let mut window = Window::default();
        window.begin(5);
        window.push(b"abc");
        window.acknowledge(7).unwrap();
        assert!(window.resume(6).is_err());
        assert!(window.acknowledge(9).is_err());
        window.close();
        assert!(!window.has_next());
        window.resume(0).unwrap();
    }

    proptest! {
        // An agent that takes a random part of what was sent and then loses the connection, again and again, still gets
        // every byte once.
        #[test]
        fn every_byte_arrives_once(
            length in 0_usize..150_000,
            steps in prop::collection::vec((1_usize..60_000, 0_usize..4, 0_usize..=100), 1..12)
        ) {
            // Of a period that no chunk shares.
            let input: Vec<u8> = (0..=250).cycle().take(length).collect();
            let mut window = Window::default();
            let mut rest = &input[..];
            let mut arrived: Vec<u8> = Vec::new();
            let mut ended = false;
            let mut steps = steps.into_iter().chain(std::iter::repeat((100_000, 1000, 100)));
            while !ended {
                let (read, messages, percent) = steps.next().unwrap();
                let (now, later) = rest.split_at(read.min(rest.len()));
                window.push(now);
                rest = later;
                if rest.is_empty() {
                    window.end();
                }
                for _ in 0..messages {
                    let Some(stdin) = window.next() else { break };
                    prop_assert_eq!(stdin.offset, arrived.len() as u64);
                    arrived.extend(&stdin.data[..stdin.data.len() * percent / 100]);
                    if percent < 100 {
                        break;
                    }
                    ended = stdin.end;
                }
                window.resume(arrived.len() as u64).unwrap();
            }
            prop_assert!(arrived == input);
        }
    }
}
