//! What the agent remembers of a sandbox: enough to go on after `kill -9` at any instruction.

use std::time::Duration;

use cloche_crds::{Effective, FailureDomain, Reason, Sandbox};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::values::Values;
use crate::cgroup::Limits;
use crate::clock::Now;
use crate::image::{Digest, ImageConfig};
use crate::instance::limits;
use crate::ledger::{Outlasts, Record};
use crate::snapshot::Saved;

/// A sandbox's record in the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxRecord {
    /// The object's UID: names the record's folder. A re-created object has another.
    pub uid: String,
    /// The object's namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The newest generation of the spec that was taken over.
    pub generation: i64,
    /// Name of the manifest that it was taken over from; absent where it is an object of an apiserver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// The object as it was applied, without status.
    pub object: Sandbox,
    /// Its spec, validated and with its defaults.
    pub spec: Effective,
    /// The boot in which `bound`, and every instance named here, came to be.
    pub boot_id: String,
    /// When the agent took it on. The start timeout counts from here.
    pub bound: Now,
    /// How long it was paused, in all, before it runs as it does now.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub paused: Duration,
    /// What its environment takes from Secrets and `ConfigMap`s, from when it was had to its end: every command of it gets the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Values>,
    /// What it waits for before anything else, while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacks: Option<Lack>,
    /// The image, once it is on the node. It stays pinned until the sandbox is gone.
    pub image: Option<ImageUse>,
    /// What it is brought back from: from the moment at which its files are kept, to that at which it runs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
    /// Why it does not run, or did not before it was brought back: from when its stop is begun until it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<PausedBy>,
    /// When it was begun to be brought back, while it is. Its start timeout counts from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub woken: Option<Now>,
    /// How often in a row it could not be brought back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// Bytes of memory that its sentry needs for the names of the files that it was brought back with, beside what any needs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub overhead: u64,
    /// What it used before it was stopped last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Usage>,
    /// How long it had lived when this boot of the node began, or was seen first in it; by the wall clock, which alone counts over a reboot.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub aged: Duration,
    /// Where it stands.
    pub state: State,
    /// The object is gone or going: once ended, everything of it is removed.
    pub deleted: bool,
}

impl Record for SandboxRecord {
    const KIND: &'static str = "sandbox";
    const VERSION: u32 = 1;

    /// After a reboot what had not been asked for begins anew, with or without its record; and what had been is lost, whether it is
    /// known to have run or not.
    fn outlasts(&self) -> Outlasts {
        match self.state {
            State::Bound | State::Claimed { .. } if !self.deleted && self.kept.is_none() => {
                Outlasts::Agent
            }
            // The one before would bring back files that are gone by then.
            State::Running { .. } | State::Halting { .. } | State::Keeping { .. }
                if self.used.is_some() =>
            {
                Outlasts::PowerCut
            }
            State::Running { .. } | State::Halting { .. } | State::Keeping { .. } => {
                Outlasts::AgentOrTheOneBefore
            }
            State::Bound
            | State::Claimed { .. }
            | State::MainRequested { .. }
            | State::Discarding { .. }
            | State::Stopped { .. }
            | State::Stopping { .. }
            | State::Ending { .. }
            | State::Ended { .. } => Outlasts::PowerCut,
        }
    }
}

impl SandboxRecord {
    /// When it first ran, while it has not ended.
    pub fn started(&self) -> Option<Now> {
        self.state
            .started()
            .or_else(|| Some(self.kept.as_ref()?.started))
    }

    /// Boot time at which its time to live is over, if it has one and has begun to live.
    pub fn expires(&self) -> Option<Duration> {
        let left = self.spec.ttl?.saturating_sub(self.aged);
        Some(self.started()?.boot.saturating_add(left))
    }

    /// The limits of its group.
    pub fn limits(&self) -> Limits {
        limits::of_sandbox(&self.spec.resources, self.overhead)
    }

    /// Since when it is being started.
    pub fn begun(&self) -> Now {
        self.woken.unwrap_or(self.bound)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

/// What a stopped sandbox is brought back from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    /// Its files, in the node's store.
    pub files: Saved,
    /// When it first ran.
    pub started: Now,
    /// When its stop was begun.
    pub since: Now,
}

/// Something that a sandbox cannot start without, and that cannot be had for now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lack {
    /// What for.
    pub what: Lacking,
    /// Why it cannot be had, and what is missing: for a person.
    pub why: String,
}

/// What a lacking thing is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lacking {
    /// The environment: keys of Secrets and `ConfigMap`s.
    Environment,
    /// The image: Secrets with users of its registry.
    Logins,
}

/// The image that a sandbox runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageUse {
    /// Digest of its manifest.
    pub digest: Digest,
    /// What it says of how to run it.
    pub config: ImageConfig,
}

/// Where a sandbox stands. Each is written before the effect that it announces.
///
/// ```text
///   Bound ──► Claimed ──► MainRequested ──► Running ──► Stopping ──► Ending ──► Ended
///     └──────────┴──────────────┴──────────────┴───────────────────────┘
///
///   Running: ──► Pausing ──► Paused ──► Resuming ──► (goes on)
///                   └────────────────────┘
///
///   Running ──► Halting ──► Keeping ──► Discarding ──► Stopped ──► Bound (with `kept`) ──► ...
///      ▲  └───────────────────┘ │                         ▲          │
///      └────────────────────────┘                         └──────────┘
/// ```
/// `Halting`: where there is a command to be told. `Keeping` is given up where it is to run again and no command was told to end. What
/// cannot be brought back is `Stopped` again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "at")]
pub enum State {
    /// Taken on: its image is being fetched, then an instance claimed.
    Bound,
    /// `instance` is its own; its container may or may not have been started.
    Claimed {
        /// Id of the instance.
        instance: String,
    },
    /// Its container runs, and its command was asked for: it may or may not run.
    MainRequested {
        /// Id of the instance.
        instance: String,
    },
    /// Its command runs, or it idles and serves exec; or all of it is paused.
    Running {
        /// Id of the instance.
        instance: String,
        /// When it first got here. `ttlSeconds` counts from here.
        started: Now,
        /// Where it is not to run, or is still on its way back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pause: Option<Pause>,
    },
    /// It is to be stopped: its command was told to end (SIGTERM) and has until `kill_at`.
    Halting {
        /// Id of the instance.
        instance: String,
        /// When it first ran.
        started: Now,
        /// When that was begun.
        since: Now,
        /// Boot time from which on its command is not waited for any more.
        kill_at: Duration,
        /// Since when it stood still, or may have: it must go on to be told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        paused_since: Option<Now>,
    },
    /// Its processes stand still, or are about to, and its files are being kept.
    Keeping {
        /// Id of the instance.
        instance: String,
        /// When it first ran.
        started: Now,
        /// When its stop was begun: files that are kept for another mean nothing.
        since: Now,
        /// Its command was told to end: there is no way back without a new start of it.
        was_told: bool,
    },
    /// Its files are kept, or it has none that are not: what else there is of it is being taken down.
    Discarding {
        /// Id of the instance, if it has one.
        instance: Option<String>,
        /// Why it could not be brought back, where that was tried.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
    },
    /// Nothing of it runs, and it holds nothing but its files.
    Stopped {
        /// Why it could not be brought back, where that was tried.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
        /// Boot time at which that is tried again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        again: Option<Duration>,
    },
    /// It is to end: its command was told to (SIGTERM) and has until `kill_at`.
    Stopping {
        /// Id of the instance.
        instance: String,
        /// When it first ran.
        started: Now,
        /// Why: stands from here on, whatever the command does.
        because: Cause,
        /// Boot time at which it is killed.
        kill_at: Duration,
        /// Since when it stood still, or may have: it must go on to be told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        paused_since: Option<Now>,
    },
    /// It has ended; what is left of it is being taken down.
    Ending {
        /// Id of the instance, if it has one.
        instance: Option<String>,
        /// How it ended.
        termination: Termination,
    },
    /// Nothing of it runs or is held any more.
    Ended {
        /// How it ended.
        termination: Termination,
    },
}

/// A pause of a sandbox that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    /// Why.
    pub by: PausedBy,
    /// When it was begun.
    pub since: Now,
    /// How far it is. Each is written before the effect that it announces.
    pub stage: Stage,
    /// How often it changed its direction: what is told of an earlier turn means nothing.
    #[serde(default)]
    pub turn: u32,
}

/// Why a sandbox is paused or stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PausedBy {
    /// Its spec wants it (`spec.lifecycle.desiredState`).
    Spec,
    /// It was idle. Use of it ends that.
    Idleness,
}

/// How far a pause is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// Its processes are being stopped.
    Pausing,
    /// All of them stand still.
    Paused,
    /// They are being let go on.
    Resuming,
}

impl State {
    /// The pause of one that runs, whatever its stage.
    pub fn pause(&self) -> Option<&Pause> {
        match self {
            Self::Running { pause, .. } => pause.as_ref(),
            Self::Bound
            | Self::Claimed { .. }
            | Self::MainRequested { .. }
            | Self::Halting { .. }
            | Self::Keeping { .. }
            | Self::Discarding { .. }
            | Self::Stopped { .. }
            | Self::Stopping { .. }
            | Self::Ending { .. }
            | Self::Ended { .. } => None,
        }
    }

    /// Since when its processes stand still, or may.
    pub fn paused_since(&self) -> Option<Now> {
        match self {
            Self::Halting { paused_since, .. } | Self::Stopping { paused_since, .. } => {
                *paused_since
            }
            Self::Keeping { since, .. } => Some(*since),
            Self::Running { .. }
            | Self::Bound
            | Self::Claimed { .. }
            | Self::MainRequested { .. }
            | Self::Discarding { .. }
            | Self::Stopped { .. }
            | Self::Ending { .. }
            | Self::Ended { .. } => self.pause().map(|pause| pause.since),
        }
    }

    /// Whether its processes may stand still, so that nothing can be asked of them.
    pub fn may_be_paused(&self) -> bool {
        self.paused_since().is_some()
    }

    /// The instance that it claims.
    pub fn instance(&self) -> Option<&str> {
        match self {
            Self::Bound | Self::Stopped { .. } | Self::Ended { .. } => None,
            Self::Claimed { instance }
            | Self::MainRequested { instance }
            | Self::Running { instance, .. }
            | Self::Halting { instance, .. }
            | Self::Keeping { instance, .. }
            | Self::Stopping { instance, .. } => Some(instance),
            Self::Discarding { instance, .. } | Self::Ending { instance, .. } => {
                instance.as_deref()
            }
        }
    }

    /// When it first ran, where the state tells that.
    fn started(&self) -> Option<Now> {
        match self {
            Self::Running { started, .. }
            | Self::Halting { started, .. }
            | Self::Keeping { started, .. }
            | Self::Stopping { started, .. } => Some(*started),
            Self::Bound
            | Self::Claimed { .. }
            | Self::MainRequested { .. }
            | Self::Discarding { .. }
            | Self::Stopped { .. }
            | Self::Ending { .. }
            | Self::Ended { .. } => None,
        }
    }

    /// How it ended, once it has.
    pub fn termination(&self) -> Option<&Termination> {
        match self {
            Self::Ending { termination, .. } | Self::Ended { termination } => Some(termination),
            Self::Bound
            | Self::Claimed { .. }
            | Self::MainRequested { .. }
            | Self::Running { .. }
            | Self::Halting { .. }
            | Self::Keeping { .. }
            | Self::Discarding { .. }
            | Self::Stopped { .. }
            | Self::Stopping { .. } => None,
        }
    }

    /// Its name, for logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bound => "Bound",
            Self::Claimed { .. } => "Claimed",
            Self::MainRequested { .. } => "MainRequested",
            Self::Running { pause: None, .. } => "Running",
            Self::Running {
                pause: Some(pause), ..
            } => match pause.stage {
                Stage::Pausing => "Pausing",
                Stage::Paused => "Paused",
                Stage::Resuming => "Resuming",
            },
            Self::Halting { .. } => "Halting",
            Self::Keeping { .. } => "Keeping",
            Self::Discarding { .. } => "Discarding",
            Self::Stopped { .. } => "Stopped",
            Self::Stopping { .. } => "Stopping",
            Self::Ending { .. } => "Ending",
            Self::Ended { .. } => "Ended",
        }
    }
}

/// Why a sandbox ends, with what is known of its command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// The reason.
    pub reason: Reason,
    /// Who is at fault.
    pub domain: FailureDomain,
    /// One line for a person: what happened, to what, and what to do.
    pub message: String,
    /// Exit code of its command, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended its command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

impl Cause {
    /// A cause without an exit code.
    pub fn new(reason: Reason, domain: FailureDomain, message: impl Into<String>) -> Self {
        Self {
            reason,
            domain,
            message: message.into(),
            exit_code: None,
            signal: None,
        }
    }
}

/// How a sandbox ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Termination {
    /// Why. The first cause wins.
    #[serde(flatten)]
    pub cause: Cause,
    /// When it first ran; absent if it never did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Timestamp,
    /// What it used; known once it has been taken down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

impl Termination {
    /// When it ended, and never before it ran: the wall clock may have been set back meanwhile, and a reboot ends what ran at a time that
    /// nobody has seen.
    pub fn ended_at(&self) -> Timestamp {
        self.started_at
            .map_or(self.finished_at, |started| started.max(self.finished_at))
    }
}

impl Usage {
    /// What two lives of one sandbox used: the greater of the peaks, the sum of the time.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let time = self.cpu_usec.zip(other.cpu_usec);
        Self {
            peak_memory: self.peak_memory.max(other.peak_memory),
            cpu_usec: time.map(|(one, two)| one.saturating_add(two)),
            written: self.written.max(other.written),
        }
    }
}

/// What a sandbox used over its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// The most anonymous and shared memory seen in use, in bytes, sentry included; absent where it was never looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
    /// CPU time in microseconds, sentry included; absent where its counters were gone before they could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_usec: Option<u64>,
    /// The most that its writable layer was seen to hold, in bytes; absent where it was never looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<u64>,
}
