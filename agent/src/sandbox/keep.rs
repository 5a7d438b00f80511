//! Keeping the files of a sandbox that is to be stopped.
//!
//! All of it stands still first, and stays so: what is kept is what was there, and nothing that follows is lost unseen. Until it is kept for
//! good the sandbox could go on; once the record says that it is, the rest of it is taken down.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::holding::Shared;
use super::record::{PausedBy, SandboxRecord, State};
use super::step::Event;
use super::{pace, start};
use crate::cgroup::CgroupError;
use crate::fault;
use crate::instance::limits;
use crate::runsc::Sentry;
use crate::runsc::urpc::UrpcError;
use crate::snapshot::{Error, Info, Saved};
use crate::told::chain;

/// Pause between tries.
const RETRY: Duration = Duration::from_secs(5);

/// Files that are not kept.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    /// The store could not take them.
    #[error(transparent)]
    Store(#[from] Error),
    /// The sentry did not give them.
    #[error("its sentry did not save them")]
    Sentry(#[from] UrpcError),
    /// Its sentry was not given the memory for that.
    #[error(transparent)]
    Limit(#[from] CgroupError),
    /// What has to be known is not.
    #[error("{0}")]
    Unknown(&'static str),
    /// The thread that blocks was lost: the runtime shuts down.
    #[error("keep its files")]
    Lost(#[from] tokio::task::JoinError),
}

/// Keeps the files, however often that takes, and tells when they are; nothing once something else is to be done.
pub(super) async fn keep(
    shared: Shared,
    number: u64,
    record: SandboxRecord,
    events: mpsc::Sender<Event>,
) {
    let State::Keeping {
        since, was_told, ..
    } = record.state
    else {
        return;
    };
    if was_told {
        // Its command has ended, or was given time to.
        start::settle_main(&shared).await;
    }
    loop {
        let Some(held) = pace::stand_still(&shared, number, &record).await else {
            return;
        };
        fault::point("keep.still");
        let stopped = shared.holding().record.as_ref().map(|now| now.stopped);
        if stopped == Some(Some(PausedBy::Idleness)) && !was_told && shared.activity.is_used() {
            // Somebody came between the look and this. Should that not count any more, this goes on.
            drop(events.send(Event::Wake).await);
            drop(held);
            if is_over(&shared, number).await {
                return;
            }
            continue;
        }
        let kept = tokio::select! {
            // All are cancel safe: what is half made goes with the next start of it, or of the agent.
            () = shared.node.cancel.cancelled() => return,
            () = shared.pace.superseded(number) => return,
            // Few at once: each is to have the room on the disk that it looks for, and none is faster beside many.
            turn = shared.node.keepers.acquire() => turn,
        };
        let Ok(turn) = kept else { return };
        let kept = save(&shared, &record).await;
        drop((held, turn));
        let error = match kept {
            Ok(files) => {
                shared.holding().beside.cannot_keep = None;
                drop(events.send(Event::Kept { since, files }).await);
                return;
            }
            Err(error) => error,
        };
        if !shared.pace.is_newest(number) {
            return;
        }
        let why = chain(&error);
        tracing::warn!(
            sandbox = record.name,
            why,
            "cannot keep the files of a sandbox"
        );
        shared.tell_beside(|beside| beside.cannot_keep = Some(why));
        if is_over(&shared, number).await {
            return;
        }
    }
}

/// Waits before the next try; whether there is to be none.
async fn is_over(shared: &Shared, number: u64) -> bool {
    tokio::select! {
        // All are cancel safe: the next agent begins again.
        () = shared.node.cancel.cancelled() => true,
        () = shared.pace.superseded(number) => true,
        () = tokio::time::sleep(RETRY) => false,
    }
}

async fn save(shared: &Shared, record: &SandboxRecord) -> Result<Saved, KeepError> {
    let instance = shared
        .instance()
        .ok_or(KeepError::Unknown("its instance is not held"))?;
    let image = record
        .image
        .as_ref()
        .ok_or(KeepError::Unknown("its image is not known"))?;
    let (node, id) = (shared.node.clone(), instance.id().to_owned());
    let staging = tokio::task::spawn_blocking(move || {
        let bytes = node.sampler.disk(&id).unwrap_or(0);
        node.snapshots.stage(bytes)
    });
    let staging = staging.await??;
    let limits = limits::while_kept(&record.limits());
    shared.holding().may_exceed = true;
    let (cgroups, id) = (Arc::clone(&shared.node.cgroups), instance.id().to_owned());
    tokio::task::spawn_blocking(move || cgroups.limit(&id, &limits)).await??;
    let files: Vec<_> = staging.files().iter().map(AsFd::as_fd).collect();
    let mut sentry = Sentry::connect(&instance.paths).await?;
    sentry.save_files(&files).await?;
    fault::point("keep.saved");
    let info = Info {
        image: image.digest,
        profile: shared.node.runtime.profile.clone(),
    };
    let node = shared.node.clone();
    let committed = tokio::task::spawn_blocking(move || node.snapshots.commit(&staging, &info));
    let saved = committed.await??;
    shared.holding().saved.insert(saved.clone());
    Ok(saved)
}
