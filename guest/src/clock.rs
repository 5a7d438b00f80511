//! Time as the sessions' deadlines count it.

use nix::time::{ClockId, clock_gettime};

/// Milliseconds of the monotonic clock.
pub fn monotonic_ms() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        let millis = time.tv_sec().saturating_mul(1000) + time.tv_nsec() / 1_000_000;
        u64::try_from(millis).unwrap_or(0)
    })
}

/// The longest the loop waits while something has a deadline, in milliseconds.
pub const TICK: u64 = 250;

/// Time for which the sandbox ran. The monotonic clock counts a pause, and jumps in a restored fork by the time since the
/// capture. While something has a deadline the loop never waits longer than [`TICK`], so a much larger step is none of the
/// sandbox's running time, and of no step more counts than the loop would have waited: the agent knows to the millisecond how long a pause
/// was and keeps the deadline itself, so that this copy may be late, and is early by no more than [`TICK`] for each short pause. Without deadlines a pause passes for running time, which only a command's duration shows.
#[derive(Debug, Default)]
pub struct RunningTime {
    seen: Option<u64>,
    now: u64,
}

impl RunningTime {
    /// Running time in milliseconds, given the monotonic clock and whether the last wait was bounded by [`TICK`].
    pub fn advance(&mut self, monotonic: u64, bounded: bool) -> u64 {
        let step = monotonic.saturating_sub(self.seen.unwrap_or(monotonic));
        self.seen = Some(monotonic);
        self.now += match (bounded, step) {
            (true, step) if step > 2 * TICK => 0,
            (true, step) => step.min(TICK),
            (false, step) => step,
        };
        self.now
    }

    /// The sandbox was restored: the step to the next reading is none of its time.
    pub fn rebase(&mut self) {
        self.seen = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_do_not_count_and_steps_do() {
        let mut time = RunningTime::default();
        assert_eq!(time.advance(5000, true), 0);
        assert_eq!(time.advance(5200, true), 200);
        // A day's pause, then a clock that went back, then a short pause.
        assert_eq!(time.advance(86_405_200, true), 200);
        assert_eq!(time.advance(10, true), 200);
        assert_eq!(time.advance(20, true), 210);
        assert_eq!(time.advance(20 + 2 * TICK, true), 210 + TICK);
    }

    #[test]
    fn long_waits_count_unless_the_sandbox_was_restored() {
        let mut time = RunningTime::default();
        time.advance(1000, false);
        assert_eq!(time.advance(61_000, false), 60_000);
        time.rebase();
        assert_eq!(time.advance(999_000, false), 60_000);
    }
}
