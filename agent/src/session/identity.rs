//! Names: of a session, and of its output streams.

use std::fmt;
use std::path::Path;
use std::path::PathBuf;

use cloche_proto::frame;

/// A command id that was checked: 1 to 63 of `A-Z a-z 0-9 . _ -`, the first a letter or digit. So it is a safe file name too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(String);

impl CommandId {
    /// Checks `id`.
    pub fn parse(id: &str) -> Result<Self, BadCommandId> {
        if frame::is_command_id(id) {
            Ok(Self(id.to_owned()))
        } else {
            // What is refused may be of any length and hold anything: show no more than a name's worth of it.
            let shown = id.chars().take(frame::MAX_COMMAND_ID).collect::<String>();
            Err(BadCommandId(shown.escape_debug().to_string()))
        }
    }

    /// The session of the sandbox's own command.
    pub fn main() -> Self {
        Self(frame::MAIN_SESSION.to_owned())
    }

    /// The session of the same, as it ran before the sandbox was stopped last.
    pub fn main_before() -> Self {
        Self(frame::MAIN_BEFORE.to_owned())
    }

    /// Whether it is of the sandbox's own command: of no client's, and kept as long as the sandbox.
    pub fn is_own(&self) -> bool {
        [frame::MAIN_SESSION, frame::MAIN_BEFORE].contains(&self.as_str())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The session's directory below `sessions`.
    pub(super) fn directory(&self, sessions: &Path) -> PathBuf {
        sessions.join(&self.0)
    }
}

impl fmt::Display for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for CommandId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for CommandId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A command id that breaks the rules.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "command id \"{0}\" is not allowed: use 1 to {max} of A-Z a-z 0-9 . _ -, beginning with a letter or digit",
    max = frame::MAX_COMMAND_ID
)]
pub struct BadCommandId(String);

/// An output stream of a command. With a terminal all output is [`Stream::Stdout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// Standard output, or the terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// Both, in the order of [`Self::index`].
    pub const ALL: [Self; 2] = [Self::Stdout, Self::Stderr];

    /// The place of this stream in an array of both.
    pub fn index(self) -> usize {
        match self {
            Self::Stdout => 0,
            Self::Stderr => 1,
        }
    }

    /// The name of its file in the session's directory.
    pub(super) fn file_name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    /// As a frame names it.
    pub(super) fn wire(self) -> i32 {
        match self {
            Self::Stdout => frame::Stream::Stdout as i32,
            Self::Stderr => frame::Stream::Stderr as i32,
        }
    }

    /// What a frame names, if it is a stream.
    pub(super) fn from_wire(stream: i32) -> Option<Self> {
        match frame::Stream::try_from(stream) {
            Ok(frame::Stream::Stdout) => Some(Self::Stdout),
            Ok(frame::Stream::Stderr) => Some(Self::Stderr),
            Ok(frame::Stream::Unspecified) | Err(_) => None,
        }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file_name())
    }
}
