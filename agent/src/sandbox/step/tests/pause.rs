use super::*;

fn running() -> SandboxRecord {
    play(record(), to_running()).0
}

fn idle(action: IdleAction) -> SandboxRecord {
    let mut record = running();
    record.spec.idle = Some(Idle {
        timeout: Duration::from_secs(30),
        action,
    });
    record
}

fn turn(record: &SandboxRecord) -> u32 {
    record.state.pause().map_or(0, |pause| pause.turn)
}

/// All stands still, as the record wants it last.
fn stopped(record: &SandboxRecord) -> Event {
    Event::Paused { turn: turn(record) }
}

/// All goes on, as the record wants it last.
fn resumed(record: &SandboxRecord, second: i64) -> Event {
    Event::Resumed {
        turn: turn(record),
        at: now_at(second),
    }
}

/// One that nobody used, and that stands still for that.
fn slept() -> SandboxRecord {
    let (pausing, actions) = step(&idle(IdleAction::Pause), Event::Idle, now_at(35));
    assert_eq!(actions, [Action::Pause]);
    step(&pausing, stopped(&pausing), now_at(36)).0
}

/// Who began the pause, and how far it is.
fn pause(record: &SandboxRecord) -> Option<(PausedBy, Stage)> {
    record.state.pause().map(|pause| (pause.by, pause.stage))
}

#[test]
fn a_pause_and_its_end_are_written_before_they_are_done() {
    let running = running();
    let (pausing, actions) = step(&running, wants(&running, DesiredState::Paused), now_at(10));
    assert_eq!(actions, [Action::Pause]);
    assert_eq!(pause(&pausing), Some((PausedBy::Spec, Stage::Pausing)));
    let (paused, actions) = step(&pausing, stopped(&pausing), now_at(11));
    assert_eq!((paused.state.name(), actions), ("Paused", vec![]));
    let (resuming, actions) = step(&paused, wants(&paused, DesiredState::Running), now_at(20));
    assert_eq!(
        (resuming.state.name(), actions),
        ("Resuming", vec![Action::Resume])
    );
    let (again, actions) = step(&resuming, resumed(&resuming, 25), now_at(26));
    assert_eq!((again.state.name(), actions), ("Running", vec![]));
    assert_eq!(again.paused, Duration::from_secs(15), "from 10 to 25");
    assert_eq!(again.started(), running.started());
}

#[test]
fn one_that_is_created_paused_runs_first() {
    let mut record = record();
    record.spec.desired = DesiredState::Paused;
    let (record, actions) = play(record, to_running());
    assert_eq!(actions.last(), Some(&Action::Pause));
    assert_eq!(record.started(), Some(now_at(5)));
}

#[test]
fn a_change_of_mind_is_followed_at_once_and_what_comes_late_means_nothing() {
    let running = running();
    let (pausing, _) = step(&running, wants(&running, DesiredState::Paused), now_at(10));
    let late = stopped(&pausing);
    let (resuming, actions) = step(&pausing, wants(&pausing, DesiredState::Running), now_at(10));
    assert_eq!(actions, [Action::Resume]);
    assert_eq!(step(&resuming, late, now_at(11)).0, resuming);
    let late = resumed(&resuming, 12);
    let (pausing, actions) = step(
        &resuming,
        wants(&resuming, DesiredState::Paused),
        now_at(11),
    );
    assert_eq!(actions, [Action::Pause]);
    assert_eq!(step(&pausing, late.clone(), now_at(12)).0, pausing);
    // Nor in one that is the same again.
    let (resuming, _) = step(&pausing, wants(&pausing, DesiredState::Running), now_at(12));
    assert_eq!(step(&resuming, late, now_at(12)).0, resuming);
}

#[test]
fn its_time_to_live_goes_on_while_it_is_paused_and_its_command_is_told() {
    let running = running();
    let (pausing, _) = step(&running, wants(&running, DesiredState::Paused), now_at(10));
    let (paused, _) = step(&pausing, stopped(&pausing), now_at(11));
    assert_eq!(deadline(&paused), Some(now_at(5 + 60).boot));
    for event in [Event::Tick, Event::Delete] {
        let (stopping, actions) = step(&paused, event, now_at(65));
        assert_eq!(actions, [Action::Resume, Action::Terminate]);
        assert_eq!(stopping.state.name(), "Stopping");
        // Its commands' time limits do not count the pause, which is over only now.
        assert_eq!(stopping.state.paused_since(), Some(now_at(10)));
    }
    let (_, actions) = step(&paused, died(fault(Reason::OOMKilled)), now_at(30));
    assert_eq!(actions, [Action::TearDown]);
}

#[test]
fn use_and_a_new_spec_end_a_pause_of_idleness_and_only_a_new_spec_one_of_the_spec() {
    let paused = slept();
    assert_eq!(pause(&paused), Some((PausedBy::Idleness, Stage::Paused)));
    assert_eq!(step(&paused, Event::Wake, now_at(40)).1, [Action::Resume]);
    let same = wants(&paused, DesiredState::Running);
    assert_eq!(step(&paused, same, now_at(40)).1, [Action::Resume]);
    let (kept, actions) = step(&paused, wants(&paused, DesiredState::Paused), now_at(40));
    assert_eq!(
        (pause(&kept), actions),
        (Some((PausedBy::Spec, Stage::Paused)), vec![])
    );
    assert_eq!(step(&kept, Event::Wake, now_at(41)), (kept.clone(), vec![]));
}

#[test]
fn an_agent_that_comes_back_to_what_it_told_to_end_lets_it_go_on_first() {
    let (stopping, _) = step(&slept(), Event::Delete, now_at(40));
    let (_, actions) = step(&stopping, Event::Begin, now_at(41));
    assert_eq!(
        actions,
        [Action::Resume, Action::RequestMain, Action::Terminate]
    );
}

#[test]
fn idleness_may_end_it_and_means_nothing_where_the_spec_says_nothing_of_it() {
    let (stopping, actions) = step(&idle(IdleAction::End), Event::Idle, now_at(40));
    assert_eq!(actions, [Action::Terminate]);
    let State::Stopping { because, .. } = &stopping.state else {
        panic!("{}", stopping.state.name())
    };
    assert_eq!(
        (because.reason, because.domain),
        (Reason::IdleTimeout, FailureDomain::Policy)
    );
    let running = running();
    assert_eq!(
        step(&running, Event::Idle, now_at(40)),
        (running.clone(), vec![])
    );
}

#[test]
fn an_agent_that_comes_back_goes_on_with_the_pause() {
    let running = running();
    let (pausing, _) = step(&running, wants(&running, DesiredState::Paused), now_at(10));
    let (paused, _) = step(&pausing, stopped(&pausing), now_at(11));
    let (resuming, _) = step(&paused, wants(&paused, DesiredState::Running), now_at(12));
    for (record, pace) in [
        (pausing, Action::Pause),
        (paused, Action::Pause),
        (resuming, Action::Resume),
    ] {
        let (_, actions) = step(&record, Event::Begin, now_at(20));
        assert_eq!(actions, [Action::RequestMain, pace]);
    }
}

proptest! {
    /// However often its spec changes, however late the kernel does what it was told, and whatever idleness and use say: in the end
    /// it stands still if its spec says so, and a pause that nobody ends is of the spec or of idleness.
    #[test]
    fn it_stands_still_in_the_end_where_it_is_to(what in prop::collection::vec(0_u8..6, 0..40)) {
        let mut record = idle(IdleAction::Pause);
        // What the sentry was told last and has not done, what it does now, and what was done and is not told yet.
        let (mut told, mut paused): (Option<(Action, u32)>, bool) = (None, false);
        let mut done: std::collections::VecDeque<Event> = std::collections::VecDeque::new();
        let mut work = |told: &mut Option<(Action, u32)>, done: &mut std::collections::VecDeque<Event>| {
            if let Some((action, turn)) = told.take() {
                paused = action == Action::Pause;
                done.push_back(if paused { Event::Paused { turn } } else { Event::Resumed { turn, at: now_at(50) } });
            }
            paused
        };
        for event in what {
            let event = match event {
                0 => wants(&record, DesiredState::Paused),
                1 => wants(&record, DesiredState::Running),
                2 => Event::Idle,
                3 => Event::Wake,
                4 => { work(&mut told, &mut done); continue }
                _ => match done.pop_front() { Some(event) => event, None => continue },
            };
            let (next, actions) = step(&record, event, now_at(20));
            record = next;
            told = actions.into_iter().next_back().map(|action| (action, turn(&record))).or(told);
        }
        let paused = loop {
            let paused = work(&mut told, &mut done);
            let Some(event) = done.pop_front() else { break paused };
            let (next, actions) = step(&record, event, now_at(50));
            record = next;
            told = actions.into_iter().next_back().map(|action| (action, turn(&record)));
        };
        prop_assert_eq!(paused, record.state.pause().is_some());
        let by = record.state.pause().map(|pause| pause.by);
        prop_assert_eq!(by == Some(PausedBy::Spec), record.spec.desired == DesiredState::Paused);
        prop_assert!(record.state.pause().is_none_or(|pause| pause.stage == Stage::Paused));
    }
}
