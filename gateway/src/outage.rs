//! An agent that is away, and how long its return is waited for.

use std::time::Duration;

use tokio::time::Instant;

/// How long a broken session is tried again.
const PATIENCE: Duration = Duration::from_mins(1);

/// A connection that broke and is tried again.
#[derive(Debug)]
pub(crate) struct Outage {
    since: Instant,
    pause: Duration,
}

impl Outage {
    /// It broke now.
    pub(crate) fn begin() -> Self {
        Self {
            since: Instant::now(),
            pause: Duration::ZERO,
        }
    }

    /// Whether to give up.
    pub(crate) fn is_too_long(&self) -> bool {
        self.since.elapsed() >= PATIENCE
    }

    /// How long it lasts, in whole seconds.
    pub(crate) fn seconds(&self) -> u64 {
        self.since.elapsed().as_secs()
    }

    /// How long to wait before the next attempt: not at all (one stream may break where the agent is well), then 20 ms, doubled up to
    /// 1 s.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).clamp(Duration::from_millis(20), Duration::from_secs(1));
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_tried_more_and_more_slowly() {
        let mut outage = Outage::begin();
        let pauses: Vec<_> = (0..9).map(|_| outage.pause().as_millis()).collect();
        assert_eq!(pauses, [0, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert!(!outage.is_too_long());
    }
}
