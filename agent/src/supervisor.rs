//! From the set of desired objects to one driver per sandbox.
//!
//! The supervisor owns the set of drivers. It starts one for each desired object that has none, tells drivers of objects that
//! are gone, and waits for a driver's end before it starts another of the same name. What an edit may not change while the
//! sandbox exists is refused here, and said beside the manifest.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use crate::clock;
use crate::instance::Instance;
use crate::mirror::Refusals;
use crate::node::Node;
use crate::sandbox::driver::{Driver, DriverHandle, Hands};
use crate::sandbox::hands::NodeHands;
use crate::sandbox::{Cause, Event, SandboxRecord, State, Termination, admission};
use crate::source::{Desired, DesiredSandbox, Remembered, SandboxKey};

/// Ends of drivers that may wait.
const ENDS: usize = 256;

/// What the supervisor knows of a sandbox that has a driver.
struct Driven {
    uid: String,
    handle: DriverHandle,
    /// As it was last taken over.
    taken: SandboxRecord,
    /// Of the desired object; 0 before one was seen.
    incarnation: u64,
    told_to_delete: bool,
}

/// Starts and follows drivers.
pub struct Supervisor {
    node: Arc<Node>,
    driven: BTreeMap<SandboxKey, Driven>,
    ended: mpsc::Sender<(SandboxKey, String)>,
    ends: mpsc::Receiver<(SandboxKey, String)>,
    refused: watch::Sender<Refusals>,
}

impl Supervisor {
    /// A supervisor without drivers.
    pub fn new(node: Arc<Node>) -> Self {
        let (ended, ends) = mpsc::channel(ENDS);
        Self {
            node,
            driven: BTreeMap::new(),
            ended,
            ends,
            refused: watch::Sender::default(),
        }
    }

    /// What of the manifests is driven: as it was taken over, and not told to go.
    pub fn remembered(&self) -> Vec<Remembered> {
        let staying = self
            .driven
            .iter()
            .filter(|(_, driven)| !driven.told_to_delete);
        let remembered = staying.map(|(key, driven)| Remembered {
            key: key.clone(),
            // Every record of this version names its manifest.
            file: driven
                .taken
                .manifest
                .clone()
                .unwrap_or_else(|| format!("{}.yaml", key.name)),
            object: driven.taken.object.clone(),
            effective: driven.taken.spec.clone(),
        });
        remembered.collect()
    }

    /// Per object, what of the newest manifest was not taken over.
    pub fn refused(&self) -> watch::Receiver<Refusals> {
        self.refused.subscribe()
    }

    /// Goes on with a sandbox that an earlier agent had; `instance` is what it claims, if that still stands. It is listed, with
    /// its sessions, when this returns.
    pub async fn resume(&mut self, record: SandboxRecord, instance: Option<Instance>) {
        let key = SandboxKey {
            namespace: record.namespace.clone(),
            name: record.name.clone(),
        };
        let mut hands = NodeHands::new(Arc::clone(&self.node), key.clone());
        hands.adopt(instance, &record).await;
        // Before anybody can ask: who lists what is there must find it. It may not be on disk yet; were it lost, the next agent
        // would decide the same.
        hands.publish(&record);
        self.drive(key, record, hands, 0);
    }

    /// Follows the desired objects until the node's `cancel`.
    pub async fn run(mut self, mut desired: watch::Receiver<Desired>) {
        loop {
            let wanted = desired.borrow_and_update().clone();
            self.reconcile(&wanted).await;
            tokio::select! {
                // All are cancel safe.
                () = self.node.cancel.cancelled() => return,
                changed = desired.changed() => if changed.is_err() { return },
                Some((key, uid)) = self.ends.recv() => {
                    if self.driven.get(&key).is_some_and(|driven| driven.uid == uid) {
                        self.driven.remove(&key);
                        self.node.board.remove(&key);
                    }
                }
            }
        }
    }

    async fn reconcile(&mut self, desired: &Desired) {
        let mut refused = BTreeMap::new();
        for (key, wanted) in &desired.sandboxes {
            if let Some(why) = self.apply(key, wanted).await {
                refused.insert(key.clone(), why);
            }
        }
        for (key, driven) in &mut self.driven {
            if !desired.sandboxes.contains_key(key) && !driven.told_to_delete {
                driven.told_to_delete = true;
                driven.handle.tell(Event::Delete).await;
            }
        }
        self.refused.send_if_modified(|before| {
            let differs = *before != refused;
            *before = refused;
            differs
        });
    }

    /// Takes an object over; tells why not, where not.
    async fn apply(&mut self, key: &SandboxKey, wanted: &DesiredSandbox) -> Option<String> {
        let Some(driven) = self.driven.get_mut(key) else {
            let record = self.bind(key, wanted);
            let hands = NodeHands::new(Arc::clone(&self.node), key.clone());
            self.drive(key.clone(), record, hands, wanted.incarnation);
            return None;
        };
        let before = std::mem::replace(&mut driven.incarnation, wanted.incarnation);
        if before != 0 && before != wanted.incarnation && !driven.told_to_delete {
            // It was deleted and made anew between two looks.
            driven.told_to_delete = true;
            driven.handle.tell(Event::Delete).await;
        }
        if driven.told_to_delete {
            // The one of this name that was deleted is still being taken down; its end brings us here again.
            return None;
        }
        if !driven.taken.spec.same_but_lifecycle(&wanted.effective) {
            return Some("only spec.lifecycle can change while the sandbox exists: delete it, then apply the new one".to_owned());
        }
        let moved = driven.taken.manifest.as_ref() != Some(&wanted.file);
        let changed = driven.taken.spec != wanted.effective;
        if moved || changed {
            driven.taken.manifest = Some(wanted.file.clone());
            driven.taken.spec = wanted.effective.clone();
            driven.taken.generation += i64::from(changed);
            let event = Event::Changed {
                generation: driven.taken.generation,
                manifest: driven.taken.manifest.clone(),
                object: Box::new(wanted.object.clone()),
                spec: Box::new(wanted.effective.clone()),
            };
            driven.handle.tell(event).await;
        }
        None
    }

    fn bind(&self, key: &SandboxKey, wanted: &DesiredSandbox) -> SandboxRecord {
        let now = clock::now();
        let state = match self.refuse(wanted) {
            None => State::Bound,
            Some(cause) => State::Ending {
                instance: None,
                termination: Termination {
                    cause,
                    started_at: None,
                    finished_at: now.wall,
                    usage: None,
                },
            },
        };
        SandboxRecord {
            uid: crate::unique::uuid(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            generation: 1,
            manifest: Some(wanted.file.clone()),
            object: wanted.object.clone(),
            spec: wanted.effective.clone(),
            boot_id: self.node.boot_id.clone(),
            bound: now,
            image: None,
            state,
            deleted: false,
        }
    }

    fn refuse(&self, wanted: &DesiredSandbox) -> Option<Cause> {
        // One that has ended has given its share back; one that was refused never had any.
        let taken = self.driven.iter().filter(|(key, driven)| {
            if driven.taken.state.termination().is_some() {
                return false;
            }
            let posted = self.node.board.get(key);
            !posted.is_some_and(|posting| matches!(posting.record.state, State::Ended { .. }))
        });
        let taken = taken.map(|(_, driven)| &driven.taken.spec.resources);
        admission::refuse(&self.node.budget, taken, &wanted.effective.resources)
    }

    fn drive(
        &mut self,
        key: SandboxKey,
        record: SandboxRecord,
        hands: NodeHands,
        incarnation: u64,
    ) {
        let (driver, handle) = Driver::new(record.clone(), self.node.sandboxes.clone(), |events| {
            hands.watch(&record, events);
            hands
        });
        let (ended, cancel, uid) = (
            self.ended.clone(),
            self.node.cancel.clone(),
            record.uid.clone(),
        );
        let told_to_delete = record.deleted;
        self.driven.insert(
            key.clone(),
            Driven {
                uid: uid.clone(),
                handle,
                taken: record,
                incarnation,
                told_to_delete,
            },
        );
        self.node.tasks.spawn(async move {
            // One that goes on without an agent has not ended: told so, the supervisor would make it anew beside itself.
            if driver.run(cancel).await {
                // The receiver is gone only when the agent stops.
                drop(ended.send((key, uid)).await);
            }
        });
    }
}
