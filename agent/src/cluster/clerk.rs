//! The task that owns what is known of the apiserver's objects: the desired set comes from here, and what became of each goes back.
//!
//! ```text
//!   watch ──► seen ──► judge ──► desired set ──► supervisor ──► drivers
//!                ▲                                   │ accounted    │ board
//!                └──── asked for, patched ◄── next ◄─┴──────────────┘
//! ```
//!
//! Everything that is decided is decided by [`judge`] and [`Entry::next`]. At most one request of an object is under way, and at most
//! [`AT_ONCE`] of all. What fails is tried again for ever; while the apiserver is away nothing else waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, Stream, StreamExt};
use kube::api::DynamicObject;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::{self, Event};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::desired::{DesiredObject, DesiredObjects};
use super::entry::{Around, Entry, Hold, Next, Presence, Request};
use super::events::Telling;
use super::judge::{Judgement, OurNode, Stance, judge};
use super::objects::{ObjectError, Objects, Part};
use super::patience::pause;
use super::seen::Seen;
use super::{events, patch, status};
use crate::board::{Board, Change};
use crate::clock;
use crate::fault;
use crate::sandbox::SandboxRecord;
use crate::settled::Settle;
use crate::source::{Accounted, SandboxKey};
use crate::told::chain;
use crate::unique;

/// Requests at one time.
const AT_ONCE: usize = 16;
/// When an object that the watch does not have, though it is there, is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// Over what time requests are spread when the apiserver is back.
const SPREAD: Duration = Duration::from_secs(1);

/// One thing that the watch tells.
pub(super) type Told = Result<Event<DeserializeGuard<DynamicObject>>, watcher::Error>;

/// What a request came to.
struct Done {
    uid: String,
    request: Request,
    answer: Result<DynamicObject, ObjectError>,
}

/// What a clerk works with.
pub(super) struct Desk<O> {
    /// The apiserver.
    pub objects: Arc<O>,
    /// Which Node this is, once that is known.
    pub ours: watch::Receiver<Option<OurNode>>,
    /// What drivers say.
    pub board: Board,
    /// What the supervisor has.
    pub accounted: watch::Receiver<Accounted>,
    /// Who waits for an end to be told.
    pub settle: Settle,
}

/// The owner of what is known of the objects.
pub(super) struct Clerk<O> {
    desk: Desk<O>,
    desired: watch::Sender<DesiredObjects>,
    entries: BTreeMap<String, Entry>,
    /// UIDs of sandboxes whose records cannot be read.
    lost: BTreeSet<String>,
    /// UIDs that the list under way has told of.
    listing: BTreeSet<String>,
    /// A list is under way, or could not be finished.
    is_listing: bool,
    /// The set that is desired has changed since it was sent.
    changed: bool,
    /// To be looked at.
    due: BTreeSet<String>,
    /// To be looked at then.
    wake: BTreeMap<String, Duration>,
    requests: FuturesUnordered<BoxFuture<'static, Done>>,
    telling: Telling,
    /// The apiserver does not answer, or did not last time.
    is_away: bool,
}

impl<O: Objects> Clerk<O> {
    /// A clerk that knows what an earlier agent had: `taken` are its records, `lost` the UIDs of those that cannot be read.
    pub(super) fn new<'a>(
        desk: Desk<O>,
        taken: impl Iterator<Item = (&'a SandboxKey, &'a SandboxRecord)>,
        lost: Vec<String>,
    ) -> Self {
        let first = 1;
        let mut entries = BTreeMap::new();
        for (key, record) in taken {
            let hold = if record.deleted {
                Hold::Dropped { revision: first }
            } else {
                Hold::Taken(Arc::new(DesiredObject::remembered(record)))
            };
            let entry = Entry::new(key.clone(), record.uid.clone(), hold);
            entries.insert(record.uid.clone(), entry);
        }
        let sandboxes = sandboxes(&entries, &BTreeMap::new());
        Self {
            desk,
            desired: watch::Sender::new(DesiredObjects {
                revision: first,
                sandboxes,
            }),
            entries,
            lost: lost.into_iter().collect(),
            listing: BTreeSet::new(),
            is_listing: false,
            changed: false,
            due: BTreeSet::new(),
            wake: BTreeMap::new(),
            requests: FuturesUnordered::new(),
            telling: Telling::default(),
            is_away: false,
        }
    }

    /// What should exist, now and from now on.
    pub(super) fn desired(&self) -> watch::Receiver<DesiredObjects> {
        self.desired.subscribe()
    }

    /// Works until `stop`. What is not told then, the next agent tells.
    pub(super) async fn run(
        mut self,
        told: impl Stream<Item = Told> + Send,
        stop: CancellationToken,
    ) {
        let mut told = std::pin::pin!(told);
        let (posted, mut news) = self.desk.board.watch();
        for (_, object) in posted {
            self.post(object);
        }
        loop {
            self.publish();
            self.advance();
            let wake = self.wake.values().min().copied();
            tokio::select! {
                // All are cancel safe: streams and channels keep what is not taken.
                () = stop.cancelled() => return,
                next = told.next() => match next {
                    Some(next) => self.hear(next),
                    // A watch begins again for ever.
                    None => return,
                },
                Some(done) = self.requests.next() => self.finish(done),
                () = self.telling.next() => {}
                change = news.recv() => match change {
                    Ok(Change::Posted(_, object)) => self.post(object),
                    // What is left is the supervisor's word.
                    Ok(Change::Removed(..)) => {}
                    Err(RecvError::Lagged(_)) => {
                        let (posted, from_now) = self.desk.board.watch();
                        news = from_now;
                        for (_, object) in posted {
                            self.post(object);
                        }
                    }
                    Err(RecvError::Closed) => return,
                },
                changed = self.desk.accounted.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.due.extend(self.entries.keys().cloned());
                }
                changed = self.desk.ours.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let all: Vec<String> = self.entries.keys().cloned().collect();
                    for uid in all {
                        self.consider(&uid);
                    }
                }
                () = clock::sleep_until(wake) => {
                    let now = clock::boot_time();
                    self.due.extend(
                        self.wake.iter().filter(|(_, at)| **at <= now).map(|(uid, _)| uid.clone()),
                    );
                }
            }
        }
    }

    fn post(&mut self, object: Arc<cloche_crds::Sandbox>) {
        let uid = object.metadata.uid.clone().unwrap_or_default();
        if let Some(entry) = self.entries.get_mut(&uid) {
            entry.post(object, clock::boot_time());
            self.due.insert(uid);
        }
    }

    fn hear(&mut self, told: Told) {
        match told {
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the watch of sandboxes is broken; what runs goes on"
                );
                self.is_away = true;
                return;
            }
            // It is about to ask, which tells nothing of the apiserver.
            Ok(Event::Init) => {
                self.listing.clear();
                self.is_listing = true;
                return;
            }
            Ok(Event::InitApply(guarded)) => {
                if let Some(uid) = self.see(guarded) {
                    self.listing.insert(uid);
                }
            }
            Ok(Event::InitDone) => {
                self.is_listing = false;
                let listed = std::mem::take(&mut self.listing);
                let now = clock::boot_time();
                for (uid, entry) in &mut self.entries {
                    let was_there = matches!(entry.presence, Presence::Unknown | Presence::Listed);
                    if was_there && !listed.contains(uid) {
                        entry.presence = Presence::Absent { ask_at: now };
                        self.due.insert(uid.clone());
                    }
                }
            }
            Ok(Event::Apply(guarded)) => drop(self.see(guarded)),
            Ok(Event::Delete(DeserializeGuard(object))) => {
                let metadata = match object {
                    Ok(object) => object.metadata,
                    Err(invalid) => invalid.metadata,
                };
                let uid = metadata.uid.unwrap_or_default();
                if let Some(entry) = self.entries.get_mut(&uid) {
                    let ask_at = clock::boot_time();
                    entry.presence = Presence::Absent { ask_at };
                    self.due.insert(uid);
                }
            }
        }
        if std::mem::take(&mut self.is_away) {
            self.come_back();
        }
    }

    /// The apiserver answers again: nobody waits for the end of a long pause.
    fn come_back(&mut self) {
        let now = clock::boot_time();
        for (uid, entry) in &mut self.entries {
            if entry.failures > 0 {
                entry.failures = 0;
                entry.not_before = now + SPREAD.mul_f64(unique::fraction());
                self.due.insert(uid.clone());
            }
        }
    }

    /// An object of the watch; its UID.
    fn see(&mut self, DeserializeGuard(object): DeserializeGuard<DynamicObject>) -> Option<String> {
        let object = match object {
            Ok(object) => object,
            Err(invalid) => {
                tracing::error!(
                    sandbox = invalid.metadata.name,
                    error = &invalid as &dyn std::error::Error,
                    "an object that cannot be read at all"
                );
                // It is there all the same.
                return invalid.metadata.uid;
            }
        };
        let seen = Seen::of(object)?;
        let (uid, key) = (seen.uid.clone(), seen.key.clone());
        let now = clock::boot_time();
        // One name, one object: whatever else had it is gone, which is for the apiserver to say.
        for (other, entry) in &mut self.entries {
            if *other != uid && entry.key == key && entry.presence == Presence::Listed {
                entry.presence = Presence::Absent { ask_at: now };
                self.due.insert(other.clone());
            }
        }
        let record_lost = self.lost.contains(&uid);
        let entry = self
            .entries
            .entry(uid.clone())
            .or_insert_with(|| Entry::new(key, uid.clone(), Hold::New { record_lost }));
        entry.presence = Presence::Listed;
        entry.see(seen);
        self.consider(&uid);
        Some(uid)
    }

    /// Judges an object anew.
    fn consider(&mut self, uid: &str) {
        let ours = self.desk.ours.borrow().clone();
        let next = self.desired.borrow().revision + 1;
        let Some(entry) = self.entries.get_mut(uid) else {
            return;
        };
        self.due.insert(uid.to_owned());
        let Some(seen) = entry.seen.clone() else {
            return;
        };
        let stance = match &entry.hold {
            Hold::New { record_lost } => Stance::New {
                record_lost: *record_lost,
            },
            Hold::Taken(desired) => Stance::Taken(desired),
            Hold::Refused(_) | Hold::Dropped { .. } => return,
        };
        match judge(&seen, ours.as_ref(), stance) {
            Judgement::Leave => {}
            Judgement::Keep(why) => {
                if entry.kept.replace(why) != Some(why) {
                    tracing::error!(sandbox = %entry.key, uid, "{why}");
                }
            }
            Judgement::Take(desired) => {
                let same = matches!(&entry.hold, Hold::Taken(before) if **before == *desired);
                if !same {
                    entry.hold = Hold::Taken(Arc::new(*desired));
                    self.changed = true;
                }
            }
            Judgement::Drop => {
                entry.hold = Hold::Dropped { revision: next };
                self.changed = true;
            }
            Judgement::Refuse(cause) => {
                tracing::warn!(sandbox = %entry.key, uid, reason = cause.reason.as_str(), "{}", cause.message);
                let status = status::refused(&cause, &seen, clock::now().wall);
                entry.hold = Hold::Refused(Arc::new(status));
            }
        }
    }

    /// Sends the desired set where it has changed. Not half a list: what is new may have the room of what was declared ended meanwhile, and
    /// which of them comes first tells nothing.
    fn publish(&mut self) {
        if self.is_listing || !std::mem::take(&mut self.changed) {
            return;
        }
        self.desired.send_modify(|desired| {
            desired.revision += 1;
            desired.sandboxes = sandboxes(&self.entries, &desired.sandboxes);
        });
    }

    /// Begins what is to be done.
    fn advance(&mut self) {
        let ours = self.desk.ours.borrow().clone();
        let accounted = self.desk.accounted.borrow().clone();
        let now = clock::now();
        while self.requests.len() < AT_ONCE
            && let Some(uid) = self.due.pop_first()
        {
            let Some(entry) = self.entries.get_mut(&uid) else {
                continue;
            };
            let around = Around {
                ours: ours.as_ref(),
                accounted: &accounted,
            };
            if entry.was_never_here(around) {
                // Judged again as one that is new, and due again by that.
                entry.hold = Hold::New { record_lost: false };
                self.consider(&uid);
                continue;
            }
            self.wake.remove(&uid);
            self.desk.settle.set(&uid, entry.is_settled(ours.as_ref()));
            match entry.next(around, now) {
                Next::Wait => {}
                Next::At(at) => {
                    self.wake.insert(uid, at);
                }
                Next::Forget => {
                    self.desk.settle.set(&uid, false);
                    self.entries.remove(&uid);
                }
                Next::Do(request) => {
                    entry.busy = true;
                    let key = entry.key.clone();
                    let begun = begin(self.desk.objects.as_ref(), &key, uid, request);
                    self.requests.push(begun);
                }
            }
        }
    }

    /// Takes in what a request came to.
    fn finish(&mut self, done: Done) {
        let Done {
            uid,
            request,
            answer,
        } = done;
        let now = clock::boot_time();
        let Some(entry) = self.entries.get_mut(&uid) else {
            return;
        };
        entry.busy = false;
        match answer {
            Ok(object) => {
                entry.failures = 0;
                match request {
                    Request::Tell(_) => {
                        fault::point("status-written");
                        entry.pace.written_at = Some(now);
                    }
                    Request::Release(_) => fault::point("finalizer-off"),
                    Request::Ask => {}
                }
                match Seen::of(object) {
                    Some(seen) if seen.uid == uid => {
                        if request == Request::Ask {
                            entry.presence = match entry.presence {
                                Presence::Absent { .. } => Presence::Absent {
                                    ask_at: now + ASK_AGAIN.mul_f64(0.5 + unique::fraction()),
                                },
                                Presence::Doubted => Presence::Listed,
                                other @ (Presence::Unknown | Presence::Listed | Presence::Gone) => {
                                    other
                                }
                            };
                        }
                        entry.see(seen);
                        if let Request::Tell(status) = request {
                            let node = self.desk.ours.borrow();
                            let node = node.as_ref().map_or("", |node| &node.name);
                            let event =
                                events::of(&entry.key, &uid, &status, node, clock::now().wall);
                            if let Some(event) = event {
                                self.telling.begin(&self.desk.objects, event);
                            }
                            entry.answer(status);
                        }
                        self.consider(&uid);
                    }
                    // Another has the name.
                    Some(_) | None => self.gone(&uid),
                }
                if std::mem::take(&mut self.is_away) {
                    self.come_back();
                }
            }
            Err(ObjectError::Gone) => self.gone(&uid),
            Err(error @ ObjectError::Refused(_)) => {
                tracing::error!(sandbox = %entry.key, uid, request = name(&request), "{error}");
                if let Request::Tell(status) = request {
                    entry.answer(status);
                }
                // What was known of it was not so.
                if entry.presence == Presence::Listed {
                    entry.presence = Presence::Doubted;
                }
                fail(entry, now);
                self.due.insert(uid);
            }
            Err(error @ (ObjectError::Unanswered(_) | ObjectError::Silent)) => {
                // Once for each outage and object, and then as often as its pauses double.
                tracing::warn!(sandbox = %entry.key, request = name(&request), "{}; trying again", chain(&error));
                fail(entry, now);
                self.is_away |= error.is_of_apiserver();
                self.due.insert(uid);
            }
        }
    }

    /// The apiserver has said that an object is gone.
    fn gone(&mut self, uid: &str) {
        let next = self.desired.borrow().revision + 1;
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.presence = Presence::Gone;
            if let Hold::Taken(_) = entry.hold {
                entry.hold = Hold::Dropped { revision: next };
                self.changed = true;
            }
            self.due.insert(uid.to_owned());
        }
    }
}

fn name(request: &Request) -> &'static str {
    match request {
        Request::Ask => "ask for it",
        Request::Tell(_) => "write its status",
        Request::Release(_) => "take the finalizer off",
    }
}

fn fail(entry: &mut Entry, now: Duration) {
    entry.not_before = now.saturating_add(pause(entry.failures));
    entry.failures = entry.failures.saturating_add(1);
}

fn begin<O: Objects>(
    objects: &O,
    key: &SandboxKey,
    uid: String,
    request: Request,
) -> BoxFuture<'static, Done> {
    let answer = match &request {
        Request::Ask => objects.get(key),
        Request::Tell(status) => objects.patch(key, Part::Status, patch::status(&uid, status)),
        Request::Release(patch) => objects.patch(key, Part::Main, patch.clone()),
    };
    Box::pin(async move {
        Done {
            uid,
            request,
            answer: answer.await,
        }
    })
}

/// What is desired. Of two of one name the one that has it keeps it until it is known to be gone.
fn sandboxes(
    entries: &BTreeMap<String, Entry>,
    before: &BTreeMap<SandboxKey, Arc<DesiredObject>>,
) -> BTreeMap<SandboxKey, Arc<DesiredObject>> {
    let mut sandboxes = BTreeMap::<SandboxKey, Arc<DesiredObject>>::new();
    for entry in entries.values() {
        if let Hold::Taken(desired) = &entry.hold {
            let had = before.get(&entry.key).map(|before| &before.uid);
            let taken = sandboxes.contains_key(&entry.key);
            if !taken || had == Some(&desired.uid) {
                sandboxes.insert(entry.key.clone(), Arc::clone(desired));
            }
        }
    }
    sandboxes
}

#[cfg(test)]
mod tests;
