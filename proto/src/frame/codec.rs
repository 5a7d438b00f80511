//! Framing: a little-endian `u32` length, then one message.
//!
//! [`Decoder`] takes bytes as they come and yields whole messages. It never holds more than one frame and four bytes, and
//! checks a length before it makes room for it.

use prost::Message;

use super::MAX_FRAME;

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
