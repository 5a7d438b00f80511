//! What the object's status says of a sandbox. Pure: from the record, and what is known beside it.

use cloche_crds::condition::set_condition;
use cloche_crds::sandbox::{EffectiveStatus, RuntimeStatus, Termination as TerminationStatus};
use cloche_crds::{ConditionReason, ConditionStatus, ConditionType, Phase, SandboxStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::command;
use super::record::{Lack, Lacking, Pause, PausedBy, SandboxRecord, Stage, State, Termination};
use crate::image::Progress;
use crate::usage::Pressure;

/// What the status says beside the record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Beside {
    /// The node's name.
    pub node_name: String,
    /// The runtime that runs it.
    pub runtime: RuntimeStatus,
    /// How far the image is, while it is not here.
    pub pull: Option<Progress>,
    /// Its node has room for it only once others are gone.
    pub waits_for_room: bool,
    /// Its sessions cannot be reached, and why.
    pub sessions_unavailable: Option<String>,
    /// Its processes cannot be stopped, or let go on, and why.
    pub cannot_pause: Option<String>,
    /// Its files cannot be kept, and why.
    pub cannot_keep: Option<String>,
    /// What it is short of by its own limits.
    pub pressure: Pressure,
    /// Output of its commands cannot be stored, and why.
    pub log_storage_full: Option<String>,
}

/// The status; transition times are kept from `before` where nothing changed.
pub fn status(
    record: &SandboxRecord,
    beside: &Beside,
    before: &[Condition],
    now: Timestamp,
) -> SandboxStatus {
    let started = started(record);
    let mut conditions = before.to_vec();
    for (kind, status, reason, message) in conditions_of(record, beside) {
        set_condition(&mut conditions, kind, status, reason, &message, now);
    }
    for (kind, is_short, reason, message) in pressures(beside.pressure) {
        let is_short = is_short && record.state.termination().is_none();
        let was_told = conditions.iter().any(|one| one.type_ == kind.as_str());
        let (status, reason, message) = if is_short {
            (ConditionStatus::True, reason, message)
        } else {
            (ConditionStatus::False, ConditionReason::Enough, "")
        };
        // Not told of what never was short.
        if is_short || was_told {
            set_condition(&mut conditions, kind, status, reason, message, now);
        }
    }
    let ran = record.state.instance().is_some() || started.is_some();
    SandboxStatus {
        observed_generation: Some(record.generation),
        phase: phase(record, beside),
        conditions,
        node_name: Some(beside.node_name.clone()),
        node_uid: None,
        effective: Some(effective(record)),
        image_digest: record.image.as_ref().map(|image| image.digest.to_string()),
        runtime: ran.then(|| beside.runtime.clone()),
        started_at: started.map(Time),
        expires_at: expires(record).map(Time),
        termination: match &record.state {
            State::Ended { termination } => Some(told(termination)),
            // Told once and then frozen: it is not whole before nothing is left.
            State::Bound
            | State::Claimed { .. }
            | State::MainRequested { .. }
            | State::Running { .. }
            | State::Halting { .. }
            | State::Keeping { .. }
            | State::Discarding { .. }
            | State::Stopped { .. }
            | State::Stopping { .. }
            | State::Ending { .. } => None,
        },
    }
}

/// Since when it stands as the record tells, as far as that tells.
pub fn since(record: &SandboxRecord) -> Timestamp {
    match &record.state {
        State::Bound | State::Claimed { .. } | State::MainRequested { .. } => record.begun().wall,
        State::Running {
            pause: Some(pause), ..
        } => pause.since.wall,
        State::Halting { since, .. } | State::Keeping { since, .. } => since.wall,
        State::Discarding { .. } | State::Stopped { .. } => {
            let kept = record.kept.as_ref();
            kept.map_or(record.bound, |kept| kept.since).wall
        }
        State::Running { started, .. } | State::Stopping { started, .. } => started.wall,
        State::Ending { termination, .. } | State::Ended { termination } => termination.ended_at(),
    }
}

fn phase(record: &SandboxRecord, beside: &Beside) -> Phase {
    match &record.state {
        // It holds nothing yet of what it needs to run again.
        State::Bound if record.kept.is_some() && beside.waits_for_room => Phase::Stopped,
        State::Bound | State::Claimed { .. } | State::MainRequested { .. } => Phase::Starting,
        State::Running { pause, .. } => match pause.map(|pause| pause.stage) {
            // As long as anything may run, or nothing may be asked of it.
            None | Some(Stage::Pausing) => Phase::Running,
            Some(Stage::Paused | Stage::Resuming) => Phase::Paused,
        },
        // As long as it holds what one that runs holds.
        State::Halting { .. } | State::Keeping { .. } => Phase::Running,
        State::Discarding { .. } if record.kept.is_some() => Phase::Running,
        State::Discarding { .. } | State::Stopped { .. } => Phase::Stopped,
        State::Stopping { .. } | State::Ending { .. } => Phase::Terminating,
        State::Ended { termination } => termination.cause.reason.phase(),
    }
}

fn started(record: &SandboxRecord) -> Option<Timestamp> {
    match &record.state {
        State::Ending { termination, .. } | State::Ended { termination } => termination.started_at,
        State::Bound
        | State::Claimed { .. }
        | State::MainRequested { .. }
        | State::Running { .. }
        | State::Halting { .. }
        | State::Keeping { .. }
        | State::Discarding { .. }
        | State::Stopped { .. }
        | State::Stopping { .. } => record.started().map(|started| started.wall),
    }
}

fn expires(record: &SandboxRecord) -> Option<Timestamp> {
    let ttl = jiff::SignedDuration::try_from(record.spec.ttl?).ok()?;
    started(record)?.checked_add(ttl).ok()
}

fn effective(record: &SandboxRecord) -> EffectiveStatus {
    let before_image = EffectiveStatus::before_image(&record.spec);
    match &record.image {
        None => before_image,
        Some(image) => EffectiveStatus {
            working_dir: Some(command::working_dir(record, image).to_owned()),
            user: Some(command::user(record, image)),
            ..before_image
        },
    }
}

fn told(termination: &Termination) -> TerminationStatus {
    let Termination {
        cause,
        started_at,
        finished_at: _,
        usage,
    } = termination;
    TerminationStatus {
        reason: cause.reason,
        failure_domain: cause.domain,
        message: cloche_crds::condition::bounded(&cause.message),
        exit_code: cause.exit_code,
        signal: cause.signal,
        started_at: started_at.map(Time),
        finished_at: Some(Time(termination.ended_at())),
        peak_memory_bytes: usage
            .and_then(|usage| usage.peak_memory)
            .filter(|peak| *peak > 0)
            .map(|peak| i64::try_from(peak).unwrap_or(i64::MAX)),
        cpu_seconds: usage
            .and_then(|usage| usage.cpu_usec)
            .map(|usec| i64::try_from(usec / 1_000_000).unwrap_or(i64::MAX)),
        written_bytes: usage
            .and_then(|usage| usage.written)
            .map(|written| i64::try_from(written).unwrap_or(i64::MAX)),
    }
}

fn pressures(pressure: Pressure) -> [(ConditionType, bool, ConditionReason, &'static str); 2] {
    [
        (
            ConditionType::DiskPressure,
            pressure.disk,
            ConditionReason::NearLimit,
            "it uses nearly all of its ephemeral-storage limit: what it writes beyond fails with ENOSPC",
        ),
        (
            ConditionType::CPUThrottled,
            pressure.cpu,
            ConditionReason::Throttled,
            "its cpu limit holds it up in more than half of the time",
        ),
    ]
}

type ConditionLine = (ConditionType, ConditionStatus, ConditionReason, String);

fn conditions_of(record: &SandboxRecord, beside: &Beside) -> Vec<ConditionLine> {
    use ConditionStatus::{False, True};
    let mut lines = vec![(
        ConditionType::Scheduled,
        True,
        ConditionReason::Bound,
        String::new(),
    )];

    let (status, reason, message) = match (&record.image, record.state.termination(), &beside.pull)
    {
        (Some(image), _, _) => (True, ConditionReason::Present, image.digest.to_string()),
        (None, Some(end), _) => (
            False,
            ConditionReason::Ended(end.cause.reason),
            end.cause.message.clone(),
        ),
        (None, None, Some(Progress::Resolving)) => (
            False,
            ConditionReason::Pulling,
            "asking what the reference means".to_owned(),
        ),
        (None, None, Some(Progress::Pulling { done, total })) => (
            False,
            ConditionReason::Pulling,
            format!("{done} of {total} bytes"),
        ),
        (None, None, Some(Progress::Unpacking)) => {
            (False, ConditionReason::Unpacking, String::new())
        }
        (None, None, None) => match record.lacks.as_ref() {
            Some(Lack {
                what: Lacking::Logins,
                why,
            }) => (False, ConditionReason::WaitingForReferences, why.clone()),
            _ => (False, ConditionReason::Waiting, String::new()),
        },
    };
    lines.push((ConditionType::ImageReady, status, reason, message));

    let (status, reason, message) = ready(record, beside);
    lines.push((ConditionType::Ready, status, reason, message));

    if let State::Ended { termination } = &record.state {
        let reason = ConditionReason::Ended(termination.cause.reason);
        if termination.cause.reason.phase() == Phase::Failed {
            lines.push((
                ConditionType::Stalled,
                True,
                reason,
                termination.cause.message.clone(),
            ));
        }
        lines.push((
            ConditionType::Finished,
            True,
            reason,
            termination.cause.message.clone(),
        ));
    }
    lines
}

fn ready(record: &SandboxRecord, beside: &Beside) -> (ConditionStatus, ConditionReason, String) {
    use ConditionStatus::{False, True, Unknown};
    match &record.state {
        State::Bound
            if record.kept.is_some() && record.lacks.is_none() && beside.waits_for_room =>
        {
            let message = "it is to run again, and waits for room on its node".to_owned();
            (False, ConditionReason::WakePending, message)
        }
        State::Bound | State::Claimed { .. } | State::MainRequested { .. } => match &record.lacks {
            Some(lack) => (
                False,
                ConditionReason::WaitingForReferences,
                lack.why.clone(),
            ),
            None if beside.waits_for_room => (
                False,
                ConditionReason::Starting,
                "it waits for room on its node: what other sandboxes there hold until they have ended, or space on its disk"
                    .to_owned(),
            ),
            None => (False, ConditionReason::Starting, String::new()),
        },
        State::Running {
            pause: Some(pause), ..
        } => paused(record, pause, beside),
        State::Running { pause: None, .. } => {
            match (&beside.sessions_unavailable, &beside.log_storage_full) {
                (None, None) => (True, ConditionReason::Running, String::new()),
                (Some(why), _) => (Unknown, ConditionReason::SessionsUnavailable, why.clone()),
                (None, Some(why)) => (False, ConditionReason::LogStorageFull, why.clone()),
            }
        }
        State::Halting { .. } => (
            False,
            ConditionReason::Stopping,
            "its command was told to end".to_owned(),
        ),
        State::Keeping { .. } => {
            let message = match beside.cannot_keep.as_ref().or(beside.cannot_pause.as_ref()) {
                None => "its files are being kept".to_owned(),
                Some(why) => format!("its files cannot be kept, and that is tried again: {why}"),
            };
            (False, ConditionReason::Stopping, message)
        }
        State::Discarding { .. } => (False, ConditionReason::Stopping, String::new()),
        State::Stopped { failed: None, .. } => stopped(record),
        State::Stopped {
            failed: Some(why), ..
        } => (
            False,
            ConditionReason::WakePending,
            format!("it could not be brought back: {why}"),
        ),
        State::Stopping { because, .. } => {
            (False, ConditionReason::Terminating, because.message.clone())
        }
        State::Ending { termination, .. } => (
            False,
            ConditionReason::Terminating,
            termination.cause.message.clone(),
        ),
        State::Ended { termination } => (
            False,
            ConditionReason::Ended(termination.cause.reason),
            termination.cause.message.clone(),
        ),
    }
}

/// Why one is stopped.
fn stopped(record: &SandboxRecord) -> (ConditionStatus, ConditionReason, String) {
    let (reason, message) = match (record.stopped, record.spec.idle) {
        (Some(PausedBy::Idleness), idle) => (
            ConditionReason::Idle,
            format!(
                "nobody used it for {} s; the next session has it run again",
                idle.map_or(0, |idle| idle.timeout.as_secs())
            ),
        ),
        (Some(PausedBy::Spec) | None, _) => (
            ConditionReason::Stopped,
            "spec.lifecycle.desiredState is Stopped".to_owned(),
        ),
    };
    (ConditionStatus::False, reason, message)
}

fn paused(
    record: &SandboxRecord,
    pause: &Pause,
    beside: &Beside,
) -> (ConditionStatus, ConditionReason, String) {
    let (reason, mut message) = match (pause.by, record.spec.idle) {
        (PausedBy::Spec, _) if pause.stage == Stage::Resuming => {
            (ConditionReason::Paused, "it is about to go on".to_owned())
        }
        (PausedBy::Spec, _) => (
            ConditionReason::Paused,
            "spec.lifecycle.desiredState is Paused".to_owned(),
        ),
        (PausedBy::Idleness, Some(idle)) => (
            ConditionReason::Idle,
            format!(
                "nobody used it for {} s; the next session has it run again",
                idle.timeout.as_secs()
            ),
        ),
        (PausedBy::Idleness, None) => (ConditionReason::Idle, String::new()),
    };
    if let Some(why) = &beside.cannot_pause {
        let what = match pause.stage {
            Stage::Pausing => "it may still run",
            Stage::Paused => "it is not known whether it stands still",
            Stage::Resuming => "it cannot go on yet",
        };
        message = format!("{message}; {what}: {why}");
    }
    (ConditionStatus::False, reason, message)
}

#[cfg(test)]
mod tests;
