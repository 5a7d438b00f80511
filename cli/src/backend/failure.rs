//! Why something was not done, whoever was asked.

use crate::error::Error;
use crate::object::text::plain;

/// How a request, or a stream, failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nobody could be connected to. At a first attempt that is more likely a wrong address than a restart.
    Unconnected(Error),
    /// Who answered cannot reach the one behind, who may be back soon: a gateway that is being replaced.
    Absent(Error),
    /// The way broke, so that trying again makes sense. How, in a few words.
    Broken(String),
    /// The answer was no.
    Refused(Refusal),
    /// The answer was no answer. What is wrong with it.
    Wrong(String),
}

impl Failure {
    /// What the other side broke, in a few words; harmless to a terminal.
    pub(crate) fn broken(message: &str) -> Self {
        Self::Broken(plain(message))
    }

    /// As the end of `operation`, which is called by verb and object.
    pub(crate) fn error(self, operation: impl Into<String>) -> Error {
        let operation = operation.into();
        match self {
            Self::Unconnected(problem) | Self::Absent(problem) => problem,
            Self::Broken(message) => Error::Unanswered { operation, message },
            Self::Refused(refusal) => Error::Refused { operation, refusal },
            Self::Wrong(message) => Error::Wrong { operation, message },
        }
    }
}

/// A no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    not_found: bool,
    message: String,
}

impl Refusal {
    /// There is no such thing.
    pub(crate) fn not_found(message: &str) -> Self {
        Self {
            not_found: true,
            message: format!(
                "{} (`kubectl sandbox ls` shows the sandboxes that there are)",
                plain(message)
            ),
        }
    }

    /// Anything else.
    pub(crate) fn other(message: &str) -> Self {
        Self {
            not_found: false,
            message: plain(message),
        }
    }

    /// Several things are wrong, each of which gets a line.
    pub(crate) fn fields(message: &str, fields: &[String]) -> Self {
        let lines = fields.iter().map(|field| format!("\n  {}", plain(field)));
        Self {
            not_found: false,
            message: std::iter::once(format!("{}:", plain(message)))
                .chain(lines)
                .collect(),
        }
    }

    /// Whether there is no such thing.
    pub(crate) fn is_not_found(&self) -> bool {
        self.not_found
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.message)
    }
}
