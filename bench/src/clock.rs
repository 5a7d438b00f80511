//! Times, in milliseconds.

use std::time::Duration;

use cloche_agent::clock::boot_time;

/// A stopwatch that runs from its making on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Duration);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(boot_time())
    }

    /// Milliseconds since its making.
    pub(crate) fn millis(self) -> f64 {
        boot_time().saturating_sub(self.0).as_secs_f64() * 1000.0
    }
}
