//! Input for a command, kept until the command takes it.

use cloche_proto::frame::MAX_STREAM_BUFFER;

/// One stdin. Holds at most [`MAX_STREAM_BUFFER`] bytes that the command has not drained.
#[derive(Debug, Default)]
pub struct Input {
    drained: u64,
    data: Vec<u8>,
    head: usize,
    ending: bool,
    closed: bool,
}

impl Input {
    /// A stdin that takes nothing.
    pub fn closed() -> Self {
        Self {
            closed: true,
            ..Self::default()
        }
    }

    /// Offset at which the next bytes must begin.
    pub fn offset(&self) -> u64 {
        self.drained + self.pending().len() as u64
    }

    /// Bytes that went to the command.
    pub fn drained(&self) -> u64 {
        self.drained
    }

    /// Bytes that wait for the command.
    pub fn pending(&self) -> &[u8] {
        &self.data[self.head..]
    }

    /// Whether it takes no more.
    pub fn is_closed(&self) -> bool {
        self.closed || self.ending
    }

    /// Whether nothing is pending and the end was announced: the command's stdin is to be closed now, then [`Self::close`]d.
    pub fn is_over(&self) -> bool {
        self.ending && !self.closed && self.pending().is_empty()
    }

    /// Takes over what joins on and fits. Bytes that were taken before are skipped, bytes behind a gap or beyond the bound are
    /// dropped, and an end counts only with all bytes before it. Tells whether everything was taken.
    pub fn accept(&mut self, offset: u64, data: &[u8], end: bool) -> bool {
        if self.is_closed() {
            return false;
        }
        let Some(known) = self.offset().checked_sub(offset) else {
            return false;
        };
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let Some(fresh) = data.get(known..) else {
            // All of it is old; so is its end, had it been taken.
            return !end;
        };
        let taken = fresh.len().min(MAX_STREAM_BUFFER - self.pending().len());
        if self.head > 0 {
            self.data.drain(..self.head);
            self.head = 0;
        }
        self.data.extend_from_slice(&fresh[..taken]);
        let whole = taken == fresh.len();
        self.ending = whole && end;
        whole
    }

    /// The command took `count` of the pending bytes.
    pub fn drain(&mut self, count: usize) {
        let count = count.min(self.pending().len());
        self.head += count;
        self.drained += count as u64;
        if self.pending().is_empty() {
            self.head = 0;
            self.data = Vec::new();
        }
    }

    /// The command's stdin is closed, by either side. What was pending is dropped.
    pub fn close(&mut self) {
        self.closed = true;
        self.head = 0;
        self.data = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_joins_on_is_taken() {
        let mut input = Input::default();
        assert!(input.accept(0, b"abc", false));
        assert!(!input.accept(4, b"gap", false));
        assert!(input.accept(1, b"bcde", false));
        assert_eq!((input.pending(), input.offset()), (b"abcde".as_slice(), 5));
        input.drain(2);
        assert!(input.accept(0, b"ab", false));
        assert_eq!((input.drained(), input.offset()), (2, 5));
    }

    #[test]
    fn window_is_bounded_and_an_end_beyond_it_does_not_count() {
        let mut input = Input::default();
        assert!(!input.accept(0, &vec![0; MAX_STREAM_BUFFER + 1], true));
        assert_eq!(input.offset(), MAX_STREAM_BUFFER as u64);
        assert!(!input.is_closed());
        input.drain(MAX_STREAM_BUFFER);
        assert!(input.accept(MAX_STREAM_BUFFER as u64, b"x", true));
        assert!(input.is_closed() && !input.is_over());
        input.drain(1);
        assert!(input.is_over());
        input.close();
        assert!(!input.is_over() && input.is_closed());
    }

    #[test]
    fn nothing_is_taken_after_the_end() {
        let mut input = Input::default();
        assert!(input.accept(0, b"", true));
        assert!(!input.accept(0, b"x", false));
        assert!(!Input::closed().accept(0, b"", true));
    }
}
