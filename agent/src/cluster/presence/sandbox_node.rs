//! The node's `SandboxNode`, kept as it should be.

use std::pin::pin;
use std::time::Duration;

use cloche_crds::SandboxNode;
use cloche_identity::Credentials;
use futures::StreamExt;
use jiff::Timestamp;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
};
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::offer::{Offer, Step, Terms, Unready, step};
use super::{PresenceError, in_time};
use crate::clock;
use crate::cluster::own_node::NodeFacts;
use crate::cluster::patience::{patient, pause};
use crate::unique;

/// Least time between two writes, on average: somebody who writes otherwise must not make it a race.
const SPACED: Duration = Duration::from_secs(10);

/// Longest time between two looks at whether the certificate holds: a clock may be set.
const LOOK: Duration = Duration::from_mins(1);

/// As the apiserver has the object.
enum Seen {
    /// Nobody has said yet.
    Unknown,
    /// There is none.
    Absent,
    /// So.
    There(Box<DynamicObject>),
}

impl From<Option<DynamicObject>> for Seen {
    fn from(object: Option<DynamicObject>) -> Self {
        object.map_or(Self::Absent, |object| Self::There(Box::new(object)))
    }
}

/// By what the node is ready or not.
pub(in crate::cluster) struct Standing {
    /// What the agent serves with.
    pub credentials: watch::Receiver<Option<Credentials>>,
    /// Whether a pod holds what sandboxes may request.
    pub reserved: watch::Receiver<bool>,
    /// Whether little is left of the disk.
    pub disk_pressed: watch::Receiver<bool>,
}

impl Standing {
    /// What stands against offering anything, and until when nothing does by the wall clock.
    fn judge(&mut self, now: Timestamp) -> (Option<Unready>, Option<Timestamp>) {
        let holds = self.credentials.borrow_and_update();
        let until = holds.as_ref().map(Credentials::not_after);
        let until = until.filter(|until| now < *until);
        let is_reserved = *self.reserved.borrow_and_update();
        let is_pressed = *self.disk_pressed.borrow_and_update();
        let unready = if until.is_none() {
            Some(Unready::NoCertificate)
        } else if !is_reserved {
            Some(Unready::NotReserved)
        } else {
            is_pressed.then_some(Unready::DiskPressure)
        };
        (unready, until)
    }
}

/// Keeps the object.
pub(in crate::cluster) struct Announcer {
    client: kube::Client,
    name: String,
    facts: watch::Receiver<Option<NodeFacts>>,
    terms: Terms,
    standing: Standing,
    /// What was last to be offered.
    offer: Option<Offer>,
    seen: Seen,
    /// What was written last, and the version that this made: an apiserver that has made something else of it will do so again.
    told: Option<(Step, Option<String>)>,
    failures: u32,
    /// No write before this, since boot.
    not_before: Duration,
}

impl Announcer {
    /// Of the Node `name`.
    pub(in crate::cluster) fn new(
        client: kube::Client,
        name: &str,
        facts: watch::Receiver<Option<NodeFacts>>,
        terms: Terms,
        standing: Standing,
    ) -> Self {
        Self {
            client,
            name: name.to_owned(),
            facts,
            terms,
            standing,
            offer: None,
            seen: Seen::Unknown,
            told: None,
            failures: 0,
            not_before: Duration::ZERO,
        }
    }

    /// Keeps it until `stop`.
    pub(in crate::cluster) async fn run(mut self, stop: CancellationToken) {
        // Safe to break off anywhere: the next agent begins by looking.
        stop.run_until_cancelled(self.keep()).await;
    }

    async fn keep(&mut self) {
        let resource = ApiResource::erase::<SandboxNode>(&());
        let all: Api<DeserializeGuard<DynamicObject>> =
            Api::all_with(self.client.clone(), &resource);
        let one = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let mut told = pin!(patient(watcher(all, one), |event| !matches!(
            event,
            Event::Init
        )));
        let mut listed = None;
        loop {
            let now = clock::now();
            let (unready, until) = self.standing.judge(now.wall);
            let over =
                until.and_then(|until| Duration::try_from(until.duration_since(now.wall)).ok());
            let over = over.map(|left| now.boot + left.min(LOOK));
            let at = self.advance(unready).await;
            let at = at.into_iter().chain(over).min();
            tokio::select! {
                // All are cancel safe: streams and channels keep what is not taken.
                changed = self.facts.changed() => if changed.is_err() { return },
                changed = self.standing.credentials.changed() => if changed.is_err() { return },
                changed = self.standing.reserved.changed() => if changed.is_err() { return },
                changed = self.standing.disk_pressed.changed() => if changed.is_err() { return },
                () = clock::sleep_until(at) => {}
                next = told.next() => match next {
                    None => return,
                    Some(Err(error)) => tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the watch of this node's SandboxNode is broken"
                    ),
                    Some(Ok(Event::Init)) => listed = None,
                    Some(Ok(Event::InitApply(DeserializeGuard(object)))) => listed = object.ok(),
                    Some(Ok(Event::InitDone)) => self.seen = listed.take().into(),
                    Some(Ok(Event::Apply(DeserializeGuard(Ok(object))))) => self.seen = Some(object).into(),
                    // What cannot be read at all is left alone.
                    Some(Ok(Event::Apply(DeserializeGuard(Err(_))))) => self.seen = Seen::Unknown,
                    Some(Ok(Event::Delete(_))) => self.seen = Seen::Absent,
                },
            }
        }
    }

    /// Does what is to be done now; when to look again, since boot.
    async fn advance(&mut self, unready: Option<Unready>) -> Option<Duration> {
        let offer = {
            let facts = self.facts.borrow_and_update();
            self.terms.offer(facts.as_ref()?, unready)
        };
        if self.offer.as_ref() != Some(&offer) {
            // A race is with others; news of our own wait for nothing, but for the pause after a failure.
            if self.failures == 0 {
                self.not_before = Duration::ZERO;
            }
            self.offer = Some(offer.clone());
        }
        let seen = match &self.seen {
            Seen::Unknown => return None,
            Seen::Absent => None,
            Seen::There(object) => Some(&**object),
        };
        let now = clock::now();
        let step = match step(&offer, seen, now.wall) {
            Ok(Step::Rest) => return None,
            Ok(step) => step,
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot tell what the node offers"
                );
                return None;
            }
        };
        if self.told == Some((step.clone(), version(seen))) {
            return None;
        }
        if now.boot < self.not_before {
            return Some(self.not_before);
        }
        match self.perform(step.clone()).await {
            Ok(after) => {
                self.failures = 0;
                if matches!(step, Step::Tell(_)) {
                    self.told = Some((step, version(after.as_ref())));
                    self.not_before = now.boot + SPACED.mul_f64(0.5 + unique::fraction());
                }
                self.seen = after.into();
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "this node's SandboxNode is not as it should be; trying again"
                );
                self.not_before = now.boot + pause(self.failures);
                self.failures = self.failures.saturating_add(1);
            }
        }
        // There may be more to do.
        Some(clock::boot_time().max(self.not_before))
    }

    /// One step; the object after it.
    async fn perform(&self, step: Step) -> Result<Option<DynamicObject>, PresenceError> {
        let resource = ApiResource::erase::<SandboxNode>(&());
        let nodes: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        match step {
            Step::Rest => Ok(None),
            Step::Create(object) => {
                let object = serde_json::from_value(serde_json::to_value(&object)?)?;
                let params = PostParams::default();
                let made = nodes.create(&params, &object);
                in_time("make the SandboxNode", made).await.map(Some)
            }
            Step::Delete(uid) => {
                let params = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: Some(uid),
                        resource_version: None,
                    }),
                    ..DeleteParams::default()
                };
                let deleted = nodes.delete(&self.name, &params);
                let left = in_time("delete the SandboxNode of an earlier Node", deleted).await?;
                // Where somebody holds it by a finalizer, it goes later.
                Ok(left.left())
            }
            Step::Tell(patch) => {
                let patch = Patch::Json::<Value>(serde_json::from_value(patch)?);
                let params = PatchParams::default();
                let told = nodes.patch_status(&self.name, &params, &patch);
                in_time("write the status of the SandboxNode", told)
                    .await
                    .map(Some)
            }
        }
    }
}

fn version(object: Option<&DynamicObject>) -> Option<String> {
    object?.metadata.resource_version.clone()
}
