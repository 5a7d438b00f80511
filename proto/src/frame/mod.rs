//! Frames between the agent and `cloche-init` (design: guest.md).
//!
//! ```text
//!   agent ── Down frames ──► holder (PID 1 of the container)
//!         ◄── Up frames ────
//! ```
//!
//! A frame on the wire is a little-endian `u32` length, then that many bytes: one protobuf message, [`Down`] or [`Up`].
//! [`codec`] does the framing; it bounds every length before it allocates.
//!
//! **Epochs.** A channel carries nothing that counts before its `Hello`. The agent opens one with 16 random bytes and the
//! offsets up to which it holds each stream. The holder, on a [`Hello`], drops the half-written frame of the old epoch, writes
//! those 16 bytes bare as a marker, then a [`HelloAck`] frame, then every stream again from the offset named. The agent throws
//! away all that it reads before the marker ([`codec::Decoder::seek`]), so it does not matter where in a frame the old epoch
//! broke off. A holder begins with an empty parser on every new pair of pipes. So neither a killed agent nor a restored
//! snapshot can lose or double a byte.
//!
//! **Levels, not edges.** A [`Report`] is a session's whole state and replaces the one before; reading it twice, or missing
//! all but the last, changes nothing. [`Create`] is get-or-create by `command_id`.
//!
//! **Streams.** Offsets count bytes from the session's start. The holder keeps what it has read from the command until the
//! agent acknowledges it (bounded by [`MAX_STREAM_BUFFER`]; then it stops reading, so the command blocks). The agent sends
//! stdin at the offset that the last report named, at most [`MAX_STREAM_BUFFER`] ahead of it; what does not fit or does
//! not join on is dropped, and the next report tells so.
//!
//! Everything in an [`Up`] frame was written by the sandbox: hostile until checked.

pub mod codec;
mod message;

pub use message::*;

/// Version of this protocol that this build speaks. An agent speaks every older one, since restored sandboxes keep their init.
pub const VERSION: u32 = 1;
/// Longest encoded message, in bytes, without its length prefix. Only [`Create`] may come near it.
pub const MAX_FRAME: usize = 256 * 1024;
/// Longest `data` of one [`Data`] or [`Stdin`] frame, in bytes.
pub const MAX_DATA: usize = 64 * 1024;
/// Sessions that one sandbox may hold at once, ended ones that the agent has not forgotten yet included.
pub const MAX_SESSIONS: usize = 256;
/// Bytes that the holder keeps of one stream until they are acknowledged, and of stdin until the command reads them.
pub const MAX_STREAM_BUFFER: usize = 1024 * 1024;
/// Longest `command_id`, in bytes. It holds only `A-Z a-z 0-9 . _ -` and begins with a letter or digit.
pub const MAX_COMMAND_ID: usize = 63;
/// Longest [`Exit::message`], in bytes: with it a [`HelloAck`] of [`MAX_SESSIONS`] reports fits into a frame.
pub const MAX_MESSAGE: usize = 512;
/// Numeric user and group that `cloche-init bridge` is to be run as. No session's user is kept from having it: what guards the
/// holder's socket is that no session's mount namespace shows it.
pub const BRIDGE_USER: u32 = 0x7fff_fff0;
/// The session of the sandbox's own command.
pub const MAIN_SESSION: &str = "main";
/// The same, as it ran before the sandbox was stopped last.
pub const MAIN_BEFORE: &str = "main-previous";
/// Bytes in the nonce of a [`Hello`].
pub const NONCE: usize = 16;

/// Whether `id` may name a session: 1 to [`MAX_COMMAND_ID`] of `A-Z a-z 0-9 . _ -`, the first a letter or digit.
pub fn is_command_id(id: &str) -> bool {
    id.len() <= MAX_COMMAND_ID
        && id
            .bytes()
            .next()
            .is_some_and(|first| first.is_ascii_alphanumeric())
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}
