//! Frames on their way into the pipe. Pure.

use std::collections::VecDeque;
use std::io::IoSlice;

/// Most frames handed to one write.
const SLICES: usize = 32;

/// Encoded frames, the first perhaps written in part.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    frames: VecDeque<Vec<u8>>,
    /// Bytes of the first frame that are written.
    written: usize,
    /// Bytes of all frames, less those written.
    length: usize,
}

impl Outbox {
    pub(super) fn push(&mut self, frame: Vec<u8>) {
        self.length += frame.len();
        self.frames.push_back(frame);
    }

    /// Bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// What to write next.
    pub(super) fn slices(&self) -> Vec<IoSlice<'_>> {
        self.frames
            .iter()
            .take(SLICES)
            .enumerate()
            .map(|(at, frame)| {
                IoSlice::new(if at == 0 {
                    &frame[self.written..]
                } else {
                    frame
                })
            })
            .collect()
    }

    /// `count` bytes of [`Self::slices`] were written.
    pub(super) fn advance(&mut self, count: usize) {
        self.length -= count;
        self.written += count;
        while let Some(front) = self.frames.front()
            && self.written >= front.len()
        {
            self.written -= front.len();
            self.frames.pop_front();
        }
    }

    /// Drops what was not begun to be written. A frame half in the pipe stays: its rest must follow, or the holder would take
    /// the next frame for it.
    pub(super) fn drop_unbegun(&mut self) {
        self.frames.truncate(usize::from(self.written > 0));
        self.length = self
            .frames
            .front()
            .map_or(0, |front| front.len() - self.written);
    }

    /// Drops everything: there is another pipe.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_written_frame_survives_the_drop() {
        let mut outbox = Outbox::default();
        outbox.push(vec![1; 10]);
        outbox.push(vec![2; 10]);
        outbox.push(vec![3; 10]);
        outbox.advance(14);
        assert_eq!((outbox.len(), outbox.slices().len()), (16, 2));
        outbox.drop_unbegun();
        assert_eq!(outbox.len(), 6);
        outbox.push(vec![4; 3]);
        let bytes: Vec<u8> = outbox.slices().iter().flat_map(|s| s.to_vec()).collect();
        assert_eq!(bytes, [2, 2, 2, 2, 2, 2, 4, 4, 4]);
        outbox.advance(9);
        assert!(outbox.is_empty());
        outbox.push(vec![5; 2]);
        outbox.drop_unbegun();
        assert!(outbox.is_empty());
    }
}
