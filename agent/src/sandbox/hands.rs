//! The effects of one sandbox: each runs in a task of its own and comes back to the driver as an event.
//!
//! At most one effect that leads forward (pull, claim, prepare, ...) runs at a time. Tearing down first stops it and waits for
//! it, so that nothing is written behind its back; but a claim is never stopped: it delivers, or gives back, what it got.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use cloche_crds::Reason;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::driver::{DriverHandle, Hands};
use super::holding::Shared;
use super::record::{Cause, ImageUse, SandboxRecord, State, Usage};
use super::step::{Action, Event};
use super::{death, keep, pace, start};
use crate::image::{Access, Image, Progress};
use crate::instance::{Instance, limits};
use crate::node::Node;
use crate::runsc::SavedFiles;
use crate::snapshot::Saved;
use crate::source::SandboxKey;
use crate::usage::{self, Peaks};

/// A pull that takes longer is told in the status, and then again after each [`PROGRESS_PERIOD`].
const PROGRESS_AFTER: Duration = Duration::from_secs(1);
const PROGRESS_PERIOD: Duration = Duration::from_secs(10);

/// Why commands end that were running when their sandbox was stopped.
const STOPPED: &str = "Stopped";

/// The hands of one sandbox's driver.
pub struct NodeHands {
    shared: Shared,
    /// Whether the node has room for the sandbox: before, nothing is claimed. Given back with what it was for.
    room: watch::Sender<bool>,
    forward: Option<JoinHandle<()>>,
    /// Keeps its files.
    keeping: Option<JoinHandle<()>>,
    /// Kills the instance before its end is written down.
    killing: Option<JoinHandle<()>>,
}

impl NodeHands {
    /// Hands for the sandbox `key`, for which the node has room once `room` says so.
    pub fn new(node: Arc<Node>, key: SandboxKey, room: watch::Sender<bool>) -> Self {
        Self {
            shared: Shared::new(node, key),
            room,
            forward: None,
            keeping: None,
            killing: None,
        }
    }

    /// Takes over what the sandbox of `record` had before the agent started: its sessions, and `instance` where that stands.
    /// They are there when this returns, so that nobody who finds the sandbox running finds it without them.
    pub async fn adopt(&self, instance: Option<Instance>, record: &SandboxRecord) {
        {
            let mut holding = self.shared.holding();
            holding.instance = instance;
            let kept = record.kept.iter().map(|kept| kept.files.clone());
            holding.saved = kept.collect();
            holding.may_exceed = record.state.may_be_paused();
        }
        if !record.state.may_be_paused() {
            self.shared.pace.runs().await;
        }
        start::find_sessions(&self.shared, record).await;
    }

    /// Lets the driver of these events be told of things, and watches the instance that was adopted, if one was.
    pub fn watch(&self, record: &SandboxRecord, events: &mpsc::Sender<Event>) {
        self.shared.holding().driver = Some(DriverHandle::new(events.clone()));
        if let Some(instance) = self.shared.instance() {
            self.shared.hold(instance, record, events);
        }
    }

    fn forward(&mut self, effect: impl Future<Output = ()> + Send + 'static) {
        let cancel = self.shared.node.cancel.clone();
        self.forward = Some(self.shared.node.tasks.spawn(async move {
            tokio::select! {
                // First: what fails because the agent stops is no failure of the sandbox.
                biased;
                // Safe to break off anywhere, as `kill -9` is: the record tells the next agent where to go on.
                () = cancel.cancelled() => {}
                () = effect => {}
            }
        }));
    }
}

impl Hands for NodeHands {
    fn perform(&mut self, action: Action, record: &SandboxRecord, events: &mpsc::Sender<Event>) {
        let (shared, record, events) = (self.shared.clone(), record.clone(), events.clone());
        match action {
            Action::Pull => self.forward(shared.pull(record, events)),
            Action::Claim => {
                let (mut room, node) = (self.room.subscribe(), Arc::clone(&self.shared.node));
                self.forward(async move {
                    if !*room.borrow() {
                        shared.tell_beside(|beside| beside.waits_for_room = true);
                        node.room_wanted.notify_one();
                    }
                    // An error: nobody follows it any more.
                    let has_room = room.wait_for(|has_room| *has_room).await.is_ok();
                    shared.holding().beside.waits_for_room = false;
                    if has_room {
                        let alone = Arc::clone(&shared.claiming).lock_owned().await;
                        node.tasks.spawn(async move {
                            shared.claim(record, events).await;
                            drop(alone);
                        });
                    }
                });
            }
            Action::Prepare => self.forward(start::prepare(shared, record, events)),
            Action::RequestMain => self.forward(start::main(shared, record, events)),
            Action::Pause => {
                let number = self.shared.pace.supersede();
                let pausing = pace::pause(shared, number, record, events);
                self.shared.node.tasks.spawn(pausing);
            }
            Action::Resume => {
                let number = self.shared.pace.supersede();
                let resuming = pace::resume(shared, number, record, events);
                self.shared.node.tasks.spawn(resuming);
            }
            Action::Keep => {
                let number = self.shared.pace.supersede();
                let keeping = keep::keep(shared, number, record, events);
                self.keeping = Some(self.shared.node.tasks.spawn(keeping));
            }
            Action::Discard => {
                let (forward, room) = (self.forward.take(), self.room.clone());
                self.shared.pace.supersede();
                let discarding = shared.discard(record, forward, room, events);
                self.shared.node.tasks.spawn(discarding);
            }
            Action::Terminate => drop(
                self.shared
                    .node
                    .tasks
                    .spawn(start::terminate(shared, record)),
            ),
            Action::ServeLogs => drop(self.shared.node.tasks.spawn(async move {
                let reason = record
                    .state
                    .termination()
                    .map_or(STOPPED, |end| end.cause.reason.as_str());
                let _alone = shared.opening.lock().await;
                let now = shared.holding().record.clone();
                // It may be on its way back by now.
                if now.is_some_and(|now| now.state == record.state) {
                    start::end_sessions(&shared, &record, reason).await;
                }
            })),
            Action::TearDown => {
                let (forward, keeping) = (self.forward.take(), self.keeping.take());
                // What is killed neither stands still nor goes on.
                self.shared.pace.supersede();
                self.shared
                    .node
                    .tasks
                    .spawn(shared.tear_down(record, (forward, keeping), events));
            }
            Action::Destroy(instance) => drop(
                self.shared
                    .node
                    .tasks
                    .spawn(async move { shared.give_back(&instance).await }),
            ),
            // The driver does it itself.
            Action::Remove => {}
        }
    }

    fn publish(&mut self, record: &SandboxRecord) {
        self.shared.publish(record);
    }

    fn kill(&mut self, record: &SandboxRecord) {
        let is_killing = self
            .killing
            .as_ref()
            .is_some_and(|task| !task.is_finished());
        if let (Some(instance), false) = (record.state.instance(), is_killing) {
            let (node, id) = (Arc::clone(&self.shared.node), instance.to_owned());
            let kill = async move { node.workshop.kill(&id).await };
            self.killing = Some(self.shared.node.tasks.spawn(kill));
        }
    }

    async fn remove(&mut self, record: &SandboxRecord) {
        if let Some(settled) = &self.shared.node.settled {
            settled.clone().wait(&record.uid).await;
        }
        // Their task ends; readers that are under way are told so.
        self.shared.sessions_cancel.cancel();
        let pulled = {
            let mut holding = self.shared.holding();
            holding.sessions = None;
            holding.image.take()
        };
        // Pulled but not taken over: it ended meanwhile, and the record does not name the image.
        let used = record.image.as_ref().map(|image| image.digest);
        for digest in used.into_iter().chain(pulled.map(|image| image.digest)) {
            self.shared.node.images.unpin(&digest, &record.uid);
        }
        self.shared.node.collect_images();
        self.shared.publish(record);
    }
}

/// Whether `image` is not the one that the sandbox was stopped with.
fn is_another(record: &SandboxRecord, image: &Image) -> bool {
    let before = record.image.as_ref().filter(|_| record.kept.is_some());
    before.is_some_and(|before| before.digest != image.digest)
}

impl Shared {
    async fn pull(self, record: SandboxRecord, events: mpsc::Sender<Event>) {
        self.take_values(&record, &events).await;
        if let Some(used) = record.image.as_ref().filter(|_| record.kept.is_some())
            && let Some(image) = self.node.images.here(&used.digest).await
        {
            // Whatever its reference means by now.
            self.holding().image = Some(image);
            drop(events.send(Event::Image(Ok(used.clone()))).await);
            return;
        }
        let (image, policy) = (&record.spec.image, record.spec.pull_policy);
        let access = if self.node.images.asks(image, policy).await {
            self.access(&record, &events).await
        } else {
            Access::default()
        };
        let (progress, seen) = watch::channel(Progress::default());
        let outcome = tokio::select! {
            outcome = self.node.images.ensure(image, policy, &access, &progress) => outcome,
            // Tells for as long as the pull goes on.
            never = self.tell_progress(seen) => match never {},
        };
        self.holding().beside.pull = None;
        let event = match outcome {
            Ok(image) if is_another(&record, &image) => {
                Event::Image(Err(death::of_other_image(&record)))
            }
            Ok(image) => {
                // Pinned before the record says that it is used: pins of no record are gone after a restart.
                self.node.images.pin(&image.digest, &record.uid);
                let before = record.image.as_ref().map(|image| image.digest);
                if let Some(before) = before.filter(|before| *before != image.digest) {
                    // It was bound anew, and its tag means another image by now.
                    self.node.images.unpin(&before, &record.uid);
                }
                let used = ImageUse {
                    digest: image.digest,
                    config: image.config.clone(),
                };
                self.holding().image = Some(image);
                self.node.collect_images();
                Event::Image(Ok(used))
            }
            Err(error) => Event::Image(Err(death::of_image(&error))),
        };
        drop(events.send(event).await);
    }

    async fn tell_progress(&self, mut seen: watch::Receiver<Progress>) -> Infallible {
        let mut wait = PROGRESS_AFTER;
        loop {
            tokio::time::sleep(wait).await;
            let now = *seen.borrow_and_update();
            self.tell_beside(|beside| beside.pull = Some(now));
            wait = PROGRESS_PERIOD;
            if seen.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    async fn claim(self, record: SandboxRecord, events: mpsc::Sender<Event>) {
        let shape = limits::shape(&record.spec.resources);
        let outcome = match &record.kept {
            None => self.node.pool.claim(&shape).await,
            Some(kept) => match self.saved(&record, kept.files.clone()).await {
                Ok(saved) => self.node.pool.bring_back(&shape, saved).await,
                Err(cause) => return drop(events.send(Event::Claimed(Err(cause))).await),
            },
        };
        let event = match outcome {
            Ok(instance) => {
                let id = instance.id().to_owned();
                self.pace.runs().await;
                self.hold(instance, &record, &events);
                Event::Claimed(Ok(id))
            }
            Err(error) => Event::Claimed(Err(death::of_start(&error, error.is_limit()))),
        };
        if let Err(mpsc::error::SendError(Event::Claimed(Ok(id)))) = events.send(event).await {
            self.give_back(&id).await;
        }
    }

    /// The files that were kept, whole.
    async fn saved(&self, record: &SandboxRecord, files: Saved) -> Result<SavedFiles, Cause> {
        let (node, folder) = (
            Arc::clone(&self.node),
            self.node.sandboxes.folder(&record.uid),
        );
        let read = tokio::task::spawn_blocking(move || {
            // The record tells it by now.
            usage::forget(&folder);
            node.snapshots.verify(&files)
        });
        let image = record.image.as_ref().map(|image| image.digest);
        match read.await {
            Ok(Ok((manifest, _))) if Some(manifest.image) != image => {
                Err(death::internal("its files are those of another image"))
            }
            Ok(Ok((manifest, saved))) => {
                let ours = &self.node.runtime.profile;
                if manifest.profile != *ours {
                    tracing::info!(
                        sandbox = record.name,
                        kept_by = manifest.profile,
                        profile = ours,
                        "its files were kept by another runtime"
                    );
                }
                Ok(saved)
            }
            Ok(Err(error)) => Err(death::of_files(&error)),
            Err(error) => Err(death::of_start(&error, false)),
        }
    }

    /// Removes an instance that came too late to be of use.
    async fn give_back(&self, id: &str) {
        self.node.sampler.forget(id);
        {
            let mut holding = self.holding();
            if holding
                .instance
                .as_ref()
                .is_some_and(|held| held.id() == id)
            {
                holding.instance = None;
            }
        }
        self.node.workshop.demolish(id).await;
    }

    /// Keeps an instance and watches its sentry.
    pub(super) fn hold(
        &self,
        instance: Instance,
        record: &SandboxRecord,
        events: &mpsc::Sender<Event>,
    ) {
        let request = limits::memory_request(&record.spec.resources);
        let teller = self.clone();
        let subject = usage::Subject {
            sandbox: record.name.clone(),
            folder: self.node.sandboxes.folder(&record.uid),
            request,
            disk_limit: record.spec.resources.disk_limit.0,
            disk_request: record.spec.resources.disk_request.0,
            sentry: instance.sentry.id().pid,
            scratch: self.node.scratch.clone(),
            driver: DriverHandle::new(events.clone()),
            tell: Box::new(move |pressure| teller.tell_beside(|beside| beside.pressure = pressure)),
        };
        self.node.sampler.watch(instance.id(), subject);
        self.holding().instance = Some(instance.clone());
        let (shared, record, events) = (self.clone(), record.clone(), events.clone());
        self.node.tasks.spawn(async move {
            tokio::select! {
                // Cancel safe: the sandbox goes on without an agent.
                () = shared.node.cancel.cancelled() => {}
                // Cancel safe: looking at a pidfd takes nothing away.
                gone = instance.sentry.gone() => {
                    if let Err(error) = gone {
                        tracing::error!(error = &error as &dyn std::error::Error, "cannot watch a sentry");
                    }
                    let cause = death::of_sentry(&shared.node, instance.id(), &record).await;
                    let instance = instance.id().to_owned();
                    drop(events.send(Event::Died { instance, cause }).await);
                }
            }
        });
    }

    async fn tear_down(
        self,
        record: SandboxRecord,
        (forward, keeping): (Option<JoinHandle<()>>, Option<JoinHandle<()>>),
        events: mpsc::Sender<Event>,
    ) {
        if let Some(forward) = forward {
            forward.abort();
            // Aborted or finished, both are fine.
            drop(forward.await);
        }
        // What a claim under way gets comes to the driver before this does.
        drop(self.claiming.lock().await);
        let State::Ending {
            instance,
            termination,
        } = &record.state
        else {
            return;
        };
        let (mut usage, mut output_lost) = (None, false);
        if let Some(id) = instance {
            start::settle_main(&self).await;
            let reason = termination.cause.reason;
            let mut used = self.take_down(id, &record, reason.as_str()).await;
            if reason == Reason::OOMKilled {
                let limit = record.limits().memory;
                used.peak_memory = used.peak_memory.max(Some(limit));
            }
            usage = Some(used);
            output_lost = start::is_output_lost(&self).await;
        }
        if let Some(keeping) = keeping {
            // With its sentry killed it soon ends, and what it has kept by then is known.
            drop(keeping.await);
        }
        let torn_down = Event::TornDown { usage, output_lost };
        drop(events.send(torn_down).await);
    }

    async fn discard(
        self,
        record: SandboxRecord,
        forward: Option<JoinHandle<()>>,
        room: watch::Sender<bool>,
        events: mpsc::Sender<Event>,
    ) {
        if let Some(forward) = forward {
            forward.abort();
            // Aborted or finished, both are fine.
            drop(forward.await);
        }
        // What it gets goes back before anything new is claimed.
        drop(self.claiming.lock().await);
        self.tell_beside(|beside| {
            beside.waits_for_room = false;
            beside.pull = None;
            beside.sessions_unavailable = None;
        });
        let usage = match record.state.instance() {
            Some(id) => Some(self.take_down(id, &record, STOPPED).await),
            None => None,
        };
        // Before anybody is told: who sees it stopped gives its room away.
        room.send_replace(false);
        drop(events.send(Event::Discarded { usage }).await);
    }

    /// Kills and removes the instance `id` with its sessions, which end by `reason`; what it used.
    async fn take_down(&self, id: &str, record: &SandboxRecord, reason: &str) -> Usage {
        // What it uses goes with its processes.
        let last = self.sample(id).await;
        self.node.workshop.kill(id).await;
        start::end_sessions(self, record, reason).await;
        let usage = self.used(id, record, last).await;
        crate::fault::point("sandbox.killed");
        self.node.workshop.demolish(id).await;
        self.holding().instance = None;
        usage
    }

    /// What is in use now, where there is something to count.
    async fn sample(&self, id: &str) -> Peaks {
        let (node, id) = (Arc::clone(&self.node), id.to_owned());
        let counted = tokio::task::spawn_blocking(move || {
            let alive = !node.cgroups.processes(&id).ok()?.is_empty();
            let counters = node.cgroups.counters(&id).ok().filter(|_| alive)?;
            Some(Peaks {
                memory: counters.memory,
                disk: node.sampler.disk(&id),
            })
        });
        counted.await.ok().flatten().unwrap_or_default()
    }

    /// What the instance used. Kept in a file until the record tells it: its group, which knows, goes before.
    async fn used(&self, id: &str, record: &SandboxRecord, last: Peaks) -> Usage {
        let folder = self.node.sandboxes.folder(&record.uid);
        let peaks = self.node.sampler.forget(id).max(last);
        let (cgroups, name) = (Arc::clone(&self.node.cgroups), id.to_owned());
        let read = tokio::task::spawn_blocking(move || {
            let kept = usage::kept(&folder);
            // Kept by an earlier agent at this end.
            if kept.cpu_usec.is_some() {
                return kept;
            }
            let peaks = peaks.max(usage::peaks_of(&kept));
            let used = Usage {
                peak_memory: Some(peaks.memory).filter(|memory| *memory > 0),
                written: peaks.disk,
                cpu_usec: cgroups.counters(&name).ok().map(|total| total.cpu_usec),
            };
            usage::keep(&folder, &used);
            used
        });
        read.await.unwrap_or_default()
    }
}
