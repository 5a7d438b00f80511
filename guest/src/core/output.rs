//! Output of a command, kept until the agent has it.

use std::collections::VecDeque;

use cloche_proto::frame::MAX_STREAM_BUFFER;

/// One output stream. Bytes are held from `base`, the last acknowledged offset, to [`Self::end`]; at most
/// [`MAX_STREAM_BUFFER`] of them, after which nothing more is to be read from the command.
#[derive(Debug, Default)]
pub struct Output {
    base: u64,
    sent: u64,
    data: VecDeque<u8>,
    ended: bool,
    at_exit: Option<u64>,
}

/// An empty buffer keeps no more memory than this, in bytes.
const SPARE: usize = 64 * 1024;

impl Output {
    /// Bytes that may still be pushed.
    pub fn room(&self) -> usize {
        MAX_STREAM_BUFFER - self.data.len()
    }

    /// Offset behind the last byte.
    pub fn end(&self) -> u64 {
        self.base + self.data.len() as u64
    }

    /// Takes over bytes that the command wrote, as far as there is [`Self::room`], and tells how many those were.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        self.data.extend(&bytes[..taken]);
        taken
    }

    /// Every writer has closed the stream.
    pub fn finish(&mut self) {
        self.ended = true;
    }

    /// The command has ended, and `pending` bytes of its output are still to be read.
    pub fn exit(&mut self, pending: usize) {
        self.at_exit = Some(self.end() + pending as u64);
    }

    /// Where the stream ended, once every writer has closed it.
    pub fn ended_at(&self) -> Option<u64> {
        self.ended.then(|| self.end())
    }

    /// Where the stream stood when the command ended. Never beyond the end: what was pending may have been thrown away by a
    /// terminal that was flushed.
    pub fn at_exit(&self) -> Option<u64> {
        match self.ended_at() {
            Some(end) => self.at_exit.map(|at| at.min(end)),
            None => self.at_exit,
        }
    }

    /// Some of the bytes not sent in this epoch, at most `limit`, and the offset of the first.
    pub fn unsent(&self, limit: usize) -> Option<(u64, &[u8])> {
        let from = usize::try_from(self.sent - self.base).ok()?;
        let (front, back) = self.data.as_slices();
        let rest = match from.checked_sub(front.len()) {
            Some(from) => back.get(from..)?,
            None => front.get(from..)?,
        };
        (!rest.is_empty()).then(|| (self.sent, &rest[..rest.len().min(limit)]))
    }

    /// The next `count` bytes are on their way.
    pub fn mark_sent(&mut self, count: usize) {
        self.sent = (self.sent + count as u64).min(self.end());
    }

    /// The agent holds everything before `offset`: it is let go of. Offsets beyond the end count as the end, older ones as
    /// nothing.
    pub fn acknowledge(&mut self, offset: u64) {
        let free = offset.min(self.end()).saturating_sub(self.base);
        self.base += free;
        self.sent = self.sent.max(self.base);
        self.data.drain(..usize::try_from(free).unwrap_or(0));
        if self.data.is_empty() {
            self.data.shrink_to(SPARE);
        }
    }

    /// An epoch begins: all is sent again from what the agent holds, or from what it last acknowledged.
    pub fn rewind(&mut self, held: Option<u64>) {
        self.acknowledge(held.unwrap_or(0));
        self.sent = self.base;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_buffer_takes_no_more_and_acknowledging_makes_room() {
        let mut output = Output::default();
        assert_eq!(
            output.push(&vec![1; MAX_STREAM_BUFFER + 5]),
            MAX_STREAM_BUFFER
        );
        assert_eq!((output.room(), output.push(b"x")), (0, 0));
        output.acknowledge(10);
        assert_eq!(output.room(), 10);
        assert_eq!(output.push(b"0123456789a"), 10);
        output.acknowledge(u64::MAX);
        assert_eq!(output.room(), MAX_STREAM_BUFFER);
        assert_eq!(output.end(), MAX_STREAM_BUFFER as u64 + 10);
        assert!(output.data.capacity() <= SPARE);
    }

    #[test]
    fn acknowledged_bytes_are_not_sent_and_old_acknowledgements_change_nothing() {
        let mut output = Output::default();
        output.push(b"abcdef");
        output.acknowledge(4);
        output.acknowledge(2);
        assert_eq!(output.unsent(10), Some((4, b"ef".as_slice())));
        output.mark_sent(2);
        assert_eq!(output.unsent(10), None);
        output.rewind(Some(5));
        assert_eq!(output.unsent(10), Some((5, b"f".as_slice())));
        output.rewind(Some(1));
        assert_eq!(output.unsent(10), Some((5, b"f".as_slice())));
    }

    #[test]
    fn exit_offset_counts_what_is_still_to_be_read() {
        let mut output = Output::default();
        output.push(b"abc");
        output.exit(2);
        assert_eq!((output.at_exit(), output.ended_at()), (Some(5), None));
        output.push(b"d");
        output.finish();
        assert_eq!((output.at_exit(), output.ended_at()), (Some(4), Some(4)));
    }
}
