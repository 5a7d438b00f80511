//! The state machine of one sandbox. Pure: what is to be done in a state when something happens.
//!
//! The driver writes the record that comes back before it performs the actions. The first cause of an end wins: nothing that
//! happens in `Stopping`, `Ending` or `Ended` changes the reason.

use std::time::Duration;

use cloche_crds::{
    DesiredState, Effective, FailureDomain, IdleAction, MainCommand, Reason, Sandbox,
};

use super::record::{
    Cause, ImageUse, Lack, Pause, PausedBy, SandboxRecord, Stage, State, Termination, Usage,
};
use super::values::Values;
use crate::clock::Now;

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The driver begins, with a new record or one that recovery has decided.
    Begin,
    /// It waits for this before its image is asked for; or not any more.
    Lacks(Option<Lack>),
    /// What its environment takes from elsewhere is here.
    Valued(Values),
    /// The image is here, or cannot be had.
    Image(Result<ImageUse, Cause>),
    /// An instance (by id) is ours, or none can be had.
    Claimed(Result<String, Cause>),
    /// The container runs and its init answers, or this failed.
    Prepared(Result<(), Cause>),
    /// The command runs (or, where there is none, init serves).
    MainStarted {
        /// Since when.
        at: Now,
    },
    /// The command ended, or could not be started.
    MainEnded {
        /// How.
        cause: Cause,
        /// When it had begun to run.
        began: Now,
        /// When it ended: before this event, where no agent ran at that time.
        at: Now,
    },
    /// Init does not answer.
    Unreachable,
    /// The process that all sessions live under was killed from inside.
    InitKilled(Cause),
    /// The sentry is gone, and why.
    Died(Cause),
    /// A deadline may be over.
    Tick,
    /// The object is gone or going.
    Delete,
    /// `spec.lifecycle` changed; what differs elsewhere is not taken over.
    Changed {
        /// The new generation.
        generation: i64,
        /// The manifest that it is taken from now.
        manifest: Option<String>,
        /// The object as it is now.
        object: Box<Sandbox>,
        /// Its spec.
        spec: Box<Effective>,
    },
    /// All its processes stand still.
    Paused {
        /// The turn of the pause that was asked for.
        turn: u32,
    },
    /// All its processes go on.
    Resumed {
        /// The turn of the pause that was asked for.
        turn: u32,
        /// Since when.
        at: Now,
    },
    /// Nobody used it for as long as its spec says.
    Idle,
    /// Somebody wants to use it.
    Wake,
    /// The node needs what it uses.
    Evict(Cause),
    /// Nothing of the instance is left.
    TornDown {
        /// What the sandbox used.
        usage: Usage,
        /// The end of what its command printed is lost.
        output_lost: bool,
    },
}

impl Event {
    /// Whether it tells how the command is, or that this cannot be known: what a deadline means depends on it.
    pub(super) fn tells_of_main(&self) -> bool {
        match self {
            Self::MainStarted { .. }
            | Self::MainEnded { .. }
            | Self::InitKilled(_)
            | Self::Died(_)
            | Self::Unreachable => true,
            Self::Begin
            | Self::Lacks(_)
            | Self::Valued(_)
            | Self::Image(_)
            | Self::Claimed(_)
            | Self::Prepared(_)
            | Self::Tick
            | Self::Delete
            | Self::Changed { .. }
            | Self::Paused { .. }
            | Self::Resumed { .. }
            | Self::Idle
            | Self::Wake
            | Self::Evict(_)
            | Self::TornDown { .. } => false,
        }
    }
}

/// Something to be done. Each comes back as the event that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Have what the environment takes from elsewhere ([`Event::Lacks`], [`Event::Valued`]), then fetch the image and pin it:
    /// [`Event::Image`].
    Pull,
    /// Get an instance: [`Event::Claimed`].
    Claim,
    /// Set limits, start the container, open the channel, set the guest up: [`Event::Prepared`].
    Prepare,
    /// Get or create the session `main`, if there is a command, and watch it: [`Event::MainStarted`], [`Event::MainEnded`].
    /// After a restart of the agent the channel is found again first.
    RequestMain,
    /// Have all its processes stand still, whatever was begun before: [`Event::Paused`].
    Pause,
    /// Let all its processes go on, whatever was begun before: [`Event::Resumed`].
    Resume,
    /// Send SIGTERM to the command.
    Terminate,
    /// Stop whatever effect is under way, take what its command printed, kill and remove the instance and what it holds: [`Event::TornDown`].
    TearDown,
    /// Let the output of the sandbox's commands be read, which has ended under an earlier agent.
    ServeLogs,
    /// Kill and remove an instance that came too late.
    Destroy(String),
    /// Remove all that is left of the sandbox, its record last; the driver ends.
    Remove,
}

/// The record after `event`, and what to do. Called with the driver's own events only; total over all pairs.
pub fn step(record: &SandboxRecord, event: Event, now: Now) -> (SandboxRecord, Vec<Action>) {
    let mut next = record.clone();
    let actions = match event {
        Event::Begin => begin(&next),
        Event::Lacks(lack) => {
            if next.state == State::Bound {
                next.lacks = lack;
            }
            Vec::new()
        }
        Event::Valued(values) => {
            if next.state == State::Bound {
                (next.values, next.lacks) = (Some(values), None);
            }
            Vec::new()
        }
        Event::Image(outcome) => on_image(&mut next, outcome, now),
        Event::Claimed(outcome) => on_claimed(&mut next, outcome, now),
        Event::Prepared(outcome) => on_prepared(&mut next, outcome, now),
        Event::MainStarted { at } => {
            on_main_started(&mut next, at);
            follow_spec(&mut next, now)
        }
        Event::MainEnded { cause, began, at } => on_main_ended(&mut next, cause, began, at),
        Event::Unreachable => Vec::new(),
        Event::InitKilled(cause) => {
            // Only a command can do that: it has been running.
            on_main_started(&mut next, now);
            end(&mut next, cause, now)
        }
        Event::Died(cause) | Event::Evict(cause) => end(&mut next, cause, now),
        Event::Paused { turn } => on_paused(&mut next, turn),
        Event::Resumed { turn, at } => on_resumed(&mut next, turn, at),
        Event::Idle => on_idle(&mut next, now),
        Event::Wake => on_wake(&mut next),
        Event::Tick => on_tick(&mut next, now),
        Event::Delete => on_delete(&mut next, now),
        Event::Changed {
            generation,
            manifest,
            object,
            spec,
        } => {
            next.manifest = manifest;
            if next.spec.same_but_lifecycle(&spec) {
                next.generation = generation;
                next.object = *object;
                next.spec = *spec;
            }
            // Its deadline may have passed by that: the driver looks.
            follow_spec(&mut next, now)
        }
        Event::TornDown { usage, output_lost } => on_torn_down(&mut next, usage, output_lost),
    };
    (next, actions)
}

/// Boot time of the next deadline, if the state has one.
pub fn deadline(record: &SandboxRecord) -> Option<Duration> {
    match &record.state {
        State::Bound | State::Claimed { .. } | State::MainRequested { .. } => {
            Some(record.bound.boot.saturating_add(record.spec.start_timeout))
        }
        State::Running { started, .. } => {
            record.spec.ttl.map(|ttl| started.boot.saturating_add(ttl))
        }
        State::Stopping { kill_at, .. } => Some(*kill_at),
        State::Ending { .. } | State::Ended { .. } => None,
    }
}

fn begin(record: &SandboxRecord) -> Vec<Action> {
    match &record.state {
        State::Bound => vec![Action::Pull],
        State::Claimed { .. } => vec![Action::Prepare],
        State::MainRequested { .. } => vec![Action::RequestMain],
        State::Running { pause, .. } => {
            let pace = pause.map(|pause| match pause.stage {
                Stage::Pausing | Stage::Paused => Action::Pause,
                Stage::Resuming => Action::Resume,
            });
            std::iter::once(Action::RequestMain).chain(pace).collect()
        }
        State::Stopping { paused_since, .. } => {
            let resume = paused_since.map(|_| Action::Resume);
            let rest = [Action::RequestMain, Action::Terminate];
            resume.into_iter().chain(rest).collect()
        }
        State::Ending { .. } => vec![Action::TearDown],
        State::Ended { .. } if record.deleted => vec![Action::Remove],
        State::Ended { .. } => vec![Action::ServeLogs],
    }
}

fn on_image(record: &mut SandboxRecord, outcome: Result<ImageUse, Cause>, now: Now) -> Vec<Action> {
    match (&record.state, outcome) {
        (State::Bound, Ok(image)) => {
            record.image = Some(image);
            // Whatever it was that it waited for to have it.
            record.lacks = None;
            vec![Action::Claim]
        }
        (State::Bound, Err(cause)) => end(record, cause, now),
        // It was stopped while the image came: the image is not pinned by an event that nobody takes.
        (
            State::Claimed { .. }
            | State::MainRequested { .. }
            | State::Running { .. }
            | State::Stopping { .. }
            | State::Ending { .. }
            | State::Ended { .. },
            _,
        ) => Vec::new(),
    }
}

fn on_claimed(record: &mut SandboxRecord, outcome: Result<String, Cause>, now: Now) -> Vec<Action> {
    match (&record.state, outcome) {
        (State::Bound, Ok(instance)) => {
            record.state = State::Claimed { instance };
            vec![Action::Prepare]
        }
        (State::Bound, Err(cause)) => end(record, cause, now),
        (
            State::Claimed { .. }
            | State::MainRequested { .. }
            | State::Running { .. }
            | State::Stopping { .. }
            | State::Ending { .. }
            | State::Ended { .. },
            Ok(instance),
        ) => vec![Action::Destroy(instance)],
        (
            State::Claimed { .. }
            | State::MainRequested { .. }
            | State::Running { .. }
            | State::Stopping { .. }
            | State::Ending { .. }
            | State::Ended { .. },
            Err(_),
        ) => Vec::new(),
    }
}

fn on_prepared(record: &mut SandboxRecord, outcome: Result<(), Cause>, now: Now) -> Vec<Action> {
    match (&record.state, outcome) {
        (State::Claimed { instance }, Ok(())) => {
            record.state = State::MainRequested {
                instance: instance.clone(),
            };
            vec![Action::RequestMain]
        }
        (State::Claimed { .. }, Err(cause)) => end(record, cause, now),
        (
            State::Bound
            | State::MainRequested { .. }
            | State::Running { .. }
            | State::Stopping { .. }
            | State::Ending { .. }
            | State::Ended { .. },
            _,
        ) => Vec::new(),
    }
}

fn on_main_started(record: &mut SandboxRecord, at: Now) {
    if let State::MainRequested { instance } = &record.state {
        record.state = State::Running {
            instance: instance.clone(),
            started: at,
            pause: None,
        };
    }
}

/// Pauses one that runs, or lets it go on, as its spec says. A new spec ends a pause that idleness began.
fn follow_spec(record: &mut SandboxRecord, now: Now) -> Vec<Action> {
    let State::Running { pause, .. } = &mut record.state else {
        return Vec::new();
    };
    match (record.spec.desired, pause) {
        (DesiredState::Paused, None) => begin_pause(record, PausedBy::Spec, now),
        (DesiredState::Paused, Some(pause)) => {
            pause.by = PausedBy::Spec;
            if pause.stage != Stage::Resuming {
                return Vec::new();
            }
            pause.stage = Stage::Pausing;
            pause.turn += 1;
            vec![Action::Pause]
        }
        (DesiredState::Running, Some(pause)) => resume(pause),
        (DesiredState::Running, None) => Vec::new(),
    }
}

fn begin_pause(record: &mut SandboxRecord, by: PausedBy, now: Now) -> Vec<Action> {
    if let State::Running { pause, .. } = &mut record.state {
        *pause = Some(Pause {
            by,
            since: now,
            stage: Stage::Pausing,
            turn: 0,
        });
    }
    vec![Action::Pause]
}

fn resume(pause: &mut Pause) -> Vec<Action> {
    if pause.stage == Stage::Resuming {
        return Vec::new();
    }
    pause.stage = Stage::Resuming;
    pause.turn += 1;
    vec![Action::Resume]
}

fn on_paused(record: &mut SandboxRecord, turn: u32) -> Vec<Action> {
    if let State::Running {
        pause: Some(pause), ..
    } = &mut record.state
        && pause.turn == turn
        && pause.stage == Stage::Pausing
    {
        pause.stage = Stage::Paused;
    }
    Vec::new()
}

fn on_resumed(record: &mut SandboxRecord, turn: u32, at: Now) -> Vec<Action> {
    if let State::Running { pause, .. } = &mut record.state
        && let Some(over) =
            pause.take_if(|pause| pause.turn == turn && pause.stage == Stage::Resuming)
    {
        let time = at.boot.saturating_sub(over.since.boot);
        record.paused = record.paused.saturating_add(time);
    }
    Vec::new()
}

fn on_idle(record: &mut SandboxRecord, now: Now) -> Vec<Action> {
    let (State::Running { pause: None, .. }, Some(idle)) = (&record.state, record.spec.idle) else {
        return Vec::new();
    };
    match idle.action {
        IdleAction::Pause => begin_pause(record, PausedBy::Idleness, now),
        IdleAction::End => {
            let message = format!(
                "nobody used it for {} s (spec.lifecycle.idleTimeoutSeconds)",
                idle.timeout.as_secs()
            );
            stop(
                record,
                Cause::new(Reason::IdleTimeout, FailureDomain::Policy, message),
                now,
            )
        }
    }
}

fn on_wake(record: &mut SandboxRecord) -> Vec<Action> {
    match &mut record.state {
        State::Running {
            pause: Some(pause), ..
        } if pause.by == PausedBy::Idleness => resume(pause),
        State::Running { .. }
        | State::Bound
        | State::Claimed { .. }
        | State::MainRequested { .. }
        | State::Stopping { .. }
        | State::Ending { .. }
        | State::Ended { .. } => Vec::new(),
    }
}

fn on_main_ended(record: &mut SandboxRecord, cause: Cause, began: Now, at: Now) -> Vec<Action> {
    // A command can run and end between two looks: it has been running all the same.
    let could_not_start = matches!(
        cause.reason,
        Reason::CommandNotFound | Reason::CommandNotExecutable
    );
    if !could_not_start {
        on_main_started(record, began);
    }
    if let State::Stopping { because, .. } = &mut record.state {
        because.exit_code = cause.exit_code;
        because.signal = cause.signal;
    }
    end(record, cause, at)
}

fn on_tick(record: &mut SandboxRecord, now: Now) -> Vec<Action> {
    if deadline(record).is_none_or(|deadline| now.boot < deadline) {
        return Vec::new();
    }
    match &record.state {
        State::Bound | State::Claimed { .. } | State::MainRequested { .. } => {
            let waiting_for = match (&record.state, &record.lacks) {
                (State::Bound, Some(lack)) => format!("it was waiting: {}", lack.why),
                (State::Bound, None) if record.image.is_none() => {
                    "its image was still being pulled".to_owned()
                }
                (State::Bound, None) => {
                    "it was waiting for an instance, or for the room for one".to_owned()
                }
                _ => "its command was being started".to_owned(),
            };
            let seconds = record.spec.start_timeout.as_secs();
            let message = format!(
                "not running {seconds} s after it was bound (spec.lifecycle.startTimeoutSeconds): {waiting_for}"
            );
            end(
                record,
                Cause::new(Reason::StartTimeout, FailureDomain::Infrastructure, message),
                now,
            )
        }
        State::Running { .. } => {
            let seconds = record.spec.ttl.unwrap_or_default().as_secs();
            let message =
                format!("{seconds} s since its start are over (spec.lifecycle.ttlSeconds)");
            stop(
                record,
                Cause::new(Reason::DeadlineExceeded, FailureDomain::Policy, message),
                now,
            )
        }
        State::Stopping { because, .. } => {
            let because = because.clone();
            end(record, because, now)
        }
        State::Ending { .. } | State::Ended { .. } => Vec::new(),
    }
}

fn on_delete(record: &mut SandboxRecord, now: Now) -> Vec<Action> {
    record.deleted = true;
    match &record.state {
        State::Bound | State::Claimed { .. } | State::MainRequested { .. } => {
            end(record, deleted(), now)
        }
        State::Running { .. } => stop(record, deleted(), now),
        State::Stopping { .. } | State::Ending { .. } => Vec::new(),
        State::Ended { .. } => vec![Action::Remove],
    }
}

fn on_torn_down(record: &mut SandboxRecord, usage: Usage, output_lost: bool) -> Vec<Action> {
    let State::Ending { termination, .. } = &record.state else {
        return Vec::new();
    };
    let mut termination = Termination {
        usage: Some(usage),
        ..termination.clone()
    };
    if output_lost {
        termination
            .cause
            .message
            .push_str("; the end of its output is lost");
    }
    record.state = State::Ended { termination };
    if record.deleted {
        vec![Action::Remove]
    } else {
        Vec::new()
    }
}

fn deleted() -> Cause {
    Cause::new(
        Reason::Deleted,
        FailureDomain::User,
        "its object was deleted",
    )
}

/// Ends a running sandbox with grace: its command gets SIGTERM and time. Without a command there is nobody to tell.
fn stop(record: &mut SandboxRecord, because: Cause, now: Now) -> Vec<Action> {
    let State::Running {
        instance,
        started,
        pause,
    } = &record.state
    else {
        return end(record, because, now);
    };
    if record.spec.main == MainCommand::Idle {
        return end(record, because, now);
    }
    let kill_at = now.boot.saturating_add(record.spec.grace);
    // What stands still cannot be told.
    let paused_since = pause.map(|pause| pause.since);
    let resume = paused_since.map(|_| Action::Resume);
    record.state = State::Stopping {
        instance: instance.clone(),
        started: *started,
        because,
        kill_at,
        paused_since,
    };
    resume.into_iter().chain([Action::Terminate]).collect()
}

/// Ends the sandbox, as of `now`. Where an end was begun already, its reason stays.
fn end(record: &mut SandboxRecord, cause: Cause, now: Now) -> Vec<Action> {
    let cause = match &record.state {
        State::Ending { .. } | State::Ended { .. } => return Vec::new(),
        State::Stopping { because, .. } => because.clone(),
        State::Bound
        | State::Claimed { .. }
        | State::MainRequested { .. }
        | State::Running { .. } => cause,
    };
    let termination = Termination {
        cause,
        started_at: record.state.started().map(|started| started.wall),
        finished_at: now.wall,
        usage: None,
    };
    record.state = State::Ending {
        instance: record.state.instance().map(str::to_owned),
        termination,
    };
    // Secrets are kept no longer than they are of use.
    (record.values, record.lacks) = (None, None);
    vec![Action::TearDown]
}

#[cfg(test)]
mod tests;
