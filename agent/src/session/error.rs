//! Why a request about a session was refused.

use std::sync::Arc;

use cloche_proto::frame::{MAX_FRAME, MAX_SESSIONS};

use super::identity::{BadCommandId, CommandId};
use super::log::LogError;
use super::record::RecordError;
use super::stdin::StdinError;

/// A request about a session that could not be done.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The id is not allowed.
    #[error(transparent)]
    Id(#[from] BadCommandId),
    /// The sandbox runs as many commands as it may.
    #[error(
        "the sandbox already has {MAX_SESSIONS} commands that run or whose output is still open; end some first"
    )]
    TooMany,
    /// Command line and environment are too long.
    #[error(
        "command {id} takes {length} bytes with its environment; at most {MAX_FRAME} are allowed"
    )]
    TooLong {
        /// The session.
        id: CommandId,
        /// Its encoded length in bytes.
        length: usize,
    },
    /// Init cannot be talked to at present.
    #[error("the sandbox's init does not answer: {why}; retry")]
    Unavailable {
        /// What failed last.
        why: String,
    },
    /// There is no sandbox any more to do it in.
    #[error("the sandbox has ended: {reason}")]
    SandboxEnded {
        /// The sandbox's end reason.
        reason: String,
    },
    /// There is no such session.
    #[error("no command {id} in this sandbox: it was never run, or its record is no longer kept")]
    NotFound {
        /// The session asked for.
        id: CommandId,
    },
    /// Another command has the id.
    #[error(
        "command {id} exists, and is another command than the one asked for now: choose another id, or attach to it without a command"
    )]
    Another {
        /// The session asked for.
        id: CommandId,
    },
    /// The session is over.
    #[error("command {id} has ended")]
    Ended {
        /// The session.
        id: CommandId,
    },
    /// An ended session of this id is being removed at this moment.
    #[error("the record of the ended command {id} is being removed; retry, or take another id")]
    Removing {
        /// The session.
        id: CommandId,
    },
    /// Resize of a session that has no terminal.
    #[error("command {id} has no terminal")]
    NoTerminal {
        /// The session.
        id: CommandId,
    },
    /// Not a signal number.
    #[error("{signal} is not a signal; use 1 to 64")]
    BadSignal {
        /// The number given.
        signal: i32,
    },
    /// Its record could not be written; the command was not begun.
    #[error("command was not begun")]
    Record(#[source] Arc<RecordError>),
    /// Its output could not be read.
    #[error("output of the command cannot be read")]
    Log(#[from] LogError),
    /// Bytes for stdin were refused.
    #[error(transparent)]
    Stdin(#[from] StdinError),
    /// The directory of sessions could not be read.
    #[error("list sessions in {path}")]
    Directory {
        /// The directory.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The agent ends.
    #[error("the agent is shutting down; retry")]
    ShuttingDown,
}

impl From<RecordError> for SessionError {
    fn from(error: RecordError) -> Self {
        Self::Record(Arc::new(error))
    }
}
