//! Where one output stream stands.

/// The next byte that is wanted of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor {
    /// `None`: wherever the first output begins.
    next: Option<u64>,
}

/// What is new in a piece of output.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct New {
    /// Bytes before it that the reader will never see.
    pub(super) lost: u64,
    /// To be written now.
    pub(super) data: Vec<u8>,
}

impl Cursor {
    /// Wants everything.
    pub(super) fn from_start() -> Self {
        Self { next: Some(0) }
    }

    /// Wants what comes, from wherever it begins.
    pub(super) fn from_first() -> Self {
        Self { next: None }
    }

    /// The offset to ask for; none where any will do.
    pub(super) fn next(self) -> Option<u64> {
        self.next
    }

    /// What of `data`, whose first byte is at `offset`, has not been seen. Doubled bytes are dropped; a hole that the
    /// agent did not announce is a loss like an announced one. An end beyond 2^64 is no offset of any stream: `None`.
    pub(super) fn take(&mut self, offset: u64, mut data: Vec<u8>) -> Option<New> {
        let end = offset.checked_add(data.len() as u64)?;
        let next = self.next.unwrap_or(offset);
        if end <= next {
            self.next = Some(next);
            return Some(New {
                lost: 0,
                data: Vec::new(),
            });
        }
        let seen = usize::try_from(next.saturating_sub(offset)).ok()?;
        data.drain(..seen);
        self.next = Some(end);
        Some(New {
            lost: offset.saturating_sub(next),
            data,
        })
    }

    /// Steps over bytes that are no longer kept; how many of them the reader had not seen.
    pub(super) fn skip(&mut self, offset: u64, end: u64) -> u64 {
        let next = self.next.unwrap_or(offset);
        self.next = Some(next.max(end));
        end.saturating_sub(next)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cursor_drops_what_was_seen_and_tells_what_is_lost() {
        let mut cursor = Cursor::from_start();
        let new = |lost, data: &[u8]| {
            Some(New {
                lost,
                data: data.to_vec(),
            })
        };
        assert_eq!(cursor.take(0, b"abc".to_vec()), new(0, b"abc"));
        assert_eq!(cursor.take(1, b"bcde".to_vec()), new(0, b"de"));
        assert_eq!(cursor.take(0, b"abcde".to_vec()), new(0, b""));
        assert_eq!(cursor.skip(2, 9), 4);
        assert_eq!(cursor.skip(2, 9), 0);
        assert_eq!(cursor.take(12, b"x".to_vec()), new(3, b"x"));
        assert_eq!(cursor.take(u64::MAX, b"x".to_vec()), None);
        assert_eq!(cursor.next(), Some(13));
    }

    #[test]
    fn a_tail_begins_wherever_it_begins() {
        let mut cursor = Cursor::from_first();
        assert_eq!(
            cursor.take(1000, b"ab".to_vec()).map(|new| new.lost),
            Some(0)
        );
        assert_eq!(cursor.next(), Some(1002));
    }

    proptest! {
        // Whatever pieces an agent sends, in whatever order: each byte is written at most once, in order, and every byte
        // up to the cursor was written or counted as lost.
        #[test]
        fn every_byte_is_written_once_or_counted_as_lost(
            pieces in prop::collection::vec((0_usize..200, 0_usize..80, any::<bool>()), 0..40)
        ) {
            let stream: Vec<u8> = (0..=255).cycle().take(300).collect();
            let mut cursor = Cursor::from_start();
            let mut at = 0_u64;
            for (offset, length, gap) in pieces {
                if gap {
                    at += cursor.skip(offset as u64, (offset + length) as u64);
                } else {
                    let new = cursor.take(offset as u64, stream[offset..offset + length].to_vec()).unwrap();
                    at += new.lost;
                    let from = usize::try_from(at).unwrap();
                    prop_assert_eq!(&new.data[..], &stream[from..from + new.data.len()]);
                    at += new.data.len() as u64;
                }
                prop_assert_eq!(cursor.next(), Some(at));
            }
        }
    }
}
