//! The node's `SandboxNode`, kept as it should be.

use std::pin::pin;
use std::time::Duration;

use cloche_crds::SandboxNode;
use futures::StreamExt;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
};
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::offer::{Step, Terms, step};
use super::{PresenceError, in_time};
use crate::clock;
use crate::cluster::own_node::NodeFacts;
use crate::cluster::patience::{patient, pause};
use crate::unique;

/// Least time between two writes, on average: somebody who writes otherwise must not make it a race.
const SPACED: Duration = Duration::from_secs(10);

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

/// Keeps the object.
pub(in crate::cluster) struct Announcer {
    client: kube::Client,
    name: String,
    facts: watch::Receiver<Option<NodeFacts>>,
    terms: Terms,
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
    ) -> Self {
        Self {
            client,
            name: name.to_owned(),
            facts,
            terms,
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
            let at = self.advance().await;
            tokio::select! {
                // All are cancel safe: streams and channels keep what is not taken.
                changed = self.facts.changed() => if changed.is_err() { return },
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
    async fn advance(&mut self) -> Option<Duration> {
        let offer = self.terms.offer(self.facts.borrow_and_update().as_ref()?);
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
