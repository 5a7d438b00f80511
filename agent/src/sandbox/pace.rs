//! Stopping the processes of a sandbox, and letting them go on.
//!
//! By the sentry, which stops all guest tasks at a point that suits it. It counts what it is told: two pauses take two ends, and an end too
//! much kills it. So it is asked only for what it is known not to do already; where that is not known, after a restart of the agent or a
//! call that failed, it is looked at first (ADR 0012).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard, Notify, mpsc};

use super::holding::Shared;
use super::record::{PausedBy, SandboxRecord};
use super::step::Event;
use crate::cgroup::CgroupError;
use crate::clock;
use crate::fault;
use crate::runsc::Sentry;
use crate::runsc::urpc::UrpcError;
use crate::session::Pauses;
use crate::told::chain;

/// Pause between tries.
const RETRY: Duration = Duration::from_secs(1);

/// Whether one sandbox stands still, and what of it is to be done next.
#[derive(Debug, Default)]
pub(super) struct Pace {
    newest: AtomicU64,
    /// Told when there is a newer one.
    superseded: Notify,
    /// Whether the guest is paused, as far as is known. Held by the one that changes it.
    is_paused: Mutex<Option<bool>>,
}

impl Pace {
    /// Gives up whatever was to be done; the number of what is to be done from now on.
    pub(super) fn supersede(&self) -> u64 {
        let number = self.newest.fetch_add(1, Ordering::AcqRel) + 1;
        self.superseded.notify_waiters();
        number
    }

    /// Waits until something else is to be done.
    pub(super) async fn superseded(&self, number: u64) {
        loop {
            // From before the look: none is told between the two.
            let told = self.superseded.notified();
            if !self.is_newest(number) {
                return;
            }
            told.await;
        }
    }

    /// Whether nothing else is to be done by now.
    pub(super) fn is_newest(&self, number: u64) -> bool {
        self.newest.load(Ordering::Acquire) == number
    }

    /// It has been running from its start on.
    pub(super) async fn runs(&self) {
        *self.is_paused.lock().await = Some(false);
    }
}

/// Pauses the sandbox, and tells when all stands still. `number` is of [`Pace::supersede`].
pub(super) async fn pause(
    shared: Shared,
    number: u64,
    record: SandboxRecord,
    events: mpsc::Sender<Event>,
) {
    let Some(held) = set(&shared, number, &record, true).await else {
        return;
    };
    fault::point("pause.paused");
    set_pauses(&shared, true, &record);
    drop(held);
    let turn = record.state.pause().map_or(0, |pause| pause.turn);
    drop(events.send(Event::Paused { turn }).await);
    // Somebody came between the decision and the pause.
    let by_idleness = record
        .state
        .pause()
        .is_some_and(|pause| pause.by == PausedBy::Idleness);
    if by_idleness && shared.activity.is_used() {
        drop(events.send(Event::Wake).await);
    }
}

/// Has the sandbox stand still for as long as the answer is held, and after it; nothing where something else is to be done by now.
pub(super) async fn stand_still<'a>(
    shared: &'a Shared,
    number: u64,
    record: &SandboxRecord,
) -> Option<MutexGuard<'a, Option<bool>>> {
    let held = set(shared, number, record, true).await?;
    set_pauses(shared, true, record);
    Some(held)
}

/// Lets the sandbox go on, and tells when it does.
pub(super) async fn resume(
    shared: Shared,
    number: u64,
    mut record: SandboxRecord,
    events: mpsc::Sender<Event>,
) {
    let Some(held) = set(&shared, number, &record, false).await else {
        return;
    };
    fault::point("pause.resumed");
    let at = clock::now();
    if let Some(since) = record.state.paused_since() {
        record.paused += at.boot.saturating_sub(since.boot);
    }
    set_pauses(&shared, false, &record);
    drop(held);
    let turn = record.state.pause().map_or(0, |pause| pause.turn);
    drop(events.send(Event::Resumed { turn, at }).await);
}

fn set_pauses(shared: &Shared, is_paused: bool, record: &SandboxRecord) {
    if let Some(sessions) = shared.sessions() {
        sessions.set_pauses(Pauses {
            is_paused,
            before: record.paused,
        });
    }
}

/// Sets the pace, however often it takes; nothing where something else is to be done by now. Nobody else sets it as long as the answer is
/// held.
async fn set<'a>(
    shared: &'a Shared,
    number: u64,
    record: &SandboxRecord,
    to_pause: bool,
) -> Option<MutexGuard<'a, Option<bool>>> {
    loop {
        let mut is_paused = shared.pace.is_paused.lock().await;
        if !shared.pace.is_newest(number) {
            return None;
        }
        let Err(error) = turn(shared, record, &mut is_paused, to_pause).await else {
            shared.holding().beside.cannot_pause = None;
            return Some(is_paused);
        };
        drop(is_paused);
        let why = chain(&error);
        tracing::warn!(
            sandbox = record.name,
            to_pause,
            why,
            "cannot set the pace of a sandbox"
        );
        shared.tell_beside(|beside| beside.cannot_pause = Some(why));
        tokio::select! {
            // Cancel safe: the next agent begins again.
            () = shared.node.cancel.cancelled() => return None,
            () = shared.pace.superseded(number) => return None,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

/// A pace that could not be set.
#[derive(Debug, thiserror::Error)]
enum PaceError {
    /// The sentry.
    #[error(transparent)]
    Sentry(#[from] UrpcError),
    /// Its memory limit, which was raised while its files were being kept.
    #[error("its memory limit could not be put back")]
    Limit(#[from] CgroupError),
    /// The same: it would be killed by it.
    #[error("it uses {used} of {limit} bytes of memory since its files were being kept")]
    Exceeds {
        /// Bytes.
        used: u64,
        /// Bytes.
        limit: u64,
    },
    /// The thread that blocks was lost: the runtime shuts down.
    #[error("put its memory limit back")]
    Lost(#[from] tokio::task::JoinError),
}

/// Puts the memory limit back, if it may be raised. What runs has its own.
async fn limit(shared: &Shared, record: &SandboxRecord, id: &str) -> Result<(), PaceError> {
    if !shared.holding().may_exceed {
        return Ok(());
    }
    let (cgroups, id, limits) = (
        Arc::clone(&shared.node.cgroups),
        id.to_owned(),
        record.limits(),
    );
    tokio::task::spawn_blocking(move || {
        let (used, limit) = (cgroups.counters(&id)?.memory, limits.memory);
        // One that never exceeded it is below, however near: a margin would keep it standing still for ever.
        if used >= limit {
            return Err(PaceError::Exceeds { used, limit });
        }
        Ok(cgroups.limit(&id, &limits)?)
    })
    .await??;
    shared.holding().may_exceed = false;
    Ok(())
}

async fn turn(
    shared: &Shared,
    record: &SandboxRecord,
    is_paused: &mut Option<bool>,
    to_pause: bool,
) -> Result<(), PaceError> {
    // Without an instance there is nothing to be paused: its end is under way.
    let Some(instance) = shared.instance() else {
        return Ok(());
    };
    if !to_pause {
        limit(shared, record, instance.id()).await?;
    }
    let mut sentry = Sentry::connect(&instance.paths).await?;
    // Not known from here on, should this be broken off.
    let now = match is_paused.take() {
        Some(known) => known,
        None => sentry.is_paused().await?,
    };
    match (now, to_pause) {
        (false, true) => sentry.pause().await?,
        (true, false) => sentry.resume().await?,
        (true, true) | (false, false) => {}
    }
    *is_paused = Some(to_pause);
    Ok(())
}
