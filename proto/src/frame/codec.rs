//! Framing: a little-endian `u32` length, then one message.
//!
//! [`Decoder`] takes bytes as they come and yields whole messages. It never holds more than one frame and four bytes, and
//! checks a length before it makes room for it.

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

use super::{MAX_FRAME, Stream};

/// Bytes of the length prefix.
pub const PREFIX: usize = 4;

/// A frame that breaks the rules of the wire. The channel it came by is to be given up (a new epoch may follow).
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FrameError {
    /// A length beyond [`MAX_FRAME`].
    #[error("a frame of {length} bytes; at most {MAX_FRAME} are allowed")]
    TooLong {
        /// The length found, in bytes.
        length: usize,
    },
    /// Bytes that are not the message expected.
    #[error("a frame that is not a message of the protocol")]
    Malformed(#[source] prost::DecodeError),
}

/// `message` as a frame, length prefix included.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, FrameError> {
    let length = message.encoded_len();
    let Some(prefix) = u32::try_from(length).ok().filter(|_| length <= MAX_FRAME) else {
        return Err(FrameError::TooLong { length });
    };
    let mut frame = Vec::with_capacity(PREFIX + length);
    frame.extend_from_slice(&prefix.to_le_bytes());
    message.encode_raw(&mut frame);
    Ok(frame)
}

/// Appends the frame of an [`Up`](super::Up) that carries [`Data`](super::Data), without a copy of `data` in between: this is
/// the one message whose speed counts.
///
/// The frame is what [`encode`] would make of the same message, since fields are written in the order of their tags. `data`
/// is at most [`MAX_DATA`](super::MAX_DATA) bytes.
pub fn encode_data(
    frame: &mut Vec<u8>,
    command_id: &str,
    stream: Stream,
    offset: u64,
    data: &[u8],
) -> Result<(), FrameError> {
    let mut fields = Vec::with_capacity(command_id.len() + 32);
    bytes_field(&mut fields, 1, command_id.as_bytes());
    number_field(&mut fields, 2, stream as u64);
    number_field(&mut fields, 3, offset);
    if !data.is_empty() {
        encode_key(4, WireType::LengthDelimited, &mut fields);
        encode_varint(data.len() as u64, &mut fields);
    }
    let body = fields.len() + data.len();
    // One byte for the key of `Up.data`, whose tag is below 16.
    let length = 1 + encoded_len_varint(body as u64) + body;
    let Some(prefix) = u32::try_from(length).ok().filter(|_| length <= MAX_FRAME) else {
        return Err(FrameError::TooLong { length });
    };
    frame.reserve(PREFIX + length);
    frame.extend_from_slice(&prefix.to_le_bytes());
    encode_key(3, WireType::LengthDelimited, frame);
    encode_varint(body as u64, frame);
    frame.extend_from_slice(&fields);
    frame.extend_from_slice(data);
    Ok(())
}

fn bytes_field(out: &mut Vec<u8>, tag: u32, value: &[u8]) {
    if !value.is_empty() {
        encode_key(tag, WireType::LengthDelimited, out);
        encode_varint(value.len() as u64, out);
        out.extend_from_slice(value);
    }
}

fn number_field(out: &mut Vec<u8>, tag: u32, value: u64) {
    if value != 0 {
        encode_key(tag, WireType::Varint, out);
        encode_varint(value, out);
    }
}

/// Turns a byte stream into messages.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
}

impl Decoder {
    /// Adds bytes as they were read. Call [`Self::next`] until it yields nothing before adding more, so that no more than a
    /// frame and one read is ever held.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, if there is one.
    #[allow(clippy::should_implement_trait)] // an iterator yields one type, this yields the one asked for
    pub fn next<M: Message + Default>(&mut self) -> Result<Option<M>, FrameError> {
        let rest = &self.buffer[self.start..];
        let Some((prefix, body)) = rest.split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > MAX_FRAME {
            return Err(FrameError::TooLong { length });
        }
        let Some(body) = body.get(..length) else {
            return Ok(None);
        };
        let message = M::decode(body).map_err(FrameError::Malformed)?;
        self.start += PREFIX + length;
        Ok(Some(message))
    }

    /// Throws away everything up to and including `marker`, and tells whether it was found. While it is not, less than a
    /// marker's length is kept. So an agent finds the nonce that begins an epoch behind whatever an older one left in the pipe.
    pub fn seek(&mut self, marker: &[u8]) -> bool {
        let rest = &self.buffer[self.start..];
        if let Some(at) = rest
            .windows(marker.len())
            .position(|window| window == marker)
        {
            self.start += at + marker.len();
            return true;
        }
        self.start += (rest.len() + 1).saturating_sub(marker.len());
        false
    }

    /// Forgets all bytes held: an epoch begins.
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.start = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::{Data, Down, DownKind, MAX_DATA, Ping, Up, UpKind};

    fn ping(token: u64) -> Down {
        Down {
            kind: Some(DownKind::Ping(Ping { token })),
        }
    }

    #[test]
    fn length_beyond_the_bound_is_refused_before_its_bytes_come() {
        let mut decoder = Decoder::default();
        let length = u32::try_from(MAX_FRAME).unwrap() + 1;
        decoder.push(&length.to_le_bytes());
        assert_eq!(
            decoder.next::<Down>(),
            Err(FrameError::TooLong {
                length: MAX_FRAME + 1
            })
        );
    }

    #[test]
    fn message_beyond_the_bound_is_not_encoded() {
        let message = Data {
            data: vec![0; MAX_FRAME],
            ..Data::default()
        };
        assert!(matches!(
            encode(&message),
            Err(FrameError::TooLong { length }) if length > MAX_FRAME
        ));
    }

    #[test]
    fn garbage_of_a_fitting_length_is_malformed() {
        let mut decoder = Decoder::default();
        decoder.push(&[3, 0, 0, 0, 0xff, 0xff, 0xff]);
        assert!(matches!(
            decoder.next::<Down>(),
            Err(FrameError::Malformed(_))
        ));
    }

    #[test]
    fn unknown_kind_is_a_message_without_a_kind() {
        let mut decoder = Decoder::default();
        // Tag 15, length 0.
        decoder.push(&[2, 0, 0, 0, 0x7a, 0]);
        assert_eq!(decoder.next::<Down>(), Ok(Some(Down { kind: None })));
    }

    #[test]
    fn cleared_decoder_begins_anew() {
        let mut decoder = Decoder::default();
        decoder.push(&[200, 0, 0, 0, 1, 2, 3]);
        assert_eq!(decoder.next::<Down>(), Ok(None));
        decoder.clear();
        decoder.push(&encode(&ping(7)).unwrap());
        assert_eq!(decoder.next::<Down>(), Ok(Some(ping(7))));
    }

    proptest! {
        /// However the bytes are cut, the same messages come out, and no more than a frame and one read is held.
        #[test]
        fn cuts_do_not_matter(tokens in prop::collection::vec(any::<u64>(), 0..20), cuts in prop::collection::vec(1usize..40, 1..50)) {
            let bytes: Vec<u8> = tokens.iter().flat_map(|token| encode(&ping(*token)).unwrap()).collect();
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            let mut rest = bytes.as_slice();
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let (now, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                rest = later;
                decoder.push(now);
                while let Some(message) = decoder.next::<Down>().unwrap() {
                    seen.push(message);
                }
                prop_assert!(decoder.buffer.len() <= PREFIX + MAX_FRAME + 40);
            }
            prop_assert_eq!(seen, tokens.into_iter().map(ping).collect::<Vec<_>>());
        }

        /// The marker is found behind anything, wherever the reads are cut, and what follows it is kept.
        #[test]
        fn marker_is_found_behind_anything(before in prop::collection::vec(any::<u8>(), 0..300), marker in any::<[u8; 16]>(), cut in 1usize..40) {
            let mut bytes = before;
            let stale = bytes.windows(16).any(|window| window == marker);
            prop_assume!(!stale);
            bytes.extend_from_slice(&marker);
            bytes.extend_from_slice(&encode(&ping(9)).unwrap());
            let mut decoder = Decoder::default();
            let mut found = false;
            let mut seen = None;
            for now in bytes.chunks(cut) {
                decoder.push(now);
                found = found || decoder.seek(&marker);
                if found && seen.is_none() {
                    seen = decoder.next::<Down>().unwrap();
                } else if !found {
                    prop_assert!(decoder.buffer.len() - decoder.start < marker.len());
                }
            }
            prop_assert_eq!(seen, Some(ping(9)));
        }

        /// Any bytes at all: an error or messages, never a panic, never unbounded memory.
        #[test]
        fn hostile_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.next::<Up>() {}
        }

        /// The short way to encode output gives the same bytes as the long one.
        #[test]
        fn output_is_encoded_as_any_message(id in "[a-z]{0,63}", stream in prop::sample::select(vec![Stream::Unspecified, Stream::Stdout, Stream::Stderr]), offset in any::<u64>(), data in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut short = Vec::new();
            encode_data(&mut short, &id, stream, offset, &data).unwrap();
            let long = encode(&Up { kind: Some(UpKind::Data(Data { command_id: id, stream: stream as i32, offset, data })) }).unwrap();
            prop_assert_eq!(short, long);
        }
    }

    #[test]
    fn longest_output_fits_a_frame() {
        let mut frame = Vec::new();
        encode_data(
            &mut frame,
            &"x".repeat(63),
            Stream::Stdout,
            u64::MAX,
            &vec![1; MAX_DATA],
        )
        .unwrap();
        let mut decoder = Decoder::default();
        decoder.push(&frame);
        assert!(decoder.next::<Up>().unwrap().is_some());
    }
}
