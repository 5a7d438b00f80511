//! Abnormal ends, told as events beside the status. Nothing waits for them: one that cannot be told after a few tries is not.

use std::sync::Arc;

use cloche_crds::Reason;
use cloche_crds::cluster::AGENT_CONTROLLER;
use cloche_crds::event::{Subject, Teller, of_end};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use serde_json::{Map, Value};

use super::objects::{ObjectError, Objects};
use super::patience::pause;
use crate::source::SandboxKey;
use crate::told::chain;

/// How often one is tried.
const TRIES: u32 = 5;
/// Events on their way; more are not told.
const AT_ONCE: usize = 64;

/// The event of the end that `status` tells, where that is worth one.
pub(super) fn of(
    key: &SandboxKey,
    uid: &str,
    status: &Map<String, Value>,
    node: &str,
    now: Timestamp,
) -> Option<Event> {
    let end = status.get("termination")?;
    let reason: Reason = serde_json::from_value(end.get("reason")?.clone()).ok()?;
    let message = end.get("message").and_then(Value::as_str);
    let subject = Subject {
        namespace: &key.namespace,
        name: &key.name,
        uid,
    };
    let by = Teller {
        controller: AGENT_CONTROLLER,
        instance: node,
    };
    of_end(subject, (reason, message.unwrap_or_default()), by, now)
}

/// Events on their way.
#[derive(Default)]
pub(super) struct Telling(FuturesUnordered<BoxFuture<'static, ()>>);

impl Telling {
    /// Begins to tell one.
    pub(super) fn begin<O: Objects>(&self, objects: &Arc<O>, event: Event) {
        if self.0.len() < AT_ONCE {
            self.0.push(Box::pin(tell(Arc::clone(objects), event)));
        }
    }

    /// Goes on until one is told or given up; for ever where there is none. Cancel safe.
    pub(super) async fn next(&mut self) {
        if self.0.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

async fn tell<O: Objects>(objects: Arc<O>, event: Event) {
    for failures in 0..TRIES {
        match objects.tell(&event).await {
            Ok(()) => return,
            Err(error @ (ObjectError::Gone | ObjectError::Refused(_))) => {
                tracing::warn!(event = event.metadata.name, "{}", chain(&error));
                return;
            }
            Err(error @ (ObjectError::Unanswered(_) | ObjectError::Silent)) => {
                tracing::warn!(
                    event = event.metadata.name,
                    tries = failures + 1,
                    "{}",
                    chain(&error)
                );
            }
        }
        tokio::time::sleep(pause(failures)).await;
    }
}
