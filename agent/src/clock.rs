//! The only place that reads clocks.
//!
//! Deadlines are kept in boot time (`CLOCK_BOOTTIME`: it goes on in suspend and does not jump with the wall clock) and shown in
//! wall time.

use std::time::Duration;

use jiff::Timestamp;
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
