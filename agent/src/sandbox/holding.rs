//! What a sandbox holds while its agent lives, and how it is shown to the world. Shared by the hands and their tasks.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use tokio_util::sync::CancellationToken;

use super::driver::DriverHandle;
use super::idle::{self, Activity};
use super::pace::Pace;
use super::record::{SandboxRecord, State};
use super::view::{self, Beside};
use crate::board::Posting;
use crate::clock;
use crate::image::Image;
use crate::instance::Instance;
use crate::node::Node;
use crate::session::Sessions;
use crate::snapshot::Saved;
use crate::source::SandboxKey;

/// What a sandbox holds while its agent lives.
#[derive(Default)]
pub(super) struct Holding {
    pub(super) instance: Option<Instance>,
    pub(super) sessions: Option<Sessions>,
    /// Ends the task of those sessions.
    pub(super) sessions_cancel: Option<CancellationToken>,
    /// Its memory limit may be above its own: it must be put back before anything of it runs.
    pub(super) may_exceed: bool,
    /// What the store keeps for it.
    pub(super) saved: BTreeSet<Saved>,
    /// The image, from its pull on.
    pub(super) image: Option<Image>,
    /// What is told beside the record.
    pub(super) beside: Beside,
    /// The way to its driver, once that runs.
    pub(super) driver: Option<DriverHandle>,
    conditions: Vec<Condition>,
    /// What was published last.
    pub(super) record: Option<SandboxRecord>,
    /// Somebody looks whether it is used.
    pub(super) is_watched: bool,
}

/// What the hands and their tasks share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) node: Arc<Node>,
    key: SandboxKey,
    holding: Arc<Mutex<Holding>>,
    /// Ends the tasks of its sessions.
    pub(super) sessions_cancel: CancellationToken,
    /// Who is attached to it.
    pub(super) activity: Arc<Activity>,
    /// Whether it runs or stands still.
    pub(super) pace: Arc<Pace>,
    /// Held by a claim that is under way.
    pub(super) claiming: Arc<tokio::sync::Mutex<()>>,
    /// Held by who opens or closes its sessions.
    pub(super) opening: Arc<tokio::sync::Mutex<()>>,
}

impl Shared {
    /// Nothing held, nothing shown.
    pub(super) fn new(node: Arc<Node>, key: SandboxKey) -> Self {
        let beside = Beside {
            node_name: node.name.clone(),
            runtime: node.runtime.clone(),
            ..Beside::default()
        };
        let holding = Holding {
            beside,
            ..Holding::default()
        };
        let sessions_cancel = node.cancel.child_token();
        Self {
            node,
            key,
            holding: Arc::new(Mutex::new(holding)),
            sessions_cancel,
            activity: Arc::default(),
            pace: Arc::default(),
            claiming: Arc::default(),
            opening: Arc::default(),
        }
    }

    pub(super) fn holding(&self) -> MutexGuard<'_, Holding> {
        self.holding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The instance of the sandbox, if it has one.
    pub(super) fn instance(&self) -> Option<Instance> {
        self.holding().instance.clone()
    }

    /// Its sessions, once there are some.
    pub(super) fn sessions(&self) -> Option<Sessions> {
        self.holding().sessions.clone()
    }

    /// Changes what is told beside the record, and tells it with the record that was told last.
    pub(super) fn tell_beside(&self, change: impl FnOnce(&mut Beside)) {
        let mut holding = self.holding();
        change(&mut holding.beside);
        if let Some(record) = holding.record.clone() {
            self.post(&mut holding, &record);
        }
    }

    /// Shows the world how the sandbox stands.
    pub(super) fn publish(&self, record: &SandboxRecord) {
        let mut holding = self.holding();
        self.post(&mut holding, record);
        // What is being kept is not in the record yet.
        if !matches!(record.state, State::Keeping { .. }) {
            let needed = record.kept.as_ref().map(|kept| &kept.files);
            let all = std::mem::take(&mut holding.saved);
            let (needed, gone) = all.into_iter().partition(|one| Some(one) == needed);
            holding.saved = needed;
            self.forget_files(gone);
        }
        if idle::counts(record) && !std::mem::replace(&mut holding.is_watched, true) {
            self.node.tasks.spawn(idle::watch(self.clone()));
        }
    }

    /// Has the store keep these no more. In a task: it blocks on the disk.
    pub(super) fn forget_files(&self, gone: BTreeSet<Saved>) {
        if gone.is_empty() {
            return;
        }
        let node = Arc::clone(&self.node);
        self.node.tasks.spawn_blocking(move || {
            for saved in gone {
                if let Err(error) = node.snapshots.remove(&saved) {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "cannot remove the files of a sandbox before the next start"
                    );
                }
            }
        });
    }

    /// Under the lock to the end: two that post at once post in the order in which they hold it, and the newest record wins.
    fn post(&self, holding: &mut Holding, record: &SandboxRecord) {
        let now = if holding.conditions.is_empty() {
            // Shown for the first time by this agent, but perhaps not by the first.
            view::since(record)
        } else {
            clock::now().wall
        };
        let status = view::status(record, &holding.beside, &holding.conditions, now);
        holding.conditions.clone_from(&status.conditions);
        holding.record = Some(record.clone());
        let sessions = holding.sessions.clone();
        let mut object = record.object.clone();
        object.status = Some(status);
        object.metadata.uid = Some(record.uid.clone());
        object.metadata.generation = Some(record.generation);
        // An apiserver has set it; standalone counts from when the agent took the sandbox on.
        object
            .metadata
            .creation_timestamp
            .get_or_insert(Time(record.bound.wall));
        let posting = Posting {
            object: Arc::new(object),
            record: Arc::new(record.clone()),
            sessions,
            driver: holding.driver.clone(),
            activity: Arc::clone(&self.activity),
        };
        self.node.board.post(&self.key, posting);
    }
}
