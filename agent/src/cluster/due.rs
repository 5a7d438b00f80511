//! When a status is written. Pure.
//!
//! A sandbox costs two writes in a whole normal life: one at Running, one at the end. A start that takes longer than [`SLOW`] is told of
//! once, then at most once in [`PERIOD`]; so is whatever else changes while it runs, or while it takes long to end. Pauses and their ends are
//! told at most once in [`TURN`].

use std::time::Duration;

use cloche_crds::Phase;

/// A start that takes longer is told of.
pub(super) const SLOW: Duration = Duration::from_secs(1);
/// Least time between two writes that tell of no first Running and no end.
pub(super) const PERIOD: Duration = Duration::from_secs(10);

/// Least time between two writes of which one tells that it is paused and the other that it goes on.
const TURN: Duration = Duration::from_secs(2);

/// What is known of the writes of one object. Times since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pace {
    /// Since when what is to be told has its phase.
    pub in_phase_since: Duration,
    /// When it was last written.
    pub written_at: Option<Duration>,
}

/// When to write a status of phase `ours`, which differs from what stands there with the phase `theirs`.
pub(super) fn due(ours: Phase, theirs: &str, pace: Pace) -> Duration {
    let after = |least| {
        pace.written_at
            .map_or(Duration::ZERO, |at| at.saturating_add(least))
    };
    let spaced = after(PERIOD);
    match ours {
        // There and back it may go as often as somebody comes and goes.
        Phase::Running | Phase::Paused | Phase::Stopped
            if is_of(theirs, &[Phase::Running, Phase::Paused, Phase::Stopped]) =>
        {
            let least = if theirs == ours.as_str() {
                PERIOD
            } else {
                TURN
            };
            after(least)
        }
        Phase::Running
        | Phase::Paused
        | Phase::Stopped
        | Phase::Succeeded
        | Phase::Failed
        | Phase::Ended => Duration::ZERO,
        // It takes room again, which whoever binds others has to know.
        Phase::Starting if theirs == Phase::Stopped.as_str() => Duration::ZERO,
        Phase::Pending | Phase::Starting | Phase::Unknown => {
            pace.in_phase_since.saturating_add(SLOW).max(spaced)
        }
        Phase::Terminating => pace.in_phase_since.saturating_add(PERIOD).max(spaced),
    }
}

fn is_of(phase: &str, any: &[Phase]) -> bool {
    any.iter().any(|one| one.as_str() == phase)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The writes of a life that is told as (second, phase), in seconds.
    fn writes(life: &[(u64, Phase)], until: u64) -> Vec<u64> {
        let mut pace = Pace::default();
        let (mut theirs, mut at) = (String::new(), 0);
        let mut written = Vec::new();
        for now in 0..until {
            let index = life.iter().rposition(|(from, _)| *from <= now).unwrap();
            let ours = life[index].1;
            pace.in_phase_since = seconds(life[index].0);
            // Something changes in each second, but nothing after the end.
            let is_over = theirs == ours.as_str() && ours == Phase::Failed;
            if !is_over && due(ours, &theirs, pace) <= seconds(now) {
                written.push(now);
                pace.written_at = Some(seconds(now));
                ours.as_str().clone_into(&mut theirs);
                at = now;
            }
        }
        assert!(at < until);
        written
    }

    #[test]
    fn an_end_and_the_first_running_wait_for_nothing() {
        let pace = Pace {
            in_phase_since: seconds(5),
            written_at: Some(seconds(5)),
        };
        assert_eq!(due(Phase::Running, "Starting", pace), Duration::ZERO);
        assert_eq!(due(Phase::Failed, "Running", pace), Duration::ZERO);
        assert_eq!(due(Phase::Running, "Running", pace), seconds(15));
        assert_eq!(due(Phase::Paused, "Running", pace), seconds(7));
        assert_eq!(due(Phase::Running, "Paused", pace), seconds(7));
    }

    #[test]
    fn a_quick_life_costs_two_writes() {
        let life = [
            (0, Phase::Starting),
            (0, Phase::Running),
            (5, Phase::Failed),
        ];
        assert_eq!(writes(&life, 60), [0, 5]);
        let life = [
            (0, Phase::Starting),
            (0, Phase::Running),
            (3, Phase::Terminating),
            (8, Phase::Failed),
        ];
        assert_eq!(writes(&life, 60), [0, 8]);
    }

    #[test]
    fn a_slow_start_is_told_after_a_second_and_then_now_and_then() {
        let life = [
            (0, Phase::Starting),
            (25, Phase::Running),
            (26, Phase::Failed),
        ];
        assert_eq!(writes(&life, 60), [1, 11, 21, 25, 26]);
    }

    #[test]
    fn an_end_that_takes_long_is_told() {
        let life = [
            (0, Phase::Running),
            (30, Phase::Terminating),
            (45, Phase::Failed),
        ];
        assert_eq!(writes(&life, 60), [0, 10, 20, 40, 45]);
    }
}
