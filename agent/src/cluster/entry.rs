//! What the agent knows of one object, and what it does about it next. Pure.
//!
//! ```text
//!   New ──► Taken ──► Dropped ──► nothing left here: the finalizer goes
//!    └────► Refused ────────────► its end is told:      the finalizer goes
//! ```

use std::sync::Arc;
use std::time::Duration;

use cloche_crds::{Sandbox, SandboxStatus};
use serde_json::{Map, Value};

use super::desired::DesiredObject;
use super::due::{Pace, due};
use super::judge::OurNode;
use super::seen::Seen;
use super::{patch, status};
use crate::clock::Now;
use crate::source::{Accounted, SandboxKey};

/// How the agent holds an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Hold {
    /// Nothing of it is here, and nothing was decided.
    New {
        /// There was a record, which cannot be read any more.
        record_lost: bool,
    },
    /// It is desired.
    Taken(Arc<DesiredObject>),
    /// It ends without having begun here, and so says its status.
    Refused(Arc<SandboxStatus>),
    /// It is desired no more.
    Dropped {
        /// The first desired set without it.
        revision: u64,
    },
}

/// Whether the object is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// The watch has not listed all yet.
    Unknown,
    /// The watch has it.
    Listed,
    /// The watch has it no more, which is no proof: it is asked for.
    Absent {
        /// When, since boot.
        ask_at: Duration,
    },
    /// The watch has it, but something was refused that should not have been: it is asked for once.
    Doubted,
    /// The apiserver has said that it is gone.
    Gone,
}

/// One object.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Its name.
    pub key: SandboxKey,
    /// Its UID.
    pub uid: String,
    /// As it was seen last.
    pub seen: Option<Arc<Seen>>,
    /// Whether it is there.
    pub presence: Presence,
    /// How it is held.
    pub hold: Hold,
    /// What its driver says, with the status to be told.
    pub posted: Option<Arc<Sandbox>>,
    /// Of its writes.
    pub pace: Pace,
    /// A request is under way.
    pub busy: bool,
    /// Requests that failed in a row.
    pub failures: u32,
    /// No request before this, since boot.
    pub not_before: Duration,
    /// The status that the apiserver answered to last.
    pub answered: Option<Answered>,
    /// Told in the log of it: why it is kept though it should not be so.
    pub kept: Option<&'static str>,
}

/// A status that the apiserver has taken or refused. While the object is as it was then, it is not written again: neither where a rule
/// forbids it, nor where a CRD that is older than this agent has taken something out of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answered {
    /// What was written.
    pub status: Map<String, Value>,
    /// Version of the object after that.
    pub version: Option<u64>,
}

/// What an entry is judged beside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around<'a> {
    /// Which Node this is, once that is known.
    pub ours: Option<&'a OurNode>,
    /// What the supervisor has.
    pub accounted: &'a Accounted,
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Request {
    /// Ask for the object, live.
    Ask,
    /// Write this status.
    Tell(Map<String, Value>),
    /// Take the finalizer off, by this patch.
    Release(Value),
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    /// Wait for something to happen.
    Wait,
    /// Look again then, since boot.
    At(Duration),
    /// This, now.
    Do(Request),
    /// It is of no concern any more.
    Forget,
}

impl Entry {
    /// An object that nothing is known of yet.
    pub(super) fn new(key: SandboxKey, uid: String, hold: Hold) -> Self {
        Self {
            key,
            uid,
            seen: None,
            presence: Presence::Unknown,
            hold,
            posted: None,
            pace: Pace::default(),
            busy: false,
            failures: 0,
            not_before: Duration::ZERO,
            answered: None,
            kept: None,
        }
    }

    /// Takes in how it was seen, unless that is older than what is known.
    pub(super) fn see(&mut self, seen: Seen) {
        if self
            .seen
            .as_ref()
            .is_none_or(|before| !seen.is_older_than(before))
        {
            self.seen = Some(Arc::new(seen));
        }
    }

    /// The apiserver has answered to this status, with what was seen last.
    pub(super) fn answer(&mut self, status: Map<String, Value>) {
        let version = self.seen.as_ref().and_then(|seen| seen.version);
        self.answered = Some(Answered { status, version });
    }

    /// Takes in what its driver says.
    pub(super) fn post(&mut self, posted: Arc<Sandbox>, now: Duration) {
        let phase = |object: &Sandbox| object.status.as_ref().map(|status| status.phase);
        if self.posted.as_deref().and_then(phase) != phase(&posted) {
            self.pace.in_phase_since = now;
        }
        self.posted = Some(posted);
    }

    /// Whether nothing of it is on this node.
    fn is_cleared(&self, accounted: &Accounted) -> bool {
        let undesired = match &self.hold {
            Hold::New { .. } | Hold::Refused(_) => true,
            Hold::Taken(_) => false,
            Hold::Dropped { revision } => accounted.revision >= *revision,
        };
        undesired && !accounted.driven.contains(&self.uid)
    }

    /// Whether it is ours, is being deleted, was desired at most until then, and nothing of it has ever been here: nobody but us tells its end.
    pub(super) fn was_never_here(&self, around: Around<'_>) -> bool {
        matches!(self.hold, Hold::Dropped { .. })
            && self.is_ours(around.ours)
            && self.is_cleared(around.accounted)
            && self.posted.is_none()
            && self.presence == Presence::Listed
            && self
                .seen
                .as_ref()
                .is_some_and(|seen| seen.deleting && seen.termination().is_none())
    }

    fn is_ours(&self, ours: Option<&OurNode>) -> bool {
        let seen = self.seen.as_ref().zip(ours);
        seen.is_some_and(|(seen, ours)| seen.is_bound_to(&ours.name, &ours.uid))
    }

    fn ours(&self) -> Option<&SandboxStatus> {
        match &self.hold {
            Hold::Refused(status) => Some(status),
            Hold::New { .. } | Hold::Taken(_) | Hold::Dropped { .. } => {
                self.posted.as_ref()?.status.as_ref()
            }
        }
    }

    /// Whether there is nothing more to tell of it.
    pub(super) fn is_settled(&self, ours: Option<&OurNode>) -> bool {
        let Some(seen) = &self.seen else {
            return self.presence == Presence::Gone;
        };
        let is_told = self.answered.as_ref().is_some_and(|answered| {
            answered.version == seen.version && answered.status.contains_key("termination")
        });
        self.presence == Presence::Gone
            || seen.termination().is_some()
            || is_told
            // Another Node's: who declares that Node lost tells its end.
            || (ours.is_some() && !self.is_ours(ours))
    }

    /// What to do next.
    pub(super) fn next(&self, around: Around<'_>, now: Now) -> Next {
        if self.busy {
            return Next::Wait;
        }
        let cleared = self.is_cleared(around.accounted);
        match self.presence {
            Presence::Gone | Presence::Absent { .. } if cleared => return Next::Forget,
            Presence::Gone => return Next::Wait,
            Presence::Absent { .. } | Presence::Doubted | Presence::Unknown | Presence::Listed => {}
        }
        let ask = match self.presence {
            Presence::Absent { ask_at } => Some((ask_at, Request::Ask)),
            Presence::Doubted => Some((Duration::ZERO, Request::Ask)),
            Presence::Unknown | Presence::Listed | Presence::Gone => None,
        };
        let tell = self.tell(around, now);
        let release = || {
            let seen = self.seen.as_ref().filter(|seen| seen.deleting)?;
            let patch = patch::release(seen)?;
            (cleared && self.is_ours(around.ours))
                .then_some((Duration::ZERO, Request::Release(patch)))
        };
        let request = match (ask, tell.or_else(release)) {
            (Some(ask), Some(other)) if ask.0 <= other.0 => Some(ask),
            (ask, None) => ask,
            (_, other) => other,
        };
        match request {
            None => Next::Wait,
            Some((at, request)) => {
                let at = at.max(self.not_before);
                if at <= now.boot {
                    Next::Do(request)
                } else {
                    Next::At(at)
                }
            }
        }
    }

    fn tell(&self, around: Around<'_>, now: Now) -> Option<(Duration, Request)> {
        let (seen, ours) = (self.seen.as_ref()?, self.ours()?);
        if seen.termination().is_some() || !self.is_ours(around.ours) {
            return None;
        }
        // Of plain words and numbers: that they cannot be written as JSON is not a case.
        let status = status::told(ours, seen, now.wall).ok()?;
        let answered = self.answered.as_ref();
        let is_answered = answered
            .is_some_and(|answered| answered.version == seen.version && answered.status == status);
        if status == seen.status || is_answered {
            return None;
        }
        let at = due(ours.phase, seen.word("phase"), self.pace);
        Some((at, Request::Tell(status)))
    }
}

#[cfg(test)]
mod tests;
