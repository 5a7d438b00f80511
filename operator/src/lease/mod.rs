//! Which replica acts: who holds the Lease `cloche-operator`. Pure; [`hold`] has the effects.
//!
//! All replicas watch, one acts. Times are those of this process: a Lease that another renews is only compared with what it was, never
//! with our clock. Whoever holds it stops before others may take it, and stopping is ending the process.

mod hold;

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;

pub use hold::{HoldError, Holder, hold};

/// The Lease's name.
pub const NAME: &str = "cloche-operator";
/// How long it holds without being renewed.
pub const HOLDS: Duration = Duration::from_secs(15);
/// How long its holder tries to renew it. Less than [`HOLDS`] by more than a request takes.
pub const TRIES: Duration = Duration::from_secs(10);
/// How often it is renewed, and looked at by those who stand by.
pub const EVERY: Duration = Duration::from_secs(2);

/// What the rest of the operator goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether this replica acts.
    pub leads: bool,
    /// Whether the apiserver answered when last asked.
    pub answers: bool,
}

/// What is known of the Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watching {
    /// What it said, and since when that is seen.
    seen: Option<(String, Duration)>,
    /// When it was last renewed by us, as far as we began to.
    renewed: Option<Duration>,
}

/// What is to be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make it, or take it: it is free, or its holder has not renewed it for as long as it holds.
    Take,
    /// Renew it.
    Renew,
    /// Another holds it.
    Wait,
    /// It was ours and is another's.
    Lost,
}

impl Watching {
    /// What to do, by what the Lease says.
    pub fn step(&mut self, lease: Option<&Lease>, me: &str, now: Duration) -> Step {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        let holder = spec
            .and_then(|spec| spec.holder_identity.as_deref())
            .unwrap_or_default();
        if holder == me {
            return Step::Renew;
        }
        if self.renewed.is_some() {
            return Step::Lost;
        }
        let Some(spec) = spec.filter(|_| !holder.is_empty()) else {
            return Step::Take;
        };
        let mark = format!("{holder} {:?}", spec.renew_time);
        let since = match &self.seen {
            Some((seen, since)) if *seen == mark => *since,
            Some(_) | None => {
                self.seen = Some((mark, now));
                now
            }
        };
        let holds = spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(HOLDS, Duration::from_secs);
        if now.saturating_sub(since) > holds {
            Step::Take
        } else {
            Step::Wait
        }
    }

    /// It was written; `began` is when that was begun.
    pub const fn renewed(&mut self, began: Duration) {
        self.renewed = Some(began);
    }

    /// Whether it is ours no more, for want of renewing.
    pub fn is_over(&self, now: Duration) -> bool {
        self.renewed
            .is_some_and(|renewed| now.saturating_sub(renewed) >= TRIES)
    }

    /// When it is over, if it is ours.
    pub fn over_at(&self) -> Option<Duration> {
        self.renewed.map(|renewed| renewed + TRIES)
    }
}

#[cfg(test)]
mod tests;
