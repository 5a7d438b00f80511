//! The only place that reads clocks.

use std::sync::OnceLock;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// Both clocks, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Since the operator's start, by `CLOCK_MONOTONIC`. Ages are kept in it: it stands still while the machine sleeps, and what was not
    /// watched does not count as silence.
    pub run: Duration,
    /// The wall clock: shown, and held against times that stand in objects, for those have to outlive an operator.
    pub wall: Timestamp,
}

/// Reads both clocks.
pub fn now() -> Now {
    Now {
        run: start().elapsed(),
        wall: Timestamp::now(),
    }
}

/// Returns at this time since the operator's start.
pub async fn sleep_until(run: Duration) {
    tokio::time::sleep_until(start() + run).await;
}

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}
