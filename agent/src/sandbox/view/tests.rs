use cloche_crds::{FailureDomain, Reason};

use super::*;
use crate::image::{Digest, ImageConfig};
use crate::sandbox::fixture::{now_at, record};
use crate::sandbox::{Cause, ImageUse, Lack, Lacking, Usage};

fn at(state: State) -> SandboxRecord {
    let image = ImageUse {
        digest: Digest::of(b"an image"),
        config: ImageConfig::default(),
    };
    SandboxRecord {
        state,
        image: Some(image),
        ..record()
    }
}

fn running() -> State {
    State::Running {
        instance: "i1".to_owned(),
        started: now_at(5),
        pause: None,
    }
}

fn ended(reason: Reason) -> State {
    let cause = Cause {
        exit_code: Some(3),
        ..Cause::new(reason, reason.default_domain(), "so it was")
    };
    State::Ended {
        termination: Termination {
            cause,
            started_at: Some(now_at(5).wall),
            finished_at: now_at(9).wall,
            usage: Some(Usage {
                peak_memory: Some(1 << 20),
                cpu_usec: Some(2_500_000),
                written: Some(4096),
            }),
        },
    }
}

fn shown(record: &SandboxRecord, beside: &Beside) -> SandboxStatus {
    status(record, beside, &[], now_at(10).wall)
}

/// `Type=Status/Reason` of every condition.
fn lines(status: &SandboxStatus) -> Vec<String> {
    status
        .conditions
        .iter()
        .map(|one| format!("{}={}/{}", one.type_, one.status, one.reason))
        .collect()
}

#[test]
fn a_running_one_is_ready_and_says_when_it_expires() {
    let status = shown(&at(running()), &Beside::default());
    assert_eq!(status.phase, Phase::Running);
    assert_eq!(
        lines(&status),
        [
            "Scheduled=True/Bound",
            "ImageReady=True/Present",
            "Ready=True/Running"
        ]
    );
    assert_eq!(status.started_at, Some(Time(now_at(5).wall)));
    assert_eq!(status.expires_at, Some(Time(now_at(65).wall)));
    assert_eq!(status.termination, None);
}

#[test]
fn one_whose_sessions_are_out_of_reach_is_not_ready_but_runs() {
    let beside = Beside {
        sessions_unavailable: Some("it is silent".to_owned()),
        ..Beside::default()
    };
    let status = shown(&at(running()), &beside);
    assert_eq!(status.phase, Phase::Running);
    assert_eq!(lines(&status)[2], "Ready=Unknown/SessionsUnavailable");
}

#[test]
fn one_that_waits_for_a_secret_says_so() {
    let mut waiting = record();
    waiting.lacks = Some(Lack {
        what: Lacking::Environment,
        why: "env A: there is no Secret \"db\"".to_owned(),
    });
    let status = shown(&waiting, &Beside::default());
    assert_eq!(status.phase, Phase::Starting);
    assert_eq!(
        lines(&status),
        [
            "Scheduled=True/Bound",
            "ImageReady=False/Waiting",
            "Ready=False/WaitingForReferences"
        ]
    );
    assert_eq!(
        status.conditions[2].message,
        "env A: there is no Secret \"db\""
    );
    waiting.lacks = Some(Lack {
        what: Lacking::Logins,
        why: "the Secret \"regcred\" is not there".to_owned(),
    });
    let status = shown(&waiting, &Beside::default());
    let told = [
        "ImageReady=False/WaitingForReferences",
        "Ready=False/WaitingForReferences",
    ];
    assert_eq!(lines(&status)[1..], told);
}

#[test]
fn one_whose_output_cannot_be_stored_is_not_ready_but_runs() {
    let beside = Beside {
        log_storage_full: Some("no space left".to_owned()),
        ..Beside::default()
    };
    let status = shown(&at(running()), &beside);
    assert_eq!(status.phase, Phase::Running);
    assert_eq!(lines(&status)[2], "Ready=False/LogStorageFull");
    assert_eq!(status.conditions[2].message, "no space left");
    // Once it is ended that is what counts.
    let ended = shown(&at(ended(Reason::Error)), &beside);
    assert!(lines(&ended).contains(&"Ready=False/Error".to_owned()));
}

#[test]
fn a_pull_under_way_is_told() {
    let pulling = SandboxRecord {
        image: None,
        ..record()
    };
    let beside = Beside {
        pull: Some(Progress::Pulling { done: 1, total: 2 }),
        ..Beside::default()
    };
    let status = shown(&pulling, &beside);
    assert_eq!(
        (status.phase, status.image_digest.clone()),
        (Phase::Starting, None)
    );
    assert_eq!(
        lines(&status)[1..],
        ["ImageReady=False/Pulling", "Ready=False/Starting"]
    );
    assert_eq!(status.conditions[1].message, "1 of 2 bytes");
}

#[test]
fn an_end_settles_every_condition() {
    let failed = shown(&at(ended(Reason::Error)), &Beside::default());
    assert_eq!(failed.phase, Phase::Failed);
    let wanted = [
        "Scheduled=True/Bound",
        "ImageReady=True/Present",
        "Ready=False/Error",
        "Stalled=True/Error",
        "Finished=True/Error",
    ];
    assert_eq!(lines(&failed), wanted);
    let end = failed.termination.unwrap();
    assert_eq!(
        (end.reason, end.failure_domain, end.exit_code),
        (Reason::Error, FailureDomain::Workload, Some(3))
    );
    assert_eq!(
        (end.peak_memory_bytes, end.cpu_seconds, end.written_bytes),
        (Some(1 << 20), Some(2), Some(4096))
    );
    let completed = shown(&at(ended(Reason::Completed)), &Beside::default());
    assert_eq!(completed.phase, Phase::Succeeded);
    assert!(
        !lines(&completed)
            .iter()
            .any(|line| line.starts_with("Stalled"))
    );
}

#[test]
fn nothing_ends_before_it_ran() {
    let mut record = at(ended(Reason::NodeLost));
    if let State::Ended { termination } = &mut record.state {
        termination.finished_at = now_at(1).wall;
    }
    let end = shown(&record, &Beside::default()).termination.unwrap();
    assert_eq!(end.finished_at, end.started_at);
    assert_eq!(since(&record), now_at(5).wall);
}

#[test]
fn an_end_is_told_when_nothing_is_left() {
    let State::Ended { termination } = ended(Reason::OOMKilled) else {
        panic!()
    };
    let ending = State::Ending {
        instance: Some("i1".to_owned()),
        termination,
    };
    let status = shown(&at(ending), &Beside::default());
    assert_eq!(
        (status.phase, status.termination.clone()),
        (Phase::Terminating, None)
    );
    assert_eq!(lines(&status)[2], "Ready=False/Terminating");
}

#[test]
fn transition_times_are_kept_while_nothing_changes() {
    let first = status(&at(running()), &Beside::default(), &[], now_at(10).wall);
    let again = status(
        &at(running()),
        &Beside::default(),
        &first.conditions,
        now_at(20).wall,
    );
    assert_eq!(first, again);
}

#[test]
fn a_pause_is_shown_from_when_all_stands_still_until_it_goes_on() {
    let pause = |by, stage| {
        let pause = Pause {
            by,
            since: now_at(20),
            stage,
            turn: 0,
        };
        let mut record = at(State::Running {
            instance: "i1".to_owned(),
            started: now_at(5),
            pause: Some(pause),
        });
        record.spec.idle = Some(cloche_crds::sandbox::Idle {
            timeout: std::time::Duration::from_secs(30),
            action: cloche_crds::IdleAction::Pause,
        });
        record
    };
    let shown = |record: &SandboxRecord, beside: &Beside| {
        let status = status(record, beside, &[], now_at(30).wall);
        let ready = status.conditions.iter().find(|one| one.type_ == "Ready");
        let ready = ready.unwrap().clone();
        assert_eq!(ready.status, "False");
        (status.phase, ready.reason, ready.message)
    };
    let here = Beside::default();
    for (stage, phase) in [
        (Stage::Pausing, Phase::Running),
        (Stage::Paused, Phase::Paused),
        (Stage::Resuming, Phase::Paused),
    ] {
        let (seen, reason, _) = shown(&pause(PausedBy::Spec, stage), &here);
        assert_eq!((seen, reason.as_str()), (phase, "Paused"));
    }
    let (_, reason, message) = shown(&pause(PausedBy::Idleness, Stage::Paused), &here);
    assert_eq!(reason, "Idle");
    assert!(message.contains("30 s"), "{message}");
    let stuck = Beside {
        cannot_pause: Some("no answer".to_owned()),
        ..Beside::default()
    };
    let (_, _, message) = shown(&pause(PausedBy::Spec, Stage::Pausing), &stuck);
    assert!(
        message.ends_with("it may still run: no answer"),
        "{message}"
    );
}

#[test]
fn what_it_is_short_of_is_told_once_it_was_and_not_after_its_end() {
    let running = at(running());
    let of = |record: &SandboxRecord, pressure, before: &[Condition]| {
        let beside = Beside {
            pressure,
            ..Beside::default()
        };
        let status = status(record, &beside, before, now_at(10).wall);
        let of_disk = |one: &Condition| one.type_ == "DiskPressure";
        let told = status.conditions.iter().find(|one| of_disk(one));
        let told = told.map(|one| format!("{}/{}", one.status, one.reason));
        (told, status.conditions)
    };
    let (nothing, before) = of(&running, Pressure::default(), &[]);
    assert_eq!(nothing, None);
    let short = Pressure {
        disk: true,
        ..Pressure::default()
    };
    let (told, before) = of(&running, short, &before);
    assert_eq!(told.as_deref(), Some("True/NearLimit"));
    let (told, before) = of(&running, Pressure::default(), &before);
    assert_eq!(told.as_deref(), Some("False/Enough"));
    let (told, _) = of(&at(ended(Reason::Error)), short, &before);
    assert_eq!(told.as_deref(), Some("False/Enough"));
}
