use super::*;

fn running() -> SandboxRecord {
    play(record(), to_running()).0
}

/// One without a command of its own.
fn idling() -> SandboxRecord {
    let mut record = running();
    record.spec.main = MainCommand::Idle;
    record
}

fn sleepy() -> SandboxRecord {
    let mut record = idling();
    record.spec.idle = Some(Idle {
        timeout: Duration::from_secs(30),
        action: IdleAction::Stop,
    });
    record
}

fn used(cpu: u64) -> Event {
    Event::Discarded {
        usage: Some(Usage {
            peak_memory: Some(100),
            cpu_usec: Some(cpu),
            written: None,
        }),
    }
}

/// What comes of events, each at its second, and the actions of the last.
fn then(
    record: &SandboxRecord,
    events: impl IntoIterator<Item = (i64, Event)>,
) -> (SandboxRecord, Vec<Action>) {
    let begin = (record.clone(), Vec::new());
    events
        .into_iter()
        .fold(begin, |(record, _), (second, event)| {
            step(&record, event, now_at(second))
        })
}

/// One that was stopped by its spec at second 10, from that record.
fn stopped(record: &SandboxRecord) -> SandboxRecord {
    let events = [
        (10, wants(record, DesiredState::Stopped)),
        (11, ended(exit(143), 11)),
        (12, kept(now_at(10))),
        (13, used(7)),
    ];
    then(record, events).0
}

fn name(record: &SandboxRecord) -> &'static str {
    record.state.name()
}

#[test]
fn a_stop_tells_the_command_keeps_the_files_and_gives_the_rest_back() {
    let running = running();
    let (halting, actions) = step(&running, wants(&running, DesiredState::Stopped), now_at(10));
    assert_eq!(
        (name(&halting), actions),
        ("Halting", vec![Action::Terminate])
    );
    assert_eq!(deadline(&halting), Some(now_at(15).boot), "the grace");
    let (keeping, actions) = step(&halting, ended(exit(143), 11), now_at(11));
    assert_eq!((name(&keeping), actions), ("Keeping", vec![Action::Keep]));
    assert!(keeping.state.may_be_paused());
    let (discarding, actions) = step(&keeping, kept(now_at(10)), now_at(12));
    assert_eq!(
        (name(&discarding), actions),
        ("Discarding", vec![Action::Discard])
    );
    assert_eq!(discarding.state.instance(), Some("i1"));
    let (stopped, actions) = step(&discarding, used(7), now_at(13));
    assert_eq!(
        (name(&stopped), actions),
        ("Stopped", vec![Action::ServeLogs])
    );
    assert_eq!(stopped.state.instance(), None);
    assert_eq!(stopped.started(), Some(now_at(5)));
    assert_eq!(
        deadline(&stopped),
        Some(now_at(65).boot),
        "its time to live"
    );
    assert_eq!(stopped.stopped, Some(PausedBy::Spec));
    assert_eq!(stopped.kept.map(|kept| kept.since), Some(now_at(10)));
}

#[test]
fn a_command_that_does_not_end_is_not_waited_for_longer_than_the_grace() {
    let running = running();
    let stop = (10, wants(&running, DesiredState::Stopped));
    let (halting, actions) = then(&running, [stop.clone(), (14, Event::Tick)]);
    assert_eq!((name(&halting), actions), ("Halting", vec![]));
    let (keeping, actions) = then(&running, [stop, (15, Event::Tick)]);
    assert_eq!((name(&keeping), actions), ("Keeping", vec![Action::Keep]));
    let end = step(&keeping, ended(exit(0), 16), now_at(16));
    assert_eq!(end, (keeping, vec![]), "what it does now is not kept");
}

#[test]
fn a_command_that_had_ended_before_it_was_told_has_ended_its_sandbox() {
    let running = running();
    let stop = (10, wants(&running, DesiredState::Stopped));
    let (ending, actions) = then(&running, [stop, (11, ended(exit(3), 9))]);
    assert_eq!(actions, [Action::TearDown]);
    let end = ending.state.termination().unwrap();
    assert_eq!(
        (end.cause.reason, end.cause.exit_code),
        (Reason::Error, Some(3))
    );
}

#[test]
fn without_a_command_to_be_told_a_stop_can_be_given_up() {
    for (record, begin, give_up) in [
        (
            idling(),
            wants(&idling(), DesiredState::Stopped),
            wants(&idling(), DesiredState::Running),
        ),
        (sleepy(), Event::Idle, Event::Wake),
    ] {
        let (keeping, actions) = step(&record, begin, now_at(40));
        assert_eq!((name(&keeping), actions), ("Keeping", vec![Action::Keep]));
        let (resuming, actions) = step(&keeping, give_up, now_at(41));
        assert_eq!(
            (name(&resuming), actions),
            ("Resuming", vec![Action::Resume])
        );
        let late = step(&resuming, kept(now_at(40)), now_at(42));
        assert_eq!(late, (resuming.clone(), vec![]), "kept for nothing");
        let resumed = Event::Resumed {
            turn: 0,
            at: now_at(43),
        };
        let (again, _) = step(&resuming, resumed, now_at(43));
        assert_eq!(name(&again), "Running");
        assert_eq!(again.paused, Duration::from_secs(3));
    }
}

#[test]
fn files_of_an_earlier_stop_are_not_taken_for_those_of_this_one() {
    let record = idling();
    let events = [
        (10, wants(&record, DesiredState::Stopped)),
        (11, wants(&record, DesiredState::Running)),
        (12, wants(&record, DesiredState::Stopped)),
        (13, kept(now_at(10))),
    ];
    let (keeping, actions) = then(&record, events);
    assert_eq!((name(&keeping), actions), ("Keeping", vec![]));
    assert_eq!(
        step(&keeping, kept(now_at(12)), now_at(14)).1,
        [Action::Discard]
    );
}

#[test]
fn it_is_brought_back_with_its_files_and_goes_on_to_live() {
    let stopped = stopped(&running());
    let (bound, actions) = step(&stopped, wants(&stopped, DesiredState::Running), now_at(20));
    assert_eq!((name(&bound), actions), ("Bound", vec![Action::Pull]));
    assert_eq!(
        deadline(&bound),
        Some(now_at(65).boot),
        "it waits for room as long as it lives"
    );
    let (claimed, _) = then(
        &bound,
        [
            (21, Event::Image(Ok(image()))),
            (30, Event::Claimed(Ok("i2".to_owned()))),
        ],
    );
    assert_eq!(claimed.begun(), now_at(30), "its start begins here");
    assert_eq!(claimed.bound, now_at(0));
    assert!(claimed.kept.is_some());
    let late = step(&claimed, died(fault(Reason::OOMKilled)), now_at(31));
    assert_eq!(late, (claimed.clone(), vec![]), "of the instance before");
    let (again, _) = then(&claimed, [(31, Event::Prepared(Ok(()))), (32, started(32))]);
    assert_eq!(name(&again), "Running");
    assert_eq!(again.started(), Some(now_at(5)));
    assert_eq!(again.kept, None, "its files are its own again");
    // What it used in all is told at its end.
    let end = Event::TornDown {
        usage: Some(Usage {
            peak_memory: Some(50),
            cpu_usec: Some(3),
            written: Some(1),
        }),
        output_lost: false,
    };
    let (ended, _) = then(&again, [(40, ended(exit(0), 40)), (41, end)]);
    let usage = ended.state.termination().unwrap().usage.unwrap();
    assert_eq!(
        (usage.peak_memory, usage.cpu_usec, usage.written),
        (Some(100), Some(10), Some(1))
    );
}

#[test]
fn what_cannot_be_brought_back_is_stopped_again_and_tried_again() {
    let stopped = stopped(&running());
    let begin = (20, wants(&stopped, DesiredState::Running));
    let there = [
        begin.clone(),
        (21, Event::Image(Ok(image()))),
        (22, Event::Claimed(Ok("i2".to_owned()))),
    ];
    let prepared = (23, Event::Prepared(Ok(())));
    let ways = [
        (1, vec![], Event::Image(Err(fault(Reason::ImageNotFound)))),
        (1, vec![], Event::Claimed(Err(fault(Reason::CannotEnforce)))),
        (1, vec![], Event::Evict(fault(Reason::NodeRejected))),
        (
            3,
            vec![],
            Event::Prepared(Err(fault(Reason::RuntimeCrashed))),
        ),
        (
            3,
            vec![prepared.clone()],
            Event::Died {
                instance: "i2".to_owned(),
                cause: fault(Reason::OOMKilled),
            },
        ),
        (3, vec![prepared], ended(fault(Reason::CommandNotFound), 24)),
    ];
    for (steps, more, failure) in ways {
        let events = there.iter().take(steps).cloned().chain(more);
        let (discarding, actions) = then(&stopped, events.chain([(24, failure.clone())]));
        assert_eq!(actions, [Action::Discard], "{failure:?}");
        let nothing = Event::Discarded { usage: None };
        let (again, _) = step(&discarding, nothing, now_at(25));
        assert_eq!(name(&again), "Stopped");
        assert!(again.kept.is_some(), "its files are kept: {failure:?}");
        assert_eq!(deadline(&again), Some(now_at(40).boot));
        let (waking, actions) = step(&again, Event::Tick, now_at(40));
        assert_eq!((name(&waking), actions), ("Bound", vec![Action::Pull]));
        // Each time it takes longer.
        let failure = Event::Image(Err(fault(Reason::ImageNotFound)));
        let nothing = Event::Discarded { usage: None };
        let (again, _) = then(&waking, [(41, failure), (42, nothing)]);
        assert!(
            matches!(again.state, State::Stopped { again: Some(at), .. } if at == now_at(72).boot)
        );
    }
    let lost = Event::Claimed(Err(fault(Reason::SnapshotCorrupt)));
    let (ending, actions) = then(&stopped, [begin, (21, lost)]);
    assert_eq!(actions, [Action::TearDown]);
    assert_eq!(ending.kept, None);
}

#[test]
fn one_that_never_ran_does_not_begin_to() {
    let mut record = record();
    record.spec.desired = DesiredState::Stopped;
    let (stopped, actions) = then(
        &record,
        [(1, Event::Begin), (2, Event::Discarded { usage: None })],
    );
    assert_eq!(
        (name(&stopped), actions),
        ("Stopped", vec![Action::ServeLogs])
    );
    assert_eq!((stopped.started(), deadline(&stopped)), (None, None));
    let (bound, actions) = step(&stopped, wants(&stopped, DesiredState::Running), now_at(9));
    assert_eq!((name(&bound), actions), ("Bound", vec![Action::Pull]));
    assert_eq!(
        deadline(&bound),
        None,
        "it waits for room as long as it takes"
    );
    let (claimed, _) = then(
        &bound,
        [
            (10, Event::Image(Ok(image()))),
            (20, Event::Claimed(Ok("i1".to_owned()))),
        ],
    );
    assert_eq!(
        deadline(&claimed),
        Some(now_at(320).boot),
        "then a start like any"
    );

    // One that waits for its image stops waiting, and what comes late is given back.
    let (stopping, actions) = then(
        &super::record(),
        [
            (1, Event::Begin),
            (2, wants(&record, DesiredState::Stopped)),
        ],
    );
    assert_eq!(actions, [Action::Discard]);
    let late = Event::Claimed(Ok("late".to_owned()));
    assert_eq!(
        step(&stopping, late, now_at(3)).1,
        [Action::Destroy("late".to_owned())]
    );
}

#[test]
fn use_and_a_new_spec_bring_back_what_idleness_stopped_and_only_a_new_spec_the_rest() {
    let record = sleepy();
    let events = [
        (40, Event::Idle),
        (41, kept(now_at(40))),
        (42, Event::Discarded { usage: None }),
    ];
    let (slept, _) = then(&record, events);
    assert_eq!(name(&slept), "Stopped");
    assert_eq!(step(&slept, Event::Wake, now_at(50)).1, [Action::Pull]);
    let same = wants(&slept, DesiredState::Running);
    assert_eq!(step(&slept, same, now_at(50)).1, [Action::Pull]);
    let (by_spec, actions) = step(&slept, wants(&slept, DesiredState::Stopped), now_at(50));
    assert_eq!(actions, []);
    assert_eq!(
        step(&by_spec, Event::Wake, now_at(51)),
        (by_spec.clone(), vec![])
    );
}

#[test]
fn a_change_of_mind_after_the_command_was_told_brings_it_back_once_it_is_stopped() {
    let running = running();
    let events = [
        (10, wants(&running, DesiredState::Stopped)),
        (11, wants(&running, DesiredState::Running)),
        (12, ended(exit(143), 12)),
        (13, kept(now_at(10))),
    ];
    let (discarding, _) = then(&running, events);
    let (bound, actions) = step(&discarding, used(1), now_at(14));
    assert_eq!((name(&bound), actions), ("Bound", vec![Action::Pull]));
}

#[test]
fn what_is_deleted_or_over_its_time_ends_wherever_it_is() {
    let running = running();
    let (halting, _) = step(&running, wants(&running, DesiredState::Stopped), now_at(63));
    for event in [Event::Delete, Event::Tick] {
        let (stopping, actions) = step(&halting, event, now_at(66));
        assert_eq!(
            (name(&stopping), actions),
            ("Stopping", vec![]),
            "told already"
        );
        assert_eq!(deadline(&stopping), Some(now_at(68).boot));
    }
    let stopped = stopped(&running);
    let keeping = then(&halting, [(64, ended(exit(0), 64))]).0;
    for record in [stopped, keeping] {
        for (event, reason) in [
            (Event::Delete, Reason::Deleted),
            (Event::Tick, Reason::DeadlineExceeded),
        ] {
            let (ending, actions) = step(&record, event, now_at(66));
            assert_eq!(actions, [Action::TearDown]);
            let end = ending.state.termination().unwrap();
            assert_eq!(
                (end.cause.reason, end.started_at),
                (reason, Some(now_at(5).wall))
            );
            assert_eq!(ending.kept, None);
        }
    }
}

#[test]
fn an_agent_that_comes_back_goes_on_where_it_was() {
    let running = running();
    let (halting, _) = step(&running, wants(&running, DesiredState::Stopped), now_at(10));
    let begin = |record: &SandboxRecord| step(record, Event::Begin, now_at(20)).1;
    assert_eq!(begin(&halting), [Action::RequestMain, Action::Terminate]);
    let (keeping, _) = step(&halting, ended(exit(0), 11), now_at(11));
    assert_eq!(begin(&keeping), [Action::RequestMain, Action::Keep]);
    let (discarding, _) = step(&keeping, kept(now_at(10)), now_at(12));
    assert_eq!(begin(&discarding), [Action::Discard]);
    let (mut stopped, _) = step(&discarding, used(1), now_at(13));
    assert_eq!(begin(&stopped), [Action::ServeLogs]);
    // It was to run again, and a reboot came between.
    stopped.spec.desired = DesiredState::Running;
    assert_eq!(begin(&stopped), [Action::Pull]);
}

#[test]
fn one_that_is_to_be_paused_in_place_of_stopped_stands_still() {
    let record = idling();
    let stop = (10, wants(&record, DesiredState::Stopped));
    let pause = (11, wants(&record, DesiredState::Paused));
    let (pausing, actions) = then(&record, [stop, pause]);
    assert_eq!((name(&pausing), actions), ("Pausing", vec![Action::Pause]));
    let still = Event::Paused { turn: 0 };
    let (paused, actions) = step(&pausing, still, now_at(12));
    assert_eq!((name(&paused), actions), ("Paused", vec![]));
}

#[test]
fn a_restart_of_the_agent_does_not_give_up_what_idleness_began() {
    let (keeping, _) = step(&sleepy(), Event::Idle, now_at(40));
    let again = (42, started(5));
    let (same, actions) = then(&keeping, [(41, Event::Begin), again]);
    assert_eq!((same, actions), (keeping, vec![]));
}

#[test]
fn what_idleness_stopped_and_its_spec_wants_again_is_tried_again() {
    let events = [(40, Event::Idle), (41, kept(now_at(40))), (42, used(1))];
    let (slept, _) = then(&sleepy(), events);
    let fails = [
        (51, Event::Image(Err(fault(Reason::ImageNotFound)))),
        (52, Event::Discarded { usage: None }),
    ];
    let (by_use, _) = then(
        &slept,
        std::iter::once((50, Event::Wake)).chain(fails.clone()),
    );
    assert_eq!(
        deadline(&by_use),
        by_use.expires(),
        "the next session tries"
    );
    let start = (50, wants(&slept, DesiredState::Running));
    let (by_spec, _) = then(&slept, std::iter::once(start).chain(fails));
    assert_eq!(
        deadline(&by_spec),
        Some(now_at(52 + 15).boot).min(by_spec.expires())
    );
    assert!(matches!(
        by_spec.state,
        State::Stopped { again: Some(_), .. }
    ));
}

#[test]
fn what_it_used_is_told_also_of_one_that_ends_while_it_is_stopped() {
    let stopped = stopped(&running());
    let (ending, _) = step(&stopped, Event::Delete, now_at(20));
    let nothing = Event::TornDown {
        usage: None,
        output_lost: false,
    };
    let (ended, _) = step(&ending, nothing, now_at(21));
    let usage = ended.state.termination().unwrap().usage.unwrap();
    assert_eq!(usage.cpu_usec, Some(7));
}

#[test]
fn a_node_that_leaves_ends_what_runs_and_leaves_what_is_stopped() {
    let leave = || Event::Leave(fault(Reason::NodeShutdown));
    let running = running();
    let (stopping, actions) = step(&running, leave(), now_at(10));
    assert_eq!(
        (name(&stopping), actions),
        ("Stopping", vec![Action::Terminate])
    );
    let (ending, _) = step(&stopping, ended(exit(5), 11), now_at(11));
    let end = ending.state.termination().unwrap();
    assert_eq!(
        (end.cause.reason, end.cause.exit_code),
        (Reason::NodeShutdown, Some(5))
    );
    let (bound, _) = step(&record(), Event::Begin, now_at(1));
    assert_eq!(step(&bound, leave(), now_at(2)).1, [Action::TearDown]);

    let stopped = stopped(&running);
    assert_eq!(
        step(&stopped, leave(), now_at(20)),
        (stopped.clone(), vec![])
    );
    let (waking, _) = step(&stopped, wants(&stopped, DesiredState::Running), now_at(20));
    let (again, actions) = step(&waking, leave(), now_at(21));
    assert_eq!(
        (name(&again), actions),
        ("Discarding", vec![Action::Discard])
    );
    assert!(again.kept.is_some());
    let (halting, _) = step(&running, wants(&running, DesiredState::Stopped), now_at(10));
    assert_eq!(
        step(&halting, leave(), now_at(11)),
        (halting.clone(), vec![])
    );
}
