//! What the world may see of this node's sandboxes: their objects, and the way to their sessions.
//!
//! Drivers post, the api and the status writer read. A reader that falls behind is told so and reads all again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cloche_crds::Sandbox;
use tokio::sync::broadcast;

use crate::sandbox::driver::DriverHandle;
use crate::sandbox::{Activity, SandboxRecord};
use crate::session::Sessions;
use crate::source::SandboxKey;

/// Changes that a reader may be behind before it has to read all again.
const BACKLOG: usize = 4096;

/// What is known of one sandbox.
#[derive(Clone, Debug)]
pub struct Posting {
    /// The object with its status.
    pub object: Arc<Sandbox>,
    /// The record that the status was made from.
    pub record: Arc<SandboxRecord>,
    /// Its sessions, from its start until it is removed.
    pub sessions: Option<Sessions>,
    /// The way to its driver; none while the agent starts.
    pub driver: Option<DriverHandle>,
    /// Who is attached to it.
    pub activity: Arc<Activity>,
}

/// A change of one sandbox.
#[derive(Clone, Debug)]
pub enum Change {
    /// It is new or looks otherwise.
    Posted(SandboxKey, Arc<Sandbox>),
    /// It is gone; this is what it looked like last.
    Removed(SandboxKey, Arc<Sandbox>),
}

/// The postings. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Board {
    postings: Arc<Mutex<BTreeMap<SandboxKey, Posting>>>,
    changes: broadcast::Sender<Change>,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            postings: Arc::default(),
            changes: broadcast::Sender::new(BACKLOG),
        }
    }
}

impl Board {
    /// Posts a sandbox. Readers are told where its object differs from the one before.
    pub fn post(&self, key: &SandboxKey, posting: Posting) {
        let object = Arc::clone(&posting.object);
        let before = self.postings().insert(key.clone(), posting);
        if before.is_none_or(|before| before.object != object) {
            self.tell(Change::Posted(key.clone(), object));
        }
    }

    /// Takes a sandbox off.
    pub fn remove(&self, key: &SandboxKey) {
        let gone = self.postings().remove(key);
        if let Some(gone) = gone {
            self.tell(Change::Removed(key.clone(), gone.object));
        }
    }

    /// One sandbox.
    pub fn get(&self, key: &SandboxKey) -> Option<Posting> {
        self.postings().get(key).cloned()
    }

    /// All sandboxes in the order of their keys.
    pub fn all(&self) -> Vec<(SandboxKey, Posting)> {
        self.postings()
            .iter()
            .map(|(key, posting)| (key.clone(), posting.clone()))
            .collect()
    }

    /// All objects, and every change after that. A receiver that lags has to watch anew.
    pub fn watch(&self) -> (Vec<(SandboxKey, Arc<Sandbox>)>, broadcast::Receiver<Change>) {
        // Under the lock, so that no change falls between the two.
        let postings = self.postings();
        let receiver = self.changes.subscribe();
        let all = postings
            .iter()
            .map(|(key, posting)| (key.clone(), Arc::clone(&posting.object)))
            .collect();
        (all, receiver)
    }

    /// Every change from now on.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    fn tell(&self, change: Change) {
        // Nobody listening is fine.
        drop(self.changes.send(change));
    }

    fn postings(&self) -> MutexGuard<'_, BTreeMap<SandboxKey, Posting>> {
        self.postings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
