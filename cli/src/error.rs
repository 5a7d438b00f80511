//! What can go wrong, as the user reads it: one line that says what happened, to what, and what to do.

use std::io;
use std::path::PathBuf;

use crate::backend::Refusal;

/// Why a command of this program was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No `--standalone`.
    #[error(
        "no agent given: pass --standalone SOCKET or set CLOCHE_STANDALONE to the socket of `cloche-agent standalone`"
    )]
    NoAgent,
    /// The socket could not be connected to.
    #[error("cannot reach the agent at {}: {source}; {hint}", socket.display())]
    Connect {
        /// The agent's socket.
        socket: PathBuf,
        /// What to do.
        hint: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The connection was refused by the other side's HTTP/2.
    #[error("cannot talk to {}: {message}; is it the socket of `cloche-agent standalone`?", socket.display())]
    Protocol {
        /// The agent's socket.
        socket: PathBuf,
        /// Why.
        message: String,
    },
    /// The agent said no.
    #[error("cannot {operation}: {refusal}")]
    Refused {
        /// What was asked for: verb and object.
        operation: String,
        /// What the agent said.
        refusal: Refusal,
    },
    /// The agent went away and did not come back.
    #[error("cannot {operation}: the agent did not answer for {seconds} s ({last}); {left}")]
    Lost {
        /// What was being done: verb and object.
        operation: String,
        /// How long it was tried.
        seconds: u64,
        /// How the last attempt ended.
        last: String,
        /// What became of the command, and how to get back to it.
        left: String,
    },
    /// The agent broke the protocol; bytes would be missing or doubled.
    #[error("cannot {operation}: the agent answered wrongly: {message}")]
    Wrong {
        /// What was being done: verb and object.
        operation: String,
        /// What is wrong.
        message: String,
    },
    /// Arguments that fit their syntax and make no sense.
    #[error("{0}")]
    Usage(String),
    /// A sandbox ended, or is not there, and so what was asked for cannot come.
    #[error("{0}")]
    Unreachable(String),
    /// `wait` waited long enough.
    #[error("timed out after {seconds} s waiting for {state} of sandbox {name}; it is now {now}")]
    TimedOut {
        /// Name of the sandbox.
        name: String,
        /// What was waited for.
        state: String,
        /// How long.
        seconds: u64,
        /// What is so instead.
        now: String,
    },
    /// An own stream could not be written.
    #[error("cannot write to {stream}: {source}")]
    Write {
        /// `standard output` or `standard error`.
        stream: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The terminal could not be set up.
    #[error("cannot {operation} the terminal: {source}")]
    Terminal {
        /// What was tried.
        operation: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Randomness for a name could not be read.
    #[error("cannot read /dev/urandom: {0}")]
    Random(#[source] io::Error),
    /// The machine gave no runtime.
    #[error("cannot start: {0}")]
    Runtime(#[source] io::Error),
    /// Some of several sandboxes failed; each was told.
    #[error("{failed} of {all} sandboxes could not be deleted")]
    Some {
        /// How many.
        failed: usize,
        /// Of how many.
        all: usize,
    },
}

impl Error {
    /// Whether nobody reads standard output any more: not worth a message.
    pub(crate) fn is_closed_output(&self) -> bool {
        matches!(self, Self::Write { stream: "standard output", source } if source.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Why writing to standard output failed.
    pub(crate) fn stdout(source: io::Error) -> Self {
        Self::Write {
            stream: "standard output",
            source,
        }
    }

    /// Whether the agent said that there is no such thing.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { refusal, .. } if refusal.is_not_found())
    }
}

/// Prints one line on standard error.
pub(crate) fn print(problem: &dyn std::fmt::Display) {
    use std::io::Write as _;
    // Nothing can be told to a closed terminal.
    drop(writeln!(io::stderr(), "error: {problem}"));
}
