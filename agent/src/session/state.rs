//! What a session and its channel look like from outside.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::identity::Stream;
use crate::clock::Now;

/// How a session ended. Final: once told it never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Outcome {
    /// The command itself ended, or never started (127, 126).
    Exited {
        /// 0 to 255; 128 + signal where a signal ended it.
        code: i32,
        /// The signal that ended it, else 0.
        signal: i32,
        /// Its timeout was over and its tree was killed.
        timed_out: bool,
        /// It never ran, and why: an exit code alone does not tell this from a command that ended with 126 or 127.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_started: Option<NotStarted>,
        /// One line for a person, where there is more to say.
        message: String,
        /// Milliseconds from start to end.
        duration_ms: u64,
    },
    /// The command ended because its sandbox did.
    SandboxEnded {
        /// The sandbox's end reason.
        reason: String,
    },
    /// The sandbox's init no longer knows a command that it had begun; how it ended cannot be told.
    Lost {
        /// One line for a person.
        message: String,
    },
}

/// Why a command never ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NotStarted {
    /// There is no such program: exit code 127.
    NotFound,
    /// It is there but cannot be run: mode, format, working directory or user. Exit code 126.
    NotExecutable,
    /// The sandbox could not set it up or had no room for it: exit code 126.
    Failed,
}

/// The end of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// How.
    pub outcome: Outcome,
    /// When it ended. What ended while no agent was connected is dated by the sandbox's own clock, never before the command was
    /// asked for and never in the future.
    pub at: Now,
    /// All stdout of the command itself lies before this offset. Background children may have written more.
    pub stdout: u64,
    /// All stderr of the command itself lies before this offset.
    pub stderr: u64,
    /// The end of its output is lost: the sandbox announced more than it sent, or ended before it could be stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
}

impl Ended {
    /// When the command began to run, as far as its end tells.
    pub fn began(&self) -> Now {
        match self.outcome {
            Outcome::Exited { duration_ms, .. } => {
                self.at.before(Duration::from_millis(duration_ms))
            }
            Outcome::SandboxEnded { .. } | Outcome::Lost { .. } => self.at,
        }
    }

    /// Where the command's own output in `stream` ends.
    pub fn offset(&self, stream: Stream) -> u64 {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }
}

/// How far a command's stdin is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StdinState {
    /// The agent took bytes over up to here: where the next ones must begin.
    pub accepted: u64,
    /// Bytes before this offset are safe with the sandbox. The rest is in the agent's memory alone: a client keeps it until
    /// then, and sends it again from here if the agent was restarted.
    pub taken: u64,
    /// No more is taken: it was ended, the command closed it or there is none.
    pub closed: bool,
}

/// What is known of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionState {
    /// The command's pid as the guest sees it; 0 before it started.
    pub pid: i32,
    /// When the command began to run; absent before, and where only its end was ever heard of.
    pub started: Option<Now>,
    /// Set once the session has ended.
    pub ended: Option<Arc<Ended>>,
    /// Its stdin. Nothing after a restart of the agent until the sandbox's init has answered.
    pub stdin: Option<StdinState>,
    /// The number of the [`Input`](super::Input) that counts: the one that took stdin over last.
    pub input: u64,
    /// Where each stream ended, once its last writer closed it; in the order of [`Stream::ALL`].
    pub closed: [Option<u64>; 2],
}

/// Whether the sandbox's init can be talked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// The first epoch has not begun yet.
    Connecting,
    /// Init answers.
    Up,
    /// It does not, though it was woken and bridged to; tried again with growing pauses. Shown as the
    /// reason `SessionsUnavailable` of the condition `Ready`.
    Unavailable {
        /// One line for a person.
        why: String,
    },
    /// All sessions died with init's spawner: the sandbox is to be ended.
    SpawnerKilled {
        /// What init said of it.
        message: String,
    },
    /// The sandbox has ended; output and ends are still served.
    Ended,
}

/// What came of setting a sandbox up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetUp {
    /// All was done.
    Done,
    /// It failed.
    Failed(String),
    /// It failed by a path of the spec that cannot be kept writable.
    BadPath(String),
}

/// The state of a sandbox's sessions as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The channel to init.
    pub link: Link,
    /// Set while output cannot be stored, with the reason: commands that print are blocked. Shown as the reason
    /// `LogStorageFull` of the condition `Ready`.
    pub storage_full: Option<String>,
    /// Init was told host name and the like: nothing until it has answered.
    pub setup: Option<SetUp>,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            link: Link::Connecting,
            storage_full: None,
            setup: None,
        }
    }
}

/// The pauses of a sandbox: while it stands still nothing can be asked of its init, and the time of its commands does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    /// It stands still now.
    pub is_paused: bool,
    /// How long it did before, in all.
    pub before: Duration,
}
