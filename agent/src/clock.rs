//! The only place that reads clocks.
//!
//! Deadlines are kept in boot time (`CLOCK_BOOTTIME`: it goes on in suspend and does not jump with the wall clock) and shown in
//! wall time.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Both clocks, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// Since the machine's boot.
    pub boot: Duration,
    /// The wall clock.
    pub wall: Timestamp,
}

impl Now {
    /// The moment this long before, the machine's boot at the earliest.
    #[must_use]
    pub fn before(self, ago: Duration) -> Self {
        let ago = ago.min(self.boot);
        Self {
            boot: self.boot.saturating_sub(ago),
            wall: shifted(self.wall, ago, Timestamp::checked_sub),
        }
    }

    /// The moment this long after.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Self {
            boot: self.boot.saturating_add(time),
            wall: shifted(self.wall, time, Timestamp::checked_add),
        }
    }

    /// The later of two.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        if other.boot > self.boot { other } else { self }
    }

    /// The earlier of two.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        if other.boot < self.boot { other } else { self }
    }
}

fn shifted(
    wall: Timestamp,
    by: Duration,
    shift: impl FnOnce(Timestamp, SignedDuration) -> Result<Timestamp, jiff::Error>,
) -> Timestamp {
    SignedDuration::try_from(by)
        .and_then(|by| shift(wall, by))
        .unwrap_or(wall)
}

/// Reads both clocks.
pub fn now() -> Now {
    Now {
        boot: boot_time(),
        wall: Timestamp::now(),
    }
}

/// Time since the machine's boot, suspend included.
pub fn boot_time() -> Duration {
    // CLOCK_BOOTTIME exists since Linux 2.6.39; the call has no other way to fail.
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map(Duration::from)
        .unwrap_or_default()
}

/// The kernel's identity of this boot: differs after every reboot. Source: `/proc/sys/kernel/random/boot_id`.
pub fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// Returns at this boot time; never where there is none. Wakes late by the time that the machine was suspended in between, and
/// then at once: callers look at the clock again.
pub async fn sleep_until(at: Option<Duration>) {
    match at {
        Some(at) => tokio::time::sleep(at.saturating_sub(boot_time())).await,
        None => std::future::pending().await,
    }
}
