use cloche_crds::sandbox::Idle;
use proptest::prelude::*;

use super::*;
use crate::sandbox::Lacking;
use crate::sandbox::fixture::{now_at, record};

fn fault(reason: Reason) -> Cause {
    Cause::new(reason, reason.default_domain(), "for the test")
}

fn exit(code: i32) -> Cause {
    let reason = if code == 0 {
        Reason::Completed
    } else {
        Reason::Error
    };
    Cause {
        exit_code: Some(code),
        ..fault(reason)
    }
}

fn image() -> ImageUse {
    ImageUse {
        digest: crate::image::Digest::of(b"an image"),
        config: crate::image::ImageConfig::default(),
    }
}

/// The record after these events, each one second after the other, with all actions in order.
fn play(
    start: SandboxRecord,
    events: impl IntoIterator<Item = Event>,
) -> (SandboxRecord, Vec<Action>) {
    let mut record = start;
    let mut all = Vec::new();
    for (second, event) in (1..).zip(events) {
        let (next, actions) = step(&record, event, now_at(second));
        record = next;
        all.extend(actions);
    }
    (record, all)
}

fn to_running() -> Vec<Event> {
    vec![
        Event::Begin,
        Event::Image(Ok(image())),
        Event::Claimed(Ok("i1".to_owned())),
        Event::Prepared(Ok(())),
        started(5),
    ]
}

fn started(second: i64) -> Event {
    Event::MainStarted { at: now_at(second) }
}

/// The command ended at `second`, one second after it began.
fn ended(cause: Cause, second: i64) -> Event {
    Event::MainEnded {
        cause,
        began: now_at(second - 1),
        at: now_at(second),
    }
}

fn torn_down() -> Event {
    Event::TornDown {
        usage: Some(Usage::default()),
        output_lost: false,
    }
}

fn lack() -> Lack {
    Lack {
        what: Lacking::Environment,
        why: "there is no Secret \"db\"".to_owned(),
    }
}

fn values() -> Values {
    [("A".to_owned(), "secret".to_owned())]
        .into_iter()
        .collect()
}

#[test]
fn what_was_taken_from_elsewhere_stays_to_the_end_and_no_longer() {
    let events = [Event::Begin, Event::Lacks(Some(lack()))];
    let (waiting, actions) = play(record(), events);
    assert_eq!(waiting.lacks, Some(lack()));
    assert_eq!(
        (&waiting.state, actions),
        (&State::Bound, vec![Action::Pull])
    );
    let (had, actions) = play(waiting, [Event::Valued(values())]);
    assert_eq!((&had.values, &had.lacks), (&Some(values()), &None));
    assert_eq!(actions, []);
    let (running, _) = play(had, to_running());
    assert_eq!(running.values, Some(values()));
    // What comes late changes nothing.
    let late = [Event::Lacks(Some(lack())), Event::Valued(Values::default())];
    let (running, _) = play(running, late);
    assert_eq!((&running.values, &running.lacks), (&Some(values()), &None));
    let (ended, _) = play(running, [ended(exit(0), 6)]);
    assert_eq!(ended.values, None);
}

#[test]
fn a_start_that_took_too_long_says_what_was_missing() {
    let (waiting, _) = play(record(), [Event::Begin, Event::Lacks(Some(lack()))]);
    let (over, actions) = step(&waiting, Event::Tick, now_at(300));
    assert_eq!(actions, [Action::TearDown]);
    let cause = &over.state.termination().unwrap().cause;
    assert_eq!(cause.reason, Reason::StartTimeout);
    assert!(
        cause
            .message
            .ends_with("it was waiting: there is no Secret \"db\""),
        "{}",
        cause.message
    );
}

#[test]
fn output_that_is_lost_is_told() {
    let events = to_running().into_iter().chain([
        ended(exit(0), 6),
        Event::TornDown {
            usage: Some(Usage::default()),
            output_lost: true,
        },
    ]);
    let (record, _) = play(record(), events);
    let end = record.state.termination().unwrap();
    assert_eq!(end.cause.reason, Reason::Completed);
    assert!(
        end.cause.message.ends_with("the end of its output is lost"),
        "{}",
        end.cause.message
    );
}

#[test]
fn who_kills_init_has_run() {
    let mut events = to_running();
    // What the command did is seen before that it runs.
    events.pop();
    events.push(Event::InitKilled(fault(Reason::Error)));
    let (record, _) = play(record(), events);
    let termination = record.state.termination().unwrap();
    assert_eq!(termination.cause, fault(Reason::Error));
    assert!(termination.started_at.is_some());
}

#[test]
fn a_whole_life() {
    use Action::{Claim, Prepare, Pull, Remove, RequestMain, TearDown};
    let events = to_running()
        .into_iter()
        .chain([ended(exit(0), 6), torn_down(), Event::Delete]);
    let (record, actions) = play(record(), events);
    assert_eq!(
        actions,
        [Pull, Claim, Prepare, RequestMain, TearDown, Remove]
    );
    let end = record.state.termination().unwrap();
    assert_eq!(
        (end.cause.reason, end.cause.exit_code),
        (Reason::Completed, Some(0))
    );
    assert_eq!(end.started_at, Some(now_at(5).wall));
    assert_eq!(end.finished_at, now_at(6).wall);
}

#[test]
fn a_command_that_ended_while_no_agent_ran_is_dated_as_it_ran() {
    let starting = to_running().into_iter().take(4);
    let (requested, _) = play(record(), starting);
    let (over, _) = step(&requested, ended(exit(0), 20), now_at(500));
    let end = over.state.termination().unwrap();
    assert_eq!(end.cause.reason, Reason::Completed);
    assert_eq!(
        (end.started_at, end.finished_at),
        (Some(now_at(19).wall), now_at(20).wall)
    );
}

#[test]
fn deleting_a_running_one_gives_its_command_time() {
    let (stopping, actions) = play(record(), to_running().into_iter().chain([Event::Delete]));
    assert_eq!(actions.last(), Some(&Action::Terminate));
    // It ends by itself within the grace period: its exit code is kept, the reason stays.
    let (ended, actions) = step(&stopping, ended(exit(3), 7), now_at(7));
    assert_eq!(actions, [Action::TearDown]);
    let end = ended.state.termination().unwrap();
    assert_eq!(
        (end.cause.reason, end.cause.exit_code),
        (Reason::Deleted, Some(3))
    );
    // It does not: killed when the grace period is over, not before.
    let before = stopping.clone();
    assert_eq!(step(&stopping, Event::Tick, now_at(10)), (before, vec![]));
    let (killed, actions) = step(&stopping, Event::Tick, now_at(11));
    assert_eq!(actions, [Action::TearDown]);
    assert_eq!(
        killed.state.termination().unwrap().cause.reason,
        Reason::Deleted
    );
}

#[test]
fn deleting_an_idle_one_kills_it_at_once() {
    let mut idle = record();
    idle.spec.main = MainCommand::Idle;
    let (_, actions) = play(idle, to_running().into_iter().chain([Event::Delete]));
    assert_eq!(actions.last(), Some(&Action::TearDown));
}

#[test]
fn the_time_to_live_counts_from_running_and_says_so() {
    let (running, _) = play(record(), to_running());
    assert_eq!(deadline(&running), Some(now_at(5 + 60).boot));
    let (stopping, actions) = step(&running, Event::Tick, now_at(65));
    assert_eq!(actions, [Action::Terminate]);
    let (ended, _) = step(&stopping, Event::Tick, now_at(70));
    let cause = &ended.state.termination().unwrap().cause;
    assert_eq!(
        (cause.reason, cause.domain),
        (Reason::DeadlineExceeded, FailureDomain::Policy)
    );
    assert!(
        cause.message.contains("60 s") && cause.message.contains("ttlSeconds"),
        "{}",
        cause.message
    );
}

#[test]
fn a_shorter_time_to_live_counts_at_once_and_a_longer_one_saves() {
    let (running, _) = play(record(), to_running());
    let lifecycle = |seconds| {
        let spec = Effective {
            ttl: Some(Duration::from_secs(seconds)),
            ..running.spec.clone()
        };
        Event::Changed {
            generation: 2,
            manifest: None,
            object: Box::new(running.object.clone()),
            spec: Box::new(spec),
        }
    };
    let (shorter, actions) = step(&running, lifecycle(10), now_at(20));
    assert_eq!((actions, shorter.generation), (vec![], 2));
    assert_eq!(deadline(&shorter), Some(now_at(5 + 10).boot));
    let (_, actions) = step(&shorter, Event::Tick, now_at(20));
    assert_eq!(actions, [Action::Terminate]);
    let (longer, _) = step(&running, lifecycle(100), now_at(20));
    assert_eq!(step(&longer, Event::Tick, now_at(90)).1, []);
}

#[test]
fn a_change_of_anything_else_is_not_taken_over() {
    let (running, _) = play(record(), to_running());
    let spec = Effective {
        hostname: "other".to_owned(),
        ..running.spec.clone()
    };
    let changed = Event::Changed {
        generation: 2,
        manifest: None,
        object: Box::new(running.object.clone()),
        spec: Box::new(spec),
    };
    assert_eq!(
        step(&running, changed, now_at(20)),
        (running.clone(), vec![])
    );
}

#[test]
fn the_start_timeout_covers_everything_before_running() {
    for steps in 0..4 {
        let (starting, _) = play(record(), to_running().into_iter().take(steps + 1));
        assert_eq!(
            deadline(&starting),
            Some(now_at(300).boot),
            "{}",
            starting.state.name()
        );
        let (ended, actions) = step(&starting, Event::Tick, now_at(300));
        assert_eq!(actions, [Action::TearDown]);
        assert_eq!(
            ended.state.termination().unwrap().cause.reason,
            Reason::StartTimeout
        );
        assert_eq!(ended.state.termination().unwrap().started_at, None);
    }
}

#[test]
fn a_command_that_cannot_be_started_never_ran() {
    let events = to_running()
        .into_iter()
        .take(4)
        .chain([ended(fault(Reason::CommandNotFound), 6)]);
    let (ended, _) = play(record(), events);
    let end = ended.state.termination().unwrap();
    assert_eq!(
        (end.cause.reason, end.started_at),
        (Reason::CommandNotFound, None)
    );
}

#[test]
fn an_instance_that_comes_too_late_is_destroyed() {
    let (ending, _) = play(
        record(),
        [Event::Begin, Event::Image(Ok(image())), Event::Delete],
    );
    let (after, actions) = step(&ending, Event::Claimed(Ok("late".to_owned())), now_at(9));
    assert_eq!(actions, [Action::Destroy("late".to_owned())]);
    assert_eq!(after, ending);
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::Lacks(Some(lack()))),
        Just(Event::Lacks(None)),
        Just(Event::Valued(values())),
        Just(Event::Image(Ok(image()))),
        Just(Event::Image(Err(fault(Reason::ImageNotFound)))),
        "[a-z]{3}".prop_map(|id| Event::Claimed(Ok(id))),
        Just(Event::Claimed(Err(fault(Reason::CannotEnforce)))),
        Just(Event::Prepared(Ok(()))),
        Just(Event::Prepared(Err(fault(Reason::RuntimeCrashed)))),
        Just(started(3)),
        (0..3_i32).prop_map(|code| ended(exit(code), 4)),
        Just(Event::Unreachable),
        Just(Event::InitKilled(fault(Reason::Error))),
        Just(died(fault(Reason::OOMKilled))),
        Just(kept(now_at(0))),
        Just(Event::Discarded { usage: None }),
        prop_oneof![
            Just(DesiredState::Running),
            Just(DesiredState::Paused),
            Just(DesiredState::Stopped)
        ]
        .prop_map(wish),
        Just(Event::Tick),
        Just(Event::Delete),
        Just(Event::Paused { turn: 0 }),
        Just(Event::Resumed {
            turn: 1,
            at: now_at(5)
        }),
        Just(Event::Idle),
        Just(Event::Wake),
        Just(Event::Evict(fault(Reason::Evicted))),
        Just(Event::Leave(fault(Reason::NodeShutdown))),
        Just(torn_down()),
    ]
}

/// Of whatever record it comes to: only the wish is taken from it.
fn wish(desired: DesiredState) -> Event {
    wants(&record(), desired)
}

fn idle_action() -> impl Strategy<Value = Option<IdleAction>> {
    prop_oneof![
        Just(None),
        Just(Some(IdleAction::Stop)),
        Just(Some(IdleAction::Pause)),
        Just(Some(IdleAction::End))
    ]
}

fn wants(record: &SandboxRecord, desired: DesiredState) -> Event {
    let spec = Effective {
        desired,
        ..record.spec.clone()
    };
    Event::Changed {
        generation: record.generation + 1,
        manifest: None,
        object: Box::new(record.object.clone()),
        spec: Box::new(spec),
    }
}

/// The sentry of the first instance is gone.
fn died(cause: Cause) -> Event {
    let instance = "i1".to_owned();
    Event::Died { instance, cause }
}

/// The files are kept for the stop that was begun at `since`.
fn kept(since: Now) -> Event {
    let files = crate::sandbox::fixture::saved();
    Event::Kept { since, files }
}

fn rank(state: &State) -> u8 {
    match state {
        State::Bound => 0,
        State::Claimed { .. } => 1,
        State::MainRequested { .. } => 2,
        State::Running { .. }
        | State::Halting { .. }
        | State::Keeping { .. }
        | State::Discarding { .. }
        | State::Stopped { .. } => 3,
        State::Stopping { .. } => 4,
        State::Ending { .. } => 5,
        State::Ended { .. } => 6,
    }
}

/// One that nothing is under way for is as its spec says, unless idleness made it otherwise; and says why it does not run.
fn is_as_wished(record: &SandboxRecord) -> bool {
    let desired = record.spec.desired;
    match (&record.state, record.stopped) {
        (State::Running { pause: None, .. }, None) => desired == DesiredState::Running,
        (
            State::Running {
                pause: Some(pause), ..
            },
            None,
        ) => match pause.by {
            PausedBy::Spec => desired != DesiredState::Stopped,
            PausedBy::Idleness => desired == DesiredState::Running,
        },
        (
            State::Keeping {
                was_told: false, ..
            },
            Some(PausedBy::Spec),
        ) => desired == DesiredState::Stopped,
        (State::Halting { .. } | State::Keeping { .. } | State::Discarding { .. }, by) => {
            by.is_some()
        }
        // One that could not be brought back is tried again.
        (State::Stopped { again, .. }, Some(PausedBy::Spec)) => {
            desired == DesiredState::Stopped || again.is_some()
        }
        (State::Stopped { .. }, by) => by == Some(PausedBy::Idleness),
        (State::Running { .. }, Some(_)) => false,
        _ => true,
    }
}

proptest! {
    /// Whatever happens in whatever order: an end is never taken back, a reason never changes, an end is torn down exactly once,
    /// removal comes last and only to deleted ones, no claimed instance is forgotten, and files that are kept stay so until it runs or ends.
    #[test]
    fn invariants_hold_for_any_sequence(events in prop::collection::vec(any_event(), 0..40), gaps in prop::collection::vec(0_i64..100, 40), has_command: bool, action in idle_action()) {
        let mut record = record();
        if !has_command {
            record.spec.main = MainCommand::Idle;
        }
        record.spec.idle = action.map(|action| Idle { timeout: Duration::from_secs(9), action });
        let mut time = 0;
        let mut torn_down = 0;
        let mut owned: Vec<String> = Vec::new();
        let mut given_back = 0;
        for (event, gap) in std::iter::once(Event::Begin).chain(events).zip(std::iter::once(0).chain(gaps)) {
            time += gap;
            // Of what is there now, as it would be told.
            let event = match (event, &record.state) {
                (Event::Died { cause, .. }, state) if state.instance().is_some() => {
                    let instance = state.instance().unwrap_or_default().to_owned();
                    Event::Died { instance, cause }
                }
                (Event::Kept { .. }, State::Keeping { since, .. }) => kept(*since),
                (Event::Changed { spec: wished, .. }, _) => wants(&record, wished.desired),
                (event, _) => event,
            };
            if let Event::Claimed(Ok(id)) = &event { owned.push(id.clone()); }
            let (next, actions) = step(&record, event, now_at(time));
            prop_assert!(rank(&next.state) >= rank(&record.state).min(4) || rank(&record.state) < 4);
            let is_over = rank(&next.state) >= 4 || matches!(next.state, State::Running { .. });
            prop_assert!(record.kept.is_none() || next.kept.is_some() || is_over);
            let is_discarding = |record: &SandboxRecord| matches!(record.state, State::Discarding { .. });
            prop_assert_eq!(is_discarding(&next) && !is_discarding(&record), actions.contains(&Action::Discard));
            prop_assert!(!record.deleted || next.deleted);
            if let (Some(before), Some(after)) = (record.state.termination(), next.state.termination()) {
                prop_assert_eq!(&before.cause, &after.cause);
            }
            if let State::Stopping { because, .. } = &record.state && let Some(end) = next.state.termination() {
                prop_assert_eq!(because.reason, end.cause.reason);
            }
            let enters_ending = rank(&next.state) == 5 && rank(&record.state) < 5;
            prop_assert_eq!(enters_ending, actions.contains(&Action::TearDown));
            if enters_ending {
                torn_down += 1;
                // Of one that is being discarded it is on its way already.
                given_back += usize::from(next.state.instance().is_some() && !is_discarding(&record));
            }
            if actions.contains(&Action::Discard) {
                given_back += usize::from(next.state.instance().is_some());
            }
            given_back += actions.iter().filter(|action| matches!(action, Action::Destroy(_))).count();
            if actions.contains(&Action::Remove) {
                prop_assert!(next.deleted && rank(&next.state) == 6);
                prop_assert_eq!(actions.last(), Some(&Action::Remove));
                prop_assert_eq!(given_back, owned.len());
                return Ok(());
            }
            prop_assert!(torn_down <= 1);
            prop_assert!(is_as_wished(&next), "{next:?}");
            record = next;
        }
        let is_held = rank(&record.state) < 5 && !matches!(record.state, State::Discarding { .. });
        prop_assert_eq!(given_back + usize::from(is_held && record.state.instance().is_some()), owned.len());
    }
}

mod pause;
mod stop;
