//! What a sandbox takes from Secrets and `ConfigMap`s before it starts: asked for until it can be had. The start timeout bounds that.

use cloche_proto::operator::v1alpha1::SandboxReference;
use tokio::sync::mpsc;

use super::holding::Shared;
use super::record::{Lack, Lacking, SandboxRecord};
use super::step::Event;
use crate::cluster::{References, pause};
use crate::image::Access;

/// Failures in a row after which pauses do not grow any more, at some 8 s: what is missing is mostly on its way.
const GROWTH: u32 = 4;

impl Shared {
    /// Has the environment's values, and tells the driver; at once where there are none to be had, or they were had before: the command is
    /// never started with others than were taken first.
    pub(super) async fn take_values(&self, record: &SandboxRecord, events: &mpsc::Sender<Event>) {
        if record.spec.env_from.is_empty() || record.values.is_some() {
            return;
        }
        let ask = References::environment;
        let values = self
            .until_had(Lacking::Environment, record, events, ask)
            .await;
        drop(events.send(Event::Valued(values)).await);
    }

    /// By whom the image is to be asked for, where it has to be.
    pub(super) async fn access(
        &self,
        record: &SandboxRecord,
        events: &mpsc::Sender<Event>,
    ) -> Access {
        let secrets = record.spec.pull_secrets.clone();
        if secrets.is_empty() {
            return Access::default();
        }
        let ask = References::logins;
        let logins = self.until_had(Lacking::Logins, record, events, ask).await;
        drop(events.send(Event::Lacks(None)).await);
        Access { secrets, logins }
    }

    /// Asks again and again; tells the driver what is lacking meanwhile, whenever that is something else.
    async fn until_had<T, F>(
        &self,
        what: Lacking,
        record: &SandboxRecord,
        events: &mpsc::Sender<Event>,
        ask: impl Fn(References, SandboxReference) -> F,
    ) -> T
    where
        F: Future<Output = Result<T, String>>,
    {
        let of = SandboxReference {
            namespace: record.namespace.clone(),
            name: record.name.clone(),
            uid: record.uid.clone(),
        };
        let mut told = record.lacks.clone();
        let mut failures = 0;
        loop {
            let answer = match self.node.references.clone() {
                Some(references) => ask(references, of.clone()).await,
                // Of manifests such are refused.
                None => Err("this agent has no cluster to ask".to_owned()),
            };
            let why = match answer {
                Ok(had) => return had,
                Err(why) => why,
            };
            let lack = Some(Lack { what, why });
            if told != lack {
                tracing::info!(sandbox = record.name, ?lack, "waits");
                told.clone_from(&lack);
                drop(events.send(Event::Lacks(lack)).await);
            }
            tokio::time::sleep(pause(failures)).await;
            failures = GROWTH.min(failures + 1);
        }
    }
}
