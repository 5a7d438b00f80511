//! From the set of desired objects to one driver per sandbox.
//!
//! The supervisor owns the set of drivers. It starts one for each desired object that has none, tells drivers of objects that
//! are gone, and waits for a driver's end before it starts another of the same name. What an edit may not change while the
//! sandbox exists is refused here, and said beside the manifest. Whoever has to know tells from [`Accounted`] what is left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cloche_crds::DesiredState;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{mpsc, watch};

use crate::clock;
use crate::instance::Instance;
use crate::mirror::Refusals;
use crate::node::{Node, Outlook};
use crate::sandbox::admission::{self, Need, Room};
use crate::sandbox::driver::{Driver, DriverHandle, Hands};
use crate::sandbox::hands::NodeHands;
use crate::sandbox::{Cause, Event, SandboxRecord, State, Termination};
use crate::source::{Accounted, DesiredSet, Origin, Remembered, SandboxKey, Wanted};

/// Ends of drivers that may wait.
const ENDS: usize = 256;

/// What the supervisor knows of a sandbox that has a driver.
struct Driven {
    uid: String,
    handle: DriverHandle,
    /// As it was last taken over.
    taken: SandboxRecord,
    /// Of the manifest; 0 before one was seen.
    incarnation: u64,
    told_to_delete: bool,
    told_to_end: bool,
    /// That the node is leaving.
    told_to_leave: bool,
    /// Whether it was given room.
    room: watch::Sender<bool>,
}

fn is_stopping(state: &State) -> bool {
    matches!(state, State::Discarding { .. } | State::Stopped { .. })
}

/// What a sandbox has of the node's budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    /// What it requests.
    Held,
    /// The same, and it is ending.
    Leaving,
    /// Of disk what it requests, and nothing else.
    Stopped,
    /// Nothing yet.
    Awaited,
    /// Nothing any more.
    Returned,
}

/// Starts and follows drivers.
pub struct Supervisor {
    node: Arc<Node>,
    driven: BTreeMap<SandboxKey, Driven>,
    ended: mpsc::Sender<(SandboxKey, String)>,
    ends: mpsc::Receiver<(SandboxKey, String)>,
    refused: watch::Sender<Refusals>,
    accounted: watch::Sender<Accounted>,
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
            accounted: watch::Sender::default(),
        }
    }

    /// What of the manifests is driven: as it was taken over, and not told to go.
    pub fn remembered(&self) -> Vec<Remembered> {
        let staying = self.taken().filter(|(_, record)| !record.deleted);
        let remembered = staying.map(|(key, record)| Remembered {
            key: key.clone(),
            // Every record of this version names its manifest.
            file: record
                .manifest
                .clone()
                .unwrap_or_else(|| format!("{}.yaml", key.name)),
            object: record.object.clone(),
            effective: record.spec.clone(),
        });
        remembered.collect()
    }

    /// What is driven, as it was taken over.
    pub fn taken(&self) -> impl Iterator<Item = (&SandboxKey, &SandboxRecord)> {
        self.driven.iter().map(|(key, driven)| (key, &driven.taken))
    }

    /// How far it is.
    pub fn accounted(&self) -> watch::Receiver<Accounted> {
        self.accounted.subscribe()
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
        // What has nothing yet is given room anew, beside what is here now.
        let has_none = matches!(record.state, State::Bound | State::Stopped { .. });
        let room = watch::Sender::new(!has_none);
        let mut hands = NodeHands::new(Arc::clone(&self.node), key.clone(), room.clone());
        hands.adopt(instance, &record).await;
        // Before anybody can ask: who lists what is there must find it. It may not be on disk yet; were it lost, the next agent
        // would decide the same.
        hands.publish(&record);
        self.drive(key, record, (hands, room), 0);
    }

    /// Follows the desired objects until the node's `cancel`.
    pub async fn run<D: DesiredSet>(mut self, mut desired: watch::Receiver<D>) {
        let (_, mut news) = self.node.board.watch();
        let mut outlook = self.node.outlook.subscribe();
        let mut disk_pressed = self.node.disk_pressed.subscribe();
        loop {
            let wanted = desired.borrow_and_update().clone();
            self.reconcile(&wanted).await;
            self.account(wanted.revision());
            loop {
                let leaving = outlook.borrow_and_update().leaving.clone();
                let is_leaving = leaving.is_some();
                self.leave(leaving).await;
                let waits = self.make_room().await || is_leaving;
                tokio::select! {
                    // All are cancel safe.
                    () = self.node.cancel.cancelled() => return,
                    changed = desired.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                    Some((key, uid)) = self.ends.recv() => {
                        if self.driven.get(&key).is_some_and(|driven| driven.uid == uid) {
                            self.driven.remove(&key);
                            self.node.board.remove(&key);
                        }
                        break;
                    }
                    Ok(()) = outlook.changed() => break,
                    Ok(()) = disk_pressed.changed() => self.node.collect_images(),
                    // One that is brought back wants a share again.
                    () = self.node.room_wanted.notified() => {}
                    // What has ended gives its share back, also where it stays to be read.
                    change = news.recv(), if waits => match change {
                        Ok(_) | Err(RecvError::Lagged(_)) => {}
                        Err(RecvError::Closed) => return,
                    },
                }
            }
        }
    }

    /// Where the node is leaving, tells those that were not told, and those that run: what was on its way to be stopped may have gone on.
    async fn leave(&mut self, why: Option<Cause>) {
        for (key, driven) in &mut self.driven {
            let was_told = std::mem::replace(&mut driven.told_to_leave, why.is_some());
            let Some(cause) = &why else { continue };
            let posted = self.node.board.get(key).map(|posting| posting.record);
            let runs = posted.is_some_and(|record| matches!(record.state, State::Running { .. }));
            if runs || !was_told {
                driven.handle.tell(Event::Leave(cause.clone())).await;
            }
        }
    }

    fn account(&self, revision: u64) {
        let driven: BTreeSet<String> = self
            .driven
            .values()
            .map(|driven| driven.uid.clone())
            .collect();
        let now = Accounted { revision, driven };
        self.accounted.send_if_modified(|before| {
            let differs = *before != now;
            *before = now;
            differs
        });
    }

    async fn reconcile(&mut self, desired: &impl DesiredSet) {
        for (key, driven) in &mut self.driven {
            if !desired.has(key) && !driven.told_to_delete {
                driven.told_to_delete = true;
                driven.handle.tell(Event::Delete).await;
            }
        }
        // What is here first, and then what is new: that is given the room of what ends by the same look.
        let mut refused = BTreeMap::new();
        let (here, new): (Vec<_>, Vec<_>) = desired
            .each()
            .partition(|(key, _)| self.driven.contains_key(key));
        for (key, wanted) in here.into_iter().chain(new) {
            if let Some(why) = self.apply(key, wanted).await {
                refused.insert(key.clone(), why);
            }
        }
        self.refused.send_if_modified(|before| {
            let differs = *before != refused;
            *before = refused;
            differs
        });
    }

    /// Takes an object over; tells why not, where not.
    async fn apply(&mut self, key: &SandboxKey, wanted: Wanted<'_>) -> Option<String> {
        let incarnation = match wanted.origin {
            Origin::Manifest { incarnation, .. } => incarnation,
            Origin::Object { .. } => 0,
        };
        let Some(driven) = self.driven.get_mut(key) else {
            let leaving = self.node.outlook.borrow().leaving.clone();
            let whole = Need::of(&wanted.effective.resources);
            let need = match wanted.effective.desired {
                DesiredState::Stopped => whole.stopped(),
                DesiredState::Running | DesiredState::Paused => whole,
            };
            let room = match leaving.map_or_else(|| self.room(need, false, |_| true), Room::Never) {
                Room::Now if *self.node.disk_pressed.borrow() => Room::Later,
                room => room,
            };
            let has_room = watch::Sender::new(room == Room::Now);
            let record = self.bind(key, &wanted, room);
            let hands = NodeHands::new(Arc::clone(&self.node), key.clone(), has_room.clone());
            self.drive(key.clone(), record, (hands, has_room), incarnation);
            return None;
        };
        let before = std::mem::replace(&mut driven.incarnation, incarnation);
        let made_anew = match wanted.origin {
            // It was deleted and made anew between two looks.
            Origin::Manifest { incarnation, .. } => before != 0 && before != incarnation,
            Origin::Object { uid, .. } => driven.uid != uid,
        };
        if made_anew && !driven.told_to_delete {
            driven.told_to_delete = true;
            driven.handle.tell(Event::Delete).await;
        }
        if driven.told_to_delete {
            // The one of this name that was deleted is still being taken down; its end brings us here again.
            return None;
        }
        if let (Some(cause), false) = (wanted.ended, driven.told_to_end) {
            driven.told_to_end = true;
            driven.handle.tell(Event::End(cause.clone())).await;
        }
        if !driven.taken.spec.same_but_lifecycle(wanted.effective) {
            return Some("only spec.lifecycle can change while the sandbox exists: delete it, then apply the new one".to_owned());
        }
        // What is written otherwise and means the same is another generation, too, as for an apiserver.
        let respecified = driven.taken.spec != *wanted.effective
            || driven.taken.object.spec != wanted.object.spec;
        let (manifest, generation) = match wanted.origin {
            Origin::Manifest { file, .. } => {
                let generation = driven.taken.generation + i64::from(respecified);
                (Some(file.to_owned()), generation)
            }
            Origin::Object { generation, .. } => (None, generation),
        };
        if driven.taken.manifest != manifest || driven.taken.generation != generation || respecified
        {
            driven.taken.manifest = manifest;
            driven.taken.spec = wanted.effective.clone();
            driven.taken.object = wanted.object.clone();
            driven.taken.generation = generation;
            let event = Event::Changed {
                generation,
                manifest: driven.taken.manifest.clone(),
                object: Box::new(wanted.object.clone()),
                spec: Box::new(wanted.effective.clone()),
            };
            driven.handle.tell(event).await;
        }
        None
    }

    fn bind(&self, key: &SandboxKey, wanted: &Wanted<'_>, room: Room) -> SandboxRecord {
        let now = clock::now();
        let state = match room {
            Room::Now | Room::Later => State::Bound,
            Room::Never(cause) => State::Ending {
                instance: None,
                termination: Termination {
                    cause,
                    started_at: None,
                    finished_at: now.wall,
                    usage: None,
                },
            },
        };
        let (uid, generation, manifest) = match wanted.origin {
            Origin::Manifest { file, .. } => (crate::unique::uuid(), 1, Some(file.to_owned())),
            Origin::Object { uid, generation } => (uid.to_owned(), generation, None),
        };
        SandboxRecord {
            uid,
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            generation,
            manifest,
            object: wanted.object.clone(),
            spec: wanted.effective.clone(),
            boot_id: self.node.boot_id.clone(),
            bound: now,
            paused: Duration::ZERO,
            values: None,
            lacks: None,
            image: None,
            kept: None,
            stopped: None,
            woken: None,
            failures: 0,
            overhead: 0,
            used: None,
            aged: Duration::ZERO,
            state,
            deleted: false,
        }
    }

    /// Gives room to those that wait for it, the first bound first, and ends what will have none; whether any waits still.
    async fn make_room(&mut self) -> bool {
        let waiting = self
            .driven
            .iter()
            .filter(|(key, driven)| self.share(key, driven) == Share::Awaited);
        let mut waiting: Vec<_> = waiting
            .map(|(key, driven)| (self.bound(key, driven), key.clone()))
            .collect();
        waiting.sort();
        let mut waits = false;
        let Outlook { is_known, leaving } = self.node.outlook.borrow().clone();
        if leaving.is_some() || *self.node.disk_pressed.borrow() {
            // What is there goes on; for what is not it is not the time.
            return !waiting.is_empty();
        }
        for (bound, key) in waiting {
            let Some(asked) = self
                .driven
                .get(&key)
                .map(|driven| driven.taken.spec.resources)
            else {
                continue;
            };
            let is_kept = self.is_kept(&key);
            if is_kept && !is_known {
                waits = true;
                continue;
            }
            let asked = if is_kept {
                // Of disk it has what it requests.
                Need {
                    disk: 0,
                    ..Need::of(&asked)
                }
            } else {
                Need::of(&asked)
            };
            let room = self.room(asked, is_kept, |(other, _)| {
                self.driven
                    .get(other)
                    .is_some_and(|driven| (self.bound(other, driven), other) < (bound, &key))
            });
            let Some(driven) = self.driven.get_mut(&key) else {
                continue;
            };
            match room {
                Room::Now => {
                    driven.room.send_replace(true);
                    // It may have been told meanwhile not to run: what it gave back it must not find again.
                    let posted = self.node.board.get(&key).map(|posting| posting.record);
                    if posted.is_some_and(|record| is_stopping(&record.state))
                        && let Some(driven) = self.driven.get(&key)
                    {
                        driven.room.send_replace(false);
                    }
                }
                // One that is to be brought back waits for as long as it lives.
                Room::Never(_) if is_kept => waits = true,
                Room::Later => waits = true,
                // Again, should that come when it is being stopped: it is not asked for room then.
                Room::Never(cause) => driven.handle.tell(Event::Evict(cause)).await,
            }
        }
        waits
    }

    /// Whether there is room for what is `asked`, behind those that wait and are `ahead`. Those that are to be brought back may wait for
    /// long: one that is not (`is_kept`) waits for none of them.
    fn room(
        &self,
        asked: Need,
        is_kept: bool,
        ahead: impl Fn((&SandboxKey, &SandboxRecord)) -> bool,
    ) -> Room {
        let (mut staying, mut leaving) = (Vec::new(), Vec::new());
        for (key, driven) in &self.driven {
            let need = Need::of(&driven.taken.spec.resources);
            let disk = need.stopped();
            match self.share(key, driven) {
                Share::Held => staying.push(need),
                Share::Awaited
                    if self.is_kept(key) && !(is_kept && ahead((key, &driven.taken))) =>
                {
                    staying.push(disk);
                }
                Share::Awaited if ahead((key, &driven.taken)) => staying.push(need),
                Share::Leaving => leaving.push(need),
                Share::Stopped => staying.push(disk),
                Share::Awaited | Share::Returned => {}
            }
        }
        admission::room(&self.node.budget, &staying, &leaving, asked)
    }

    /// Whether the sandbox is one that was stopped, perhaps before it ever ran.
    fn is_kept(&self, key: &SandboxKey) -> bool {
        let posting = self.node.board.get(key);
        posting.is_some_and(|posting| posting.record.woken.is_some())
    }

    /// Since when it waits, or has what it needs; boot time.
    fn bound(&self, key: &SandboxKey, driven: &Driven) -> Duration {
        let posted = self.node.board.get(key).map(|posting| posting.record);
        posted
            .map_or(driven.taken.bound, |record| record.bound)
            .boot
    }

    fn share(&self, key: &SandboxKey, driven: &Driven) -> Share {
        let posted = self.node.board.get(key).map(|posting| posting.record);
        let record = posted.as_deref().unwrap_or(&driven.taken);
        match &record.state {
            State::Ended { .. } => Share::Returned,
            State::Stopping { .. } | State::Ending { .. } => Share::Leaving,
            // It was given back before that was told, or is about to be, and nothing waits for any.
            State::Stopped { .. } => Share::Stopped,
            State::Discarding { .. } if !*driven.room.borrow() => Share::Stopped,
            State::Bound
            | State::Claimed { .. }
            | State::MainRequested { .. }
            | State::Running { .. }
            | State::Halting { .. }
            | State::Keeping { .. }
            | State::Discarding { .. } => {
                if driven.told_to_delete || driven.told_to_end {
                    Share::Leaving
                } else if *driven.room.borrow() {
                    Share::Held
                } else {
                    Share::Awaited
                }
            }
        }
    }

    fn drive(
        &mut self,
        key: SandboxKey,
        record: SandboxRecord,
        (hands, room): (NodeHands, watch::Sender<bool>),
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
                told_to_end: false,
                told_to_leave: false,
                room,
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
