//! What each sandbox becomes when the agent starts: decided by its last record and by what the kernel holds. Pure.
//!
//! Before this is asked, every instance that no sandbox record claims has been killed, and `.` tells of each claimed one what
//! was found. The table is that of the crash contract in `docs/ARCHITECTURE.md`.

use std::time::Duration;

use cloche_crds::{FailureDomain, Reason};

use crate::clock::Now;
use crate::sandbox::{Cause, Kept, SandboxRecord, State, Termination};

/// What was found of the instance that a record claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It has no instance, or nothing of it is left.
    Nothing,
    /// Its sentry is the process that was recorded (pid, start time, group), and answers.
    Alive {
        /// Whether the sentry says that the container `main` runs.
        main_running: bool,
    },
    /// Its sentry is that process and does not answer for now: it may be stopped, or on its way to die, or the machine be slow. What there is
    /// to be known is told by its answer, or its death.
    Silent,
    /// Its sentry is gone, and this is why, by the counters of its group and its panic log.
    Dead(Cause),
    /// Its sentry is gone, but its command had ended before, and an earlier agent has written down how.
    MainEnded,
}

/// What is to be done with a sandbox.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Go on from this record; it is written first where it differs.
    Resume(SandboxRecord),
    /// Kill and remove the instance `discard`, then go on from this record.
    Restart {
        /// Id of the instance.
        discard: String,
        /// The record to go on from.
        record: SandboxRecord,
    },
}

/// Decides one sandbox.
pub fn decide(record: &SandboxRecord, found: &Found, boot_id: &str, now: Now) -> Decision {
    if record.boot_id != boot_id {
        let after = after_reboot(record, boot_id, now);
        // An ending takes its instance's record along; what begins anew no longer names it.
        return match (record.state.instance(), after.state.instance()) {
            (Some(instance), None) => Decision::Restart {
                discard: instance.to_owned(),
                record: after,
            },
            _ => Decision::Resume(after),
        };
    }
    let ended = |cause: Cause| Decision::Resume(ending(record, cause, now));
    match (&record.state, found) {
        // Nothing ran yet, or all that is left to do is to be done again: every step tolerates what is done already.
        (
            State::Bound
            | State::Discarding { .. }
            | State::Stopped { .. }
            | State::Ending { .. }
            | State::Ended { .. },
            _,
        )
        // Of an ended command the driver learns from its session.
        | (
            State::MainRequested { .. } | State::Running { .. } | State::Stopping { .. },
            Found::MainEnded,
        )
        | (
            State::MainRequested { .. }
            | State::Running { .. }
            | State::Halting { .. }
            | State::Keeping { .. }
            | State::Stopping { .. },
            Found::Alive { main_running: true } | Found::Silent,
        ) => Decision::Resume(record.clone()),

        // Not of what is brought back: its files may not all be there yet, and what its command had printed is not put aside.
        (State::Claimed { instance }, Found::Alive { main_running: true })
            if record.kept.is_none() =>
        {
            let state = State::MainRequested {
                instance: instance.clone(),
            };
            Decision::Resume(SandboxRecord {
                state,
                ..record.clone()
            })
        }
        // The command was not asked for yet: no user code has run, so it may start anew within its start timeout.
        (State::Claimed { instance }, _) => restart(record, instance),
        // With the sentry go the files, whatever had become of the command; but what is brought back has them still, as they were kept.
        (
            State::MainRequested { instance },
            Found::Dead(_)
            | Found::Nothing
            | Found::Alive {
                main_running: false,
            },
        ) if record.kept.is_some() =>
        {
            Decision::Restart {
                discard: instance.clone(),
                record: SandboxRecord {
                    state: State::Bound,
                    ..record.clone()
                },
            }
        }

        (
            State::MainRequested { .. }
            | State::Running { .. }
            | State::Halting { .. }
            | State::Keeping { .. }
            | State::Stopping { .. },
            Found::Alive {
                main_running: false,
            },
        ) => ended(Cause::new(
            Reason::Error,
            FailureDomain::Workload,
            "its init had ended when the agent came back",
        )),
        (
            State::MainRequested { .. }
            | State::Running { .. }
            | State::Halting { .. }
            | State::Keeping { .. }
            | State::Stopping { .. },
            Found::Dead(cause),
        ) => ended(cause.clone()),
        (
            State::MainRequested { .. }
            | State::Running { .. }
            | State::Halting { .. }
            | State::Keeping { .. }
            | State::Stopping { .. },
            Found::Nothing,
        )
        | (State::Halting { .. } | State::Keeping { .. }, Found::MainEnded) => ended(Cause::new(
            Reason::RuntimeCrashed,
            FailureDomain::Infrastructure,
            "nothing of its instance was left when the agent came back; status unknown",
        )),
    }
}

/// With another instance.
fn restart(record: &SandboxRecord, instance: &str) -> Decision {
    Decision::Restart {
        discard: instance.to_owned(),
        record: SandboxRecord {
            state: State::Bound,
            ..record.clone()
        },
    }
}

/// A reboot took every instance along. What had not begun begins anew, with its whole start timeout.
fn after_reboot(record: &SandboxRecord, boot_id: &str, now: Now) -> SandboxRecord {
    let rebased = SandboxRecord {
        boot_id: boot_id.to_owned(),
        ..record.clone()
    };
    let rebased = aged(rebased, now);
    let anew = SandboxRecord {
        state: State::Bound,
        bound: now,
        // One that never ran has no files that would tell.
        woken: rebased.woken.map(|_| now),
        ..rebased.clone()
    };
    match &record.state {
        State::Bound | State::Claimed { .. } => anew,
        State::MainRequested { .. } if record.kept.is_some() => anew,
        State::Discarding { failed, .. } | State::Stopped { failed, .. } => SandboxRecord {
            state: State::Stopped {
                failed: failed.clone(),
                again: None,
            },
            ..rebased
        },
        State::MainRequested { .. }
        | State::Running { .. }
        | State::Halting { .. }
        | State::Keeping { .. }
        | State::Stopping { .. } => ending(
            &rebased,
            Cause::new(
                Reason::NodeLost,
                FailureDomain::Infrastructure,
                "node rebooted",
            ),
            // It ended before this boot began, nobody knows when.
            now.before(now.boot),
        ),
        State::Ending { .. } | State::Ended { .. } => rebased,
    }
}

/// Of one whose files outlast the boot: its time to live goes on, by the wall clock.
fn aged(record: SandboxRecord, now: Now) -> SandboxRecord {
    let Some(kept) = record.kept.clone() else {
        return record;
    };
    let lived = now.wall.duration_since(kept.started.wall);
    let aged = Duration::try_from(lived).unwrap_or_default();
    let started = Now {
        boot: now.boot,
        ..kept.started
    };
    SandboxRecord {
        aged,
        kept: Some(Kept { started, ..kept }),
        ..record
    }
}

fn ending(record: &SandboxRecord, cause: Cause, now: Now) -> SandboxRecord {
    let cause = match &record.state {
        State::Stopping { because, .. } => because.clone(),
        State::Bound
        | State::Claimed { .. }
        | State::MainRequested { .. }
        | State::Running { .. }
        | State::Halting { .. }
        | State::Keeping { .. }
        | State::Discarding { .. }
        | State::Stopped { .. }
        | State::Ending { .. }
        | State::Ended { .. } => cause,
    };
    let state = State::Ending {
        instance: record.state.instance().map(str::to_owned),
        termination: Termination {
            cause,
            started_at: record.started().map(|started| started.wall),
            finished_at: now.wall,
            usage: None,
        },
    };
    SandboxRecord {
        state,
        // Nothing of it runs again: what it took from Secrets goes with it.
        values: None,
        lacks: None,
        kept: None,
        stopped: None,
        woken: None,
        ..record.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::PausedBy;
    use crate::sandbox::fixture::{now_at, record, saved};

    fn at(state: State) -> SandboxRecord {
        SandboxRecord { state, ..record() }
    }

    fn instance() -> String {
        "i1".to_owned()
    }

    fn crashed() -> Cause {
        Cause::new(
            Reason::RuntimeCrashed,
            FailureDomain::Infrastructure,
            "status unknown",
        )
    }

    fn termination(reason: Reason) -> Termination {
        Termination {
            cause: Cause::new(reason, reason.default_domain(), ""),
            started_at: None,
            finished_at: now_at(9).wall,
            usage: None,
        }
    }

    fn every_state() -> Vec<State> {
        let because = Cause::new(Reason::DeadlineExceeded, FailureDomain::Policy, "over");
        vec![
            State::Bound,
            State::Claimed {
                instance: instance(),
            },
            State::MainRequested {
                instance: instance(),
            },
            State::Running {
                instance: instance(),
                started: now_at(5),
                pause: None,
            },
            State::Stopping {
                instance: instance(),
                started: now_at(5),
                because,
                kill_at: now_at(20).boot,
                paused_since: None,
            },
            State::Ending {
                instance: Some(instance()),
                termination: termination(Reason::Error),
            },
            State::Ended {
                termination: termination(Reason::Error),
            },
        ]
    }

    /// The name of the state gone on from, the reason if it is an end, and whether an instance is thrown away.
    fn outcome(state: &State, found: &Found, boot: &str) -> (String, Option<Reason>, bool) {
        outcome_of(&at(state.clone()), found, boot)
    }

    fn outcome_of(
        record: &SandboxRecord,
        found: &Found,
        boot: &str,
    ) -> (String, Option<Reason>, bool) {
        let (record, discarded) = match decide(record, found, boot, now_at(30)) {
            Decision::Resume(record) => (record, false),
            Decision::Restart { record, .. } => (record, true),
        };
        assert_eq!(record.boot_id, boot);
        let reason = record.state.termination().map(|end| end.cause.reason);
        (record.state.name().to_owned(), reason, discarded)
    }

    #[test]
    fn the_crash_table() {
        let running = Found::Alive { main_running: true };
        let halted = Found::Alive {
            main_running: false,
        };
        let dead = Found::Dead(crashed());
        let rows: Vec<(usize, &Found, &str, Option<Reason>, bool)> = vec![
            (0, &Found::Nothing, "Bound", None, false),
            (1, &Found::Nothing, "Bound", None, true),
            (1, &halted, "Bound", None, true),
            (1, &dead, "Bound", None, true),
            (1, &running, "MainRequested", None, false),
            (2, &running, "MainRequested", None, false),
            (2, &halted, "Ending", Some(Reason::Error), false),
            (2, &dead, "Ending", Some(Reason::RuntimeCrashed), false),
            (
                2,
                &Found::Nothing,
                "Ending",
                Some(Reason::RuntimeCrashed),
                false,
            ),
            (1, &Found::Silent, "Bound", None, true),
            (2, &Found::Silent, "MainRequested", None, false),
            (3, &Found::Silent, "Running", None, false),
            (4, &Found::Silent, "Stopping", None, false),
            (5, &Found::Silent, "Ending", Some(Reason::Error), false),
            (2, &Found::MainEnded, "MainRequested", None, false),
            (3, &Found::MainEnded, "Running", None, false),
            (3, &running, "Running", None, false),
            (3, &halted, "Ending", Some(Reason::Error), false),
            (3, &dead, "Ending", Some(Reason::RuntimeCrashed), false),
            (
                3,
                &Found::Nothing,
                "Ending",
                Some(Reason::RuntimeCrashed),
                false,
            ),
            (4, &running, "Stopping", None, false),
            (4, &dead, "Ending", Some(Reason::DeadlineExceeded), false),
            (5, &dead, "Ending", Some(Reason::Error), false),
            (5, &running, "Ending", Some(Reason::Error), false),
            (6, &Found::Nothing, "Ended", Some(Reason::Error), false),
        ];
        let states = every_state();
        for (state, found, name, reason, discarded) in rows {
            let wanted = (name.to_owned(), reason, discarded);
            assert_eq!(
                outcome(&states[state], found, "boot-1"),
                wanted,
                "{} {found:?}",
                states[state].name()
            );
        }
    }

    /// One that is stopped, or on its way there or back.
    fn kept(state: State) -> SandboxRecord {
        SandboxRecord {
            kept: Some(Kept {
                files: saved(),
                started: now_at(5),
                since: now_at(10),
            }),
            stopped: Some(PausedBy::Spec),
            ..at(state)
        }
    }

    #[test]
    fn what_is_being_stopped_goes_on_while_its_sentry_lives_and_what_is_kept_is_not_lost() {
        let halting = at(State::Halting {
            instance: instance(),
            started: now_at(5),
            since: now_at(10),
            kill_at: now_at(20).boot,
            paused_since: None,
        });
        let keeping = at(State::Keeping {
            instance: instance(),
            started: now_at(5),
            since: now_at(10),
            was_told: true,
        });
        let discarding = kept(State::Discarding {
            instance: Some(instance()),
            failed: None,
        });
        let stopped = kept(State::Stopped {
            failed: None,
            again: Some(now_at(99).boot),
        });
        let claimed = kept(State::Claimed {
            instance: instance(),
        });
        let requested = kept(State::MainRequested {
            instance: instance(),
        });
        let running = Found::Alive { main_running: true };
        let halted = Found::Alive {
            main_running: false,
        };
        let dead = Found::Dead(crashed());
        let crashed = Some(Reason::RuntimeCrashed);
        let lost = Some(Reason::NodeLost);
        let rows = [
            (&halting, &running, "Halting", None, false),
            (&halting, &dead, "Ending", crashed, false),
            (&halting, &Found::MainEnded, "Ending", crashed, false),
            (&keeping, &running, "Keeping", None, false),
            (&keeping, &Found::MainEnded, "Ending", crashed, false),
            (&keeping, &Found::Nothing, "Ending", crashed, false),
            (&discarding, &dead, "Discarding", None, false),
            (&stopped, &Found::Nothing, "Stopped", None, false),
            (&claimed, &running, "Bound", None, true),
            (&requested, &running, "MainRequested", None, false),
            (&requested, &halted, "Bound", None, true),
            (&requested, &dead, "Bound", None, true),
        ];
        for (record, found, name, reason, discarded) in rows {
            let wanted = (name.to_owned(), reason, discarded);
            let told = format!("{} {found:?}", record.state.name());
            assert_eq!(outcome_of(record, found, "boot-1"), wanted, "{told}");
        }
        let rows = [
            (&halting, "Ending", lost, false),
            (&keeping, "Ending", lost, false),
            (&discarding, "Stopped", None, true),
            (&stopped, "Stopped", None, false),
            (&claimed, "Bound", None, true),
            (&requested, "Bound", None, true),
        ];
        for (record, name, reason, discarded) in rows {
            let wanted = (name.to_owned(), reason, discarded);
            let told = record.state.name();
            assert_eq!(
                outcome_of(record, &Found::Nothing, "boot-2"),
                wanted,
                "{told}"
            );
        }
    }

    #[test]
    fn over_a_reboot_a_stopped_sandbox_ages_by_the_wall_clock() {
        let stopped = kept(State::Stopped {
            failed: None,
            again: None,
        });
        // At second 45, which is the third of its boot, it has lived for 40 of its 60 seconds.
        let now = Now {
            boot: Duration::from_secs(3),
            ..now_at(45)
        };
        let Decision::Resume(after) = decide(&stopped, &Found::Nothing, "boot-2", now) else {
            panic!()
        };
        assert_eq!(after.expires(), Some(Duration::from_secs(23)));
        assert_eq!(
            after.started().map(|started| started.wall),
            Some(now_at(5).wall)
        );
        let again = Now {
            boot: Duration::from_secs(1),
            ..now_at(50)
        };
        let Decision::Resume(after) = decide(&after, &Found::Nothing, "boot-3", again) else {
            panic!()
        };
        assert_eq!(after.expires(), Some(Duration::from_secs(16)));
    }

    #[test]
    fn after_a_reboot_what_had_begun_is_lost_and_the_rest_begins_anew() {
        let states = every_state();
        let wanted = [
            ("Bound", None, false),
            ("Bound", None, true),
            ("Ending", Some(Reason::NodeLost), false),
            ("Ending", Some(Reason::NodeLost), false),
            ("Ending", Some(Reason::DeadlineExceeded), false),
            ("Ending", Some(Reason::Error), false),
            ("Ended", Some(Reason::Error), false),
        ];
        for (state, (name, reason, discarded)) in states.iter().zip(wanted) {
            assert_eq!(
                outcome(state, &Found::Nothing, "boot-2"),
                (name.to_owned(), reason, discarded),
                "{}",
                state.name()
            );
        }
        let Decision::Resume(anew) =
            decide(&at(State::Bound), &Found::Nothing, "boot-2", now_at(30))
        else {
            panic!()
        };
        assert_eq!(
            anew.bound,
            now_at(30),
            "the old boot's clock means nothing in the new one"
        );
    }

    #[test]
    fn what_was_taken_from_secrets_goes_with_the_end() {
        for state in every_state() {
            let record = SandboxRecord {
                values: Some(crate::sandbox::Values::default()),
                ..at(state)
            };
            for (found, boot) in [
                (Found::Dead(crashed()), "boot-1"),
                (Found::Nothing, "boot-2"),
            ] {
                let after = match decide(&record, &found, boot, now_at(30)) {
                    Decision::Resume(record) | Decision::Restart { record, .. } => record,
                };
                let was_over = record.state.termination().is_some();
                let is_over = after.state.termination().is_some();
                assert!(was_over || !is_over || after.values.is_none());
            }
        }
    }

    #[test]
    fn the_start_of_a_lost_sandbox_is_kept() {
        let running = at(State::Running {
            instance: instance(),
            started: now_at(5),
            pause: None,
        });
        let Decision::Resume(lost) = decide(&running, &Found::Nothing, "boot-2", now_at(30)) else {
            panic!()
        };
        let end = lost.state.termination().unwrap();
        assert_eq!(
            (end.started_at, end.finished_at),
            (Some(now_at(5).wall), now_at(0).wall),
            "it ended before this boot began"
        );
    }
}
