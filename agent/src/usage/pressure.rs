//! What a sandbox is short of by its own limits. Pure.
//!
//! None of it ends a sandbox. It is told where it holds on, and taken back where it is clearly over: each word is a status of its own.

use crate::cgroup::Counters;

/// In hundredths of the limit, from where on there is pressure, and below which there is none.
const FULL: u64 = 95;
const FREE: u64 = 85;
/// In hundredths of the periods looked at, how many must have been cut short for the processor to be scarce, and below which it is not.
const SCARCE: u64 = 50;
const PLENTY: u64 = 10;
/// So many looks in a row.
const LOOKS: u32 = 3;

/// What a sandbox is short of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Of its writable layer nearly all is in use.
    pub disk: bool,
    /// It is held up by its limit of processor time, again and again.
    pub cpu: bool,
}

/// What was seen of one sandbox.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Barometer {
    now: Pressure,
    /// Looks in a row at which its processor time was scarce, or plenty where it counts as scarce.
    against: u32,
}

impl Barometer {
    /// What it is short of after one more look.
    pub(super) fn look(
        &mut self,
        limit: u64,
        disk: Option<u64>,
        before: &Counters,
        after: &Counters,
    ) -> Pressure {
        // Where it cannot be seen it is as it was.
        if let Some(disk) = disk {
            let edge = if self.now.disk { FREE } else { FULL };
            self.now.disk = u128::from(disk) * 100 >= u128::from(limit) * u128::from(edge);
        }
        let periods = after.cpu_periods.saturating_sub(before.cpu_periods);
        let throttled = after.cpu_throttled.saturating_sub(before.cpu_throttled);
        let is_against = if self.now.cpu {
            throttled * 100 < periods * PLENTY || periods == 0
        } else {
            periods > 0 && throttled * 100 >= periods * SCARCE
        };
        self.against = if is_against { self.against + 1 } else { 0 };
        if self.against >= LOOKS {
            self.now.cpu = !self.now.cpu;
            self.against = 0;
        }
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1000;

    fn at(periods: u64, throttled: u64) -> Counters {
        Counters {
            cpu_periods: periods,
            cpu_throttled: throttled,
            ..Counters::default()
        }
    }

    #[test]
    fn what_is_nearly_full_is_told_until_it_is_clearly_not() {
        let mut barometer = Barometer::default();
        let still = at(0, 0);
        let mut look = |disk| barometer.look(LIMIT, disk, &still, &still).disk;
        assert!(!look(Some(949)));
        assert!(look(Some(950)));
        assert!(look(Some(850)));
        assert!(look(None));
        assert!(!look(Some(849)));
        assert!(!look(None));
    }

    #[test]
    fn a_short_burst_is_no_want_of_processor_time() {
        let mut barometer = Barometer::default();
        let mut before = at(0, 0);
        let mut look = |periods, throttled| {
            let after = at(
                before.cpu_periods + periods,
                before.cpu_throttled + throttled,
            );
            let seen = barometer.look(LIMIT, None, &before, &after);
            before = after;
            seen.cpu
        };
        assert!(
            !look(50, 50) && !look(50, 25) && !look(50, 24),
            "one was not"
        );
        assert!(!look(50, 50) && !look(50, 50) && look(50, 50));
        assert!(look(50, 10) && look(50, 4) && look(0, 0) && !look(50, 0));
    }
}
