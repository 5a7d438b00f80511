//! The state machine of one sandbox. Pure: what is to be done in a state when something happens.
//!
//! The driver writes the record that comes back before it performs the actions. The first cause of an end wins: nothing that
//! happens in `Stopping`, `Ending` or `Ended` changes the reason.

use std::time::Duration;

use cloche_crds::{
    DesiredState, Effective, FailureDomain, IdleAction, MainCommand, Reason, Sandbox,
};

use super::record::{
    Cause, ImageUse, Kept, Lack, Pause, PausedBy, SandboxRecord, Stage, State, Termination, Usage,
};
use super::values::Values;
use crate::clock::Now;
use crate::instance::limits;
use crate::snapshot::Saved;

/// How long after a sandbox could not be brought back that is tried again; doubled each time, up to so often.
const WAKE_AGAIN: Duration = Duration::from_secs(15);
const DOUBLINGS: u32 = 5;

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
    Died {
        /// Whose it was: the sandbox may have another by now.
        instance: String,
        /// Why.
        cause: Cause,
    },
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
    /// All its processes stand still and its files are kept.
    Kept {
        /// When the stop was begun that they are kept for.
        since: Now,
        /// Where.
        files: Saved,
    },
    /// Nothing is left of the instance, if there was one.
    Discarded {
        /// What it used.
        usage: Option<Usage>,
    },
    /// The node needs what it uses.
    Evict(Cause),
    /// Its node is being drained or shut down.
    Leave(Cause),
    /// Somebody else has declared it ended: nothing of it may run.
    End(Cause),
    /// Nothing of the instance is left.
    TornDown {
        /// What the instance used, if there was one.
        usage: Option<Usage>,
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
            | Self::Died { .. }
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
            | Self::Kept { .. }
            | Self::Discarded { .. }
            | Self::Evict(_)
            | Self::Leave(_)
            | Self::End(_)
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
    /// Have all its processes stand still, and keep its files, however often that takes: [`Event::Kept`].
    Keep,
    /// Stop whatever effect is under way, kill and remove the instance, if there is one, and give its share of the node back:
    /// [`Event::Discarded`].
    Discard,
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
        Event::Begin => begin(&mut next, now),
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
            // Told again after a restart of the agent: its spec was followed then.
            if on_main_started(&mut next, at) {
                follow_spec(&mut next, now)
            } else {
                Vec::new()
            }
        }
        Event::MainEnded { cause, began, at } => on_main_ended(&mut next, cause, began, at),
        Event::Unreachable => Vec::new(),
        Event::InitKilled(cause) => {
            // Only a command can do that: it has been running.
            _ = on_main_started(&mut next, now);
            end(&mut next, cause, now)
        }
        Event::Died { instance, cause } => {
            if next.state.instance() == Some(&instance) {
                fail(&mut next, cause, now)
            } else {
                Vec::new()
            }
        }
        Event::Evict(cause) => fail(&mut next, cause, now),
        Event::Leave(cause) => leave(&mut next, cause, now),
        Event::End(cause) => end(&mut next, cause, now),
        Event::Kept { since, files } => on_kept(&mut next, since, files),
        Event::Discarded { usage } => on_discarded(&mut next, usage, now),
        Event::Paused { turn } => on_paused(&mut next, turn),
        Event::Resumed { turn, at } => on_resumed(&mut next, turn, at),
        Event::Idle => on_idle(&mut next, now),
        Event::Wake => on_wake(&mut next, now),
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
    let first = |one: Option<Duration>| one.into_iter().chain(record.expires()).min();
    let start = || {
        record
            .begun()
            .boot
            .saturating_add(record.spec.start_timeout)
    };
    match &record.state {
        // One that is to run again waits for room as long as it lives: it holds nothing.
        State::Bound if record.woken.is_some() => record.expires(),
        State::Bound | State::Claimed { .. } | State::MainRequested { .. } => first(Some(start())),
        State::Running { .. } | State::Keeping { .. } => record.expires(),
        State::Halting { kill_at, .. } => first(Some(*kill_at)),
        State::Stopped { again, .. } => first(*again),
        State::Stopping { kill_at, .. } => Some(*kill_at),
        State::Discarding { .. } | State::Ending { .. } | State::Ended { .. } => None,
    }
}

fn begin(record: &mut SandboxRecord, now: Now) -> Vec<Action> {
    if record.state == State::Bound && record.spec.desired == DesiredState::Stopped {
        record.stopped = Some(PausedBy::Spec);
        return discard(record, None);
    }
    if let State::Stopped { again: None, .. } = record.state
        && is_wanted(record)
    {
        return wake(record, now);
    }
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
        State::Keeping { .. } => vec![Action::RequestMain, Action::Keep],
        State::Discarding { .. } => vec![Action::Discard],
        State::Halting { paused_since, .. } | State::Stopping { paused_since, .. } => {
            let resume = paused_since.map(|_| Action::Resume);
            let rest = [Action::RequestMain, Action::Terminate];
            resume.into_iter().chain(rest).collect()
        }
        State::Ending { .. } => vec![Action::TearDown],
        State::Ended { .. } if record.deleted => vec![Action::Remove],
        State::Stopped { .. } | State::Ended { .. } => vec![Action::ServeLogs],
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
        (State::Bound, Err(cause)) => fail(record, cause, now),
        // It was stopped while the image came: the image is not pinned by an event that nobody takes.
        (
            State::Claimed { .. }
            | State::MainRequested { .. }
            | State::Running { .. }
            | State::Halting { .. }
            | State::Keeping { .. }
            | State::Discarding { .. }
            | State::Stopped { .. }
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
            if record.woken.is_some() {
                // It waited for room for as long as it took: its start begins here.
                record.woken = Some(now);
            }
            record.state = State::Claimed { instance };
            vec![Action::Prepare]
        }
        (State::Bound, Err(cause)) => fail(record, cause, now),
        (
            State::Claimed { .. }
            | State::MainRequested { .. }
            | State::Running { .. }
            | State::Halting { .. }
            | State::Keeping { .. }
            | State::Discarding { .. }
            | State::Stopped { .. }
            | State::Stopping { .. }
            | State::Ending { .. }
            | State::Ended { .. },
            Ok(instance),
        ) => vec![Action::Destroy(instance)],
        (
            State::Claimed { .. }
            | State::MainRequested { .. }
            | State::Running { .. }
            | State::Halting { .. }
            | State::Keeping { .. }
            | State::Discarding { .. }
            | State::Stopped { .. }
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
        (State::Claimed { .. }, Err(cause)) => fail(record, cause, now),
        (
            State::Bound
            | State::MainRequested { .. }
            | State::Running { .. }
            | State::Halting { .. }
            | State::Keeping { .. }
            | State::Discarding { .. }
            | State::Stopped { .. }
            | State::Stopping { .. }
            | State::Ending { .. }
            | State::Ended { .. },
            _,
        ) => Vec::new(),
    }
}

/// Whether it runs from here on, and did not before.
fn on_main_started(record: &mut SandboxRecord, at: Now) -> bool {
    let State::MainRequested { instance } = &record.state else {
        return false;
    };
    record.state = State::Running {
        instance: instance.clone(),
        // What is brought back has begun to live when it first ran; its kept files are of no use from here on.
        started: record.kept.take().map_or(at, |kept| kept.started),
        pause: None,
    };
    (record.stopped, record.woken, record.failures) = (None, None, 0);
    true
}

/// Whether one that is stopped is to run, by its spec.
fn is_wanted(record: &SandboxRecord) -> bool {
    record.stopped == Some(PausedBy::Spec) && record.spec.desired != DesiredState::Stopped
}

/// Pauses or stops one that runs, or has it go on, as its spec says. A new spec ends what idleness began.
fn follow_spec(record: &mut SandboxRecord, now: Now) -> Vec<Action> {
    let stops = record.spec.desired == DesiredState::Stopped;
    match &mut record.state {
        State::Running { .. } if stops => halt(record, PausedBy::Spec, now),
        State::Running { pause, .. } => match (record.spec.desired, pause) {
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
            (DesiredState::Running, None) | (DesiredState::Stopped, _) => Vec::new(),
        },
        State::Keeping {
            was_told: false, ..
        } if !stops => keep_no_more(record),
        State::Stopped { .. } if !stops => {
            record.stopped = Some(PausedBy::Spec);
            wake(record, now)
        }
        // Once it is stopped it stays so, or runs again, as its spec says then.
        State::Discarding { failed, .. } => {
            *failed = failed.take().filter(|_| !stops);
            record.stopped = Some(PausedBy::Spec);
            Vec::new()
        }
        State::Halting { .. } | State::Keeping { .. } => {
            record.stopped = Some(PausedBy::Spec);
            Vec::new()
        }
        State::Stopped { again, failed } => {
            (*again, *failed) = (None, None);
            record.stopped = Some(PausedBy::Spec);
            Vec::new()
        }
        // What never ran does not begin to; what has begun to is stopped once it runs.
        State::Bound if stops => {
            record.stopped = Some(PausedBy::Spec);
            discard(record, None)
        }
        State::Bound | State::Claimed { .. } | State::MainRequested { .. } => {
            // However it came to be brought back, it is wanted now.
            record.stopped = record.stopped.map(|_| PausedBy::Spec);
            Vec::new()
        }
        State::Stopping { .. } | State::Ending { .. } | State::Ended { .. } => Vec::new(),
    }
}

/// Begins to stop one that runs: its command is told, if there is one, and then its files are kept.
fn halt(record: &mut SandboxRecord, by: PausedBy, now: Now) -> Vec<Action> {
    let State::Running {
        instance,
        started,
        pause,
    } = &record.state
    else {
        return Vec::new();
    };
    let (instance, started) = (instance.clone(), *started);
    let paused_since = pause.map(|pause| pause.since);
    record.stopped = Some(by);
    if record.spec.main == MainCommand::Idle {
        if let Some(since) = paused_since {
            add_pause(record, since, now);
        }
        record.state = State::Keeping {
            instance,
            started,
            since: now,
            was_told: false,
        };
        return vec![Action::Keep];
    }
    record.state = State::Halting {
        instance,
        started,
        since: now,
        kill_at: now.boot.saturating_add(record.spec.grace),
        paused_since,
    };
    let resume = paused_since.map(|_| Action::Resume);
    resume.into_iter().chain([Action::Terminate]).collect()
}

/// The command has ended, or was waited for long enough.
fn keep(record: &mut SandboxRecord) -> Vec<Action> {
    let State::Halting {
        instance,
        started,
        since,
        ..
    } = &record.state
    else {
        return Vec::new();
    };
    record.state = State::Keeping {
        instance: instance.clone(),
        started: *started,
        since: *since,
        was_told: true,
    };
    vec![Action::Keep]
}

/// It is not to be stopped after all, and no command was told to end: it goes on, or stands still, as its spec says.
fn keep_no_more(record: &mut SandboxRecord) -> Vec<Action> {
    let State::Keeping {
        instance,
        started,
        since,
        was_told: false,
    } = &record.state
    else {
        return Vec::new();
    };
    let (by, stage, action) = match record.spec.desired {
        DesiredState::Paused => (PausedBy::Spec, Stage::Pausing, Action::Pause),
        DesiredState::Running | DesiredState::Stopped => {
            let by = record.stopped.unwrap_or(PausedBy::Spec);
            (by, Stage::Resuming, Action::Resume)
        }
    };
    record.state = State::Running {
        instance: instance.clone(),
        started: *started,
        pause: Some(Pause {
            by,
            since: *since,
            stage,
            turn: 0,
        }),
    };
    record.stopped = None;
    vec![action]
}

fn on_kept(record: &mut SandboxRecord, of: Now, files: Saved) -> Vec<Action> {
    match &record.state {
        State::Keeping { started, since, .. } if *since == of => {
            let started = *started;
            record.overhead = limits::of_names(files.names, &record.spec.resources);
            record.kept = Some(Kept {
                files,
                started,
                since: of,
            });
            // Pauses are counted for commands, of which none is left.
            record.paused = Duration::ZERO;
            discard(record, None)
        }
        State::Keeping { .. }
        | State::Bound
        | State::Claimed { .. }
        | State::MainRequested { .. }
        | State::Running { .. }
        | State::Halting { .. }
        | State::Discarding { .. }
        | State::Stopped { .. }
        | State::Stopping { .. }
        | State::Ending { .. }
        | State::Ended { .. } => Vec::new(),
    }
}

/// Takes down what is there beside the files that are kept.
fn discard(record: &mut SandboxRecord, failed: Option<String>) -> Vec<Action> {
    record.state = State::Discarding {
        instance: record.state.instance().map(str::to_owned),
        failed,
    };
    (record.lacks, record.woken) = (None, None);
    vec![Action::Discard]
}

fn on_discarded(record: &mut SandboxRecord, usage: Option<Usage>, now: Now) -> Vec<Action> {
    let State::Discarding { failed, .. } = &record.state else {
        return Vec::new();
    };
    let failed = failed.clone();
    record.used = used(record, usage);
    let pause = WAKE_AGAIN * 2_u32.pow(record.failures.min(DOUBLINGS));
    let again = now.boot.saturating_add(pause);
    record.failures = failed
        .as_ref()
        .map_or(0, |_| record.failures.saturating_add(1));
    let is_wanted = is_wanted(record);
    record.state = State::Stopped {
        again: Some(again).filter(|_| is_wanted && failed.is_some()),
        failed: failed.clone(),
    };
    // It was said meanwhile that it is to run after all.
    if is_wanted && failed.is_none() {
        return wake(record, now);
    }
    vec![Action::ServeLogs]
}

/// What it used in all, with what it used since it was brought back last.
fn used(record: &SandboxRecord, last: Option<Usage>) -> Option<Usage> {
    match (record.used, last) {
        (Some(before), Some(last)) => Some(before.and(last)),
        (before, last) => before.or(last),
    }
}

/// Brings one back that is stopped, or begins with one that never ran.
fn wake(record: &mut SandboxRecord, now: Now) -> Vec<Action> {
    record.state = State::Bound;
    record.woken = Some(now);
    vec![Action::Pull]
}

/// Adds a pause that is over to those that commands do not count.
fn add_pause(record: &mut SandboxRecord, since: Now, now: Now) {
    let time = now.boot.saturating_sub(since.boot);
    record.paused = record.paused.saturating_add(time);
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
        add_pause(record, over.since, at);
    }
    Vec::new()
}

fn on_idle(record: &mut SandboxRecord, now: Now) -> Vec<Action> {
    let (State::Running { pause: None, .. }, Some(idle)) = (&record.state, record.spec.idle) else {
        return Vec::new();
    };
    match idle.action {
        IdleAction::Stop => halt(record, PausedBy::Idleness, now),
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

fn on_wake(record: &mut SandboxRecord, now: Now) -> Vec<Action> {
    match &mut record.state {
        State::Running {
            pause: Some(pause), ..
        } if pause.by == PausedBy::Idleness => resume(pause),
        State::Keeping { .. } if record.stopped == Some(PausedBy::Idleness) => keep_no_more(record),
        State::Stopped { .. } if record.stopped == Some(PausedBy::Idleness) => wake(record, now),
        // Who wants to use it asks again once it is stopped.
        State::Halting { .. }
        | State::Keeping { .. }
        | State::Discarding { .. }
        | State::Stopped { .. }
        | State::Running { .. }
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
    if could_not_start {
        return fail(record, cause, at);
    }
    _ = on_main_started(record, began);
    match &mut record.state {
        State::Stopping { because, .. } => {
            because.exit_code = cause.exit_code;
            because.signal = cause.signal;
        }
        // It ends since it was told to. Had it ended before, it would have ended by itself.
        State::Halting { since, .. } if at.boot >= since.boot => return keep(record),
        State::Keeping { was_told: true, .. }
        | State::Discarding { .. }
        | State::Stopped { .. } => return Vec::new(),
        State::Halting { .. }
        | State::Keeping { .. }
        | State::Bound
        | State::Claimed { .. }
        | State::MainRequested { .. }
        | State::Running { .. }
        | State::Ending { .. }
        | State::Ended { .. } => {}
    }
    end(record, cause, at)
}

fn on_tick(record: &mut SandboxRecord, now: Now) -> Vec<Action> {
    if deadline(record).is_none_or(|deadline| now.boot < deadline) {
        return Vec::new();
    }
    let is_over = record.expires().is_some_and(|over| now.boot >= over);
    match &record.state {
        State::Bound
        | State::Claimed { .. }
        | State::MainRequested { .. }
        | State::Running { .. }
        | State::Halting { .. }
        | State::Keeping { .. }
        | State::Stopped { .. }
            if is_over =>
        {
            let seconds = record.spec.ttl.unwrap_or_default().as_secs();
            let message =
                format!("{seconds} s since its start are over (spec.lifecycle.ttlSeconds)");
            stop(
                record,
                Cause::new(Reason::DeadlineExceeded, FailureDomain::Policy, message),
                now,
            )
        }
        State::Halting { .. } => keep(record),
        State::Stopped { .. } => wake(record, now),
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
            let what = if record.woken.is_some() {
                "it had room to run again"
            } else {
                "it was bound"
            };
            let message = format!(
                "not running {seconds} s after {what} (spec.lifecycle.startTimeoutSeconds): {waiting_for}"
            );
            fail(
                record,
                Cause::new(Reason::StartTimeout, FailureDomain::Infrastructure, message),
                now,
            )
        }
        State::Stopping { because, .. } => {
            let because = because.clone();
            end(record, because, now)
        }
        State::Running { .. }
        | State::Keeping { .. }
        | State::Discarding { .. }
        | State::Ending { .. }
        | State::Ended { .. } => Vec::new(),
    }
}

fn on_delete(record: &mut SandboxRecord, now: Now) -> Vec<Action> {
    record.deleted = true;
    match &record.state {
        State::Bound
        | State::Claimed { .. }
        | State::MainRequested { .. }
        | State::Running { .. }
        | State::Halting { .. }
        | State::Keeping { .. }
        | State::Discarding { .. }
        | State::Stopped { .. } => stop(record, deleted(), now),
        State::Stopping { .. } | State::Ending { .. } => Vec::new(),
        State::Ended { .. } => vec![Action::Remove],
    }
}

fn on_torn_down(
    record: &mut SandboxRecord,
    usage: Option<Usage>,
    output_lost: bool,
) -> Vec<Action> {
    let State::Ending { termination, .. } = &record.state else {
        return Vec::new();
    };
    let mut termination = Termination {
        usage: used(record, usage),
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
    if let State::Halting {
        instance,
        started,
        kill_at,
        paused_since,
        ..
    } = &record.state
    {
        // It was told already.
        record.state = State::Stopping {
            instance: instance.clone(),
            started: *started,
            because,
            kill_at: *kill_at,
            paused_since: *paused_since,
        };
        return Vec::new();
    }
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
        | State::Running { .. }
        | State::Halting { .. }
        | State::Keeping { .. }
        | State::Discarding { .. }
        | State::Stopped { .. } => cause,
    };
    let termination = Termination {
        cause,
        started_at: record.started().map(|started| started.wall),
        finished_at: now.wall,
        usage: None,
    };
    record.state = State::Ending {
        instance: record.state.instance().map(str::to_owned),
        termination,
    };
    // Secrets are kept no longer than they are of use, nor are files.
    (record.values, record.lacks, record.kept) = (None, None, None);
    (record.stopped, record.woken) = (None, None);
    vec![Action::TearDown]
}

/// What runs is told to end; what is stopped, or on its way there, stays so with its files.
fn leave(record: &mut SandboxRecord, cause: Cause, now: Now) -> Vec<Action> {
    match &record.state {
        State::Running { .. } => stop(record, cause, now),
        State::Bound | State::Claimed { .. } | State::MainRequested { .. } => {
            fail(record, cause, now)
        }
        State::Halting { .. }
        | State::Keeping { .. }
        | State::Discarding { .. }
        | State::Stopped { .. }
        | State::Stopping { .. }
        | State::Ending { .. }
        | State::Ended { .. } => Vec::new(),
    }
}

/// Something went wrong: an end, but of what is being brought back, whose files are there still.
fn fail(record: &mut SandboxRecord, cause: Cause, now: Now) -> Vec<Action> {
    match (&record.state, &record.kept) {
        (State::Bound | State::Claimed { .. } | State::MainRequested { .. }, Some(_))
            if cause.reason != Reason::SnapshotCorrupt =>
        {
            discard(record, Some(cause.message))
        }
        (State::Discarding { .. } | State::Stopped { .. }, _) => Vec::new(),
        _ => end(record, cause, now),
    }
}

#[cfg(test)]
mod tests;
