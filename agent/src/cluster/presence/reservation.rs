//! Whether the pod runs that holds what sandboxes of this node may request.
//!
//! Without it Kubernetes' scheduler gives the same processors and memory to others. Its eviction is how a node is drained.

use std::collections::BTreeSet;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cluster::patience::patient;

/// Follows the pod.
pub(in crate::cluster) struct Reservation {
    pods: Api<PartialObjectMeta<Pod>>,
    running: watcher::Config,
    holds: watch::Sender<bool>,
}

impl Reservation {
    /// A pod in `namespace` with these labels on the node `node`, told to `holds`.
    pub(in crate::cluster) fn new(
        client: kube::Client,
        namespace: &str,
        labels: &str,
        node: &str,
        holds: watch::Sender<bool>,
    ) -> Self {
        // What is not Running any more leaves the selection, which the watch tells as if it were deleted.
        let fields = format!("spec.nodeName={node},status.phase=Running");
        Self {
            pods: Api::namespaced(client, namespace),
            running: watcher::Config::default().labels(labels).fields(&fields),
            holds,
        }
    }

    /// Follows it until `stop`. What was last known holds while the watch is broken.
    pub(in crate::cluster) async fn run(self, stop: CancellationToken) {
        let told = patient(watcher(self.pods, self.running), |event| {
            !matches!(event, Event::Init)
        });
        let mut told = std::pin::pin!(told);
        let mut pods = Pods::default();
        loop {
            let next = tokio::select! {
                // Both are cancel safe: a stream keeps what is not taken.
                () = stop.cancelled() => return,
                next = told.next() => next,
            };
            match next {
                Some(Ok(event)) => {
                    let holds = pods.follow(event);
                    let changed = self
                        .holds
                        .send_if_modified(|held| std::mem::replace(held, holds) != holds);
                    if changed {
                        tracing::info!(holds, "a pod holds the budget of this node's sandboxes");
                    }
                }
                Some(Err(error)) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the watch of this node's reservation is broken"
                ),
                None => return,
            }
        }
    }
}

/// UIDs of the pods that hold it: more than one only while one takes the other's place.
#[derive(Debug, Default)]
struct Pods {
    known: BTreeSet<String>,
    listed: BTreeSet<String>,
}

impl Pods {
    /// Whether there is one after this.
    fn follow(&mut self, event: Event<PartialObjectMeta<Pod>>) -> bool {
        let uid = |pod: &PartialObjectMeta<Pod>| pod.metadata.uid.clone().unwrap_or_default();
        let stays = |pod: &PartialObjectMeta<Pod>| pod.metadata.deletion_timestamp.is_none();
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(pod) if stays(&pod) => {
                self.listed.insert(uid(&pod));
            }
            Event::InitDone => self.known = std::mem::take(&mut self.listed),
            Event::Apply(pod) if stays(&pod) => {
                self.known.insert(uid(&pod));
            }
            Event::InitApply(pod) | Event::Apply(pod) | Event::Delete(pod) => {
                self.known.remove(&uid(&pod));
            }
        }
        !self.known.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, going: bool) -> PartialObjectMeta<Pod> {
        let mut metadata = json!({"name": "reservation", "uid": uid});
        if going {
            metadata["deletionTimestamp"] = json!("2027-01-01T00:00:00Z");
        }
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn a_pod_that_runs_and_stays_holds_it() {
        let mut pods = Pods::default();
        for (event, holds) in [
            (Event::Init, false),
            (Event::InitApply(pod("old", false)), false),
            (Event::InitDone, true),
            (Event::Apply(pod("old", true)), false),
            (Event::Apply(pod("new", false)), true),
            (Event::Delete(pod("old", true)), true),
            // A listing that is not complete says nothing.
            (Event::Init, true),
            (Event::InitDone, false),
        ] {
            assert_eq!(pods.follow(event), holds, "{pods:?}");
        }
    }
}
