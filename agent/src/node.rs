//! What the parts of one agent share.

use std::path::PathBuf;
use std::sync::Arc;

use cloche_crds::sandbox::RuntimeStatus;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::Streams;
use crate::board::Board;
use crate::cgroup::Cgroups;
use crate::cluster::References;
use crate::image::ImageStore;
use crate::instance::Workshop;
use crate::instance::pool::Pool;
use crate::ledger::Ledger;
use crate::sandbox::admission::Budget;
use crate::sandbox::{Cause, SandboxRecord};
use crate::settled::Settled;
use crate::snapshot::Store;
use crate::usage::Sampler;

/// What the parts of one agent share. One per process.
pub struct Node {
    /// The node's name, as the status tells it.
    pub name: String,
    /// This boot.
    pub boot_id: String,
    /// Folder for writable layers: on a file system that can make unnamed files.
    pub scratch: PathBuf,
    /// The groups.
    pub cgroups: Arc<dyn Cgroups>,
    /// Images on the node.
    pub images: ImageStore,
    /// The files of stopped sandboxes.
    pub snapshots: Store,
    /// Held by those that keep files.
    pub keepers: Semaphore,
    /// Instances by record.
    pub workshop: Arc<Workshop>,
    /// Instances made ahead.
    pub pool: Pool<Workshop>,
    /// Sandboxes by record.
    pub sandboxes: Ledger<SandboxRecord>,
    /// What the world sees.
    pub board: Board,
    /// Sessions and logs that are open.
    pub streams: Streams,
    /// What of an end must be known elsewhere before its record goes; nothing standalone.
    pub settled: Option<Settled>,
    /// Who tells what sandboxes take from Secrets and `ConfigMap`s; nobody standalone.
    pub references: Option<References>,
    /// What instances use.
    pub sampler: Sampler,
    /// What sandboxes may request.
    pub budget: Budget,
    /// Whether all that runs here is to end, and nothing new to begin.
    pub outlook: watch::Sender<Outlook>,
    /// Whether so little of the disk is left that nothing new is to begin.
    pub disk_pressed: watch::Sender<bool>,
    /// Told when a sandbox begins to wait for room.
    pub room_wanted: Notify,
    /// Bytes of images to keep.
    pub image_budget: u64,
    /// What runs them.
    pub runtime: RuntimeStatus,
    /// Set when the agent stops: sandboxes go on, their tasks here end.
    pub cancel: CancellationToken,
    /// Tasks that the agent waits for when it stops.
    pub tasks: TaskTracker,
}

/// What is known of the time that the node has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Somebody told this agent. Before, what is stopped is not brought back: it would lose its files to a node that is leaving.
    pub is_known: bool,
    /// Why all that runs here is to end, if it is.
    pub leaving: Option<Cause>,
}

impl Node {
    /// Removes images beyond the budget that nothing uses, and all of them where little is left of the disk; in a task of its own.
    pub fn collect_images(self: &Arc<Self>) {
        let node = Arc::clone(self);
        self.tasks.spawn(async move {
            let is_pressed = *node.disk_pressed.borrow();
            let budget = if is_pressed { 0 } else { node.image_budget };
            match node.images.collect(budget).await {
                Ok(gone) if gone.is_empty() => {}
                Ok(gone) => tracing::info!(images = gone.len(), "removed images beyond the budget"),
                Err(error) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot remove images"
                ),
            }
        });
    }
}
