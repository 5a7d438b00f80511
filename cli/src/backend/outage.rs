//! How long, and how often, what broke is tried again.

use std::time::Duration;

use tokio::time::Instant;

/// How long a broken connection is tried again.
const PATIENCE: Duration = Duration::from_mins(1);

/// How long somebody who was never reached is waited for.
const ABSENCE: Duration = Duration::from_secs(5);

/// How long a broken connection is not worth a word.
const SILENCE: Duration = Duration::from_secs(1);

/// A connection that broke and is tried again.
#[derive(Debug)]
pub(crate) struct Outage {
    since: Instant,
    pause: Duration,
    told: bool,
}

impl Outage {
    /// It broke now.
    pub(crate) fn begin() -> Self {
        Self {
            since: Instant::now(),
            pause: Duration::ZERO,
            told: false,
        }
    }

    /// Whether to give up.
    pub(crate) fn is_too_long(&self) -> bool {
        self.since.elapsed() >= PATIENCE
    }

    /// Whether to give up somebody who was never reached.
    pub(crate) fn is_an_absence(&self) -> bool {
        self.since.elapsed() >= ABSENCE
    }

    /// Whether to tell the user, once: a restart of an agent takes less.
    pub(crate) fn is_worth_a_word(&mut self) -> bool {
        let now = !self.told && self.since.elapsed() >= SILENCE;
        self.told |= now;
        now
    }

    /// How long it lasts, in whole seconds.
    pub(crate) fn seconds(&self) -> u64 {
        self.since.elapsed().as_secs()
    }

    /// How long to wait before the next attempt: not at all (one stream may break where the agent is well), then 20 ms,
    /// doubled up to 1 s.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).clamp(Duration::from_millis(20), Duration::from_secs(1));
        pause
    }
}
