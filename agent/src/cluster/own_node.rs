//! Which Node this is: remembered on disk, and followed.
//!
//! A Node that was deleted and made anew under its old name is another one, of which no sandbox is left by the operator's word. So the
//! UID counts, and an agent that starts while the apiserver is away must know it nevertheless.

use std::path::Path;

use cloche_crds::Reason;
use cloche_crds::cluster::DRAIN_TAINT;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::judge::OurNode;
use super::patience::patient;
use crate::node::Outlook;
use crate::sandbox::Cause;
use crate::source::{Folder, FolderError};

const FILE: &str = "node.json";
/// Most bytes of that file.
const MAX: usize = 4096;

/// Why it cannot be remembered which Node this is.
#[derive(Debug, thiserror::Error)]
pub(super) enum OwnNodeError {
    /// The disk.
    #[error("remember which Node this is")]
    Folder(#[from] FolderError),
    /// The file holds something else.
    #[error("the file {FILE} in the state folder does not tell which Node this was: remove it")]
    Content(#[source] serde_json::Error),
    /// The state folder is another node's.
    #[error(
        "the state folder is of the Node {found:?}, and this agent is of {wanted:?}: give each its own"
    )]
    OfAnother {
        /// Whose it is.
        found: String,
        /// Whose it should be.
        wanted: String,
    },
}

/// What the Node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeFacts {
    /// Which it is.
    pub node: OurNode,
    /// Its `InternalIP`; absent until the apiserver has told it to this agent.
    pub address: Option<String>,
    /// Why its sandboxes are to end, if they are.
    pub leaving: Option<Leaving>,
}

/// Why the sandboxes of a node are to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// Somebody said so.
    Drained,
    /// Its kubelet says that the machine shuts down.
    ShutDown,
}

/// What a kubelet says in the condition Ready while the machine shuts down (`pkg/kubelet/nodeshutdown`).
const SHUTS_DOWN: &str = "node is shutting down";

impl Leaving {
    fn of(node: &Node) -> Option<Self> {
        let taints = node.spec.iter().flat_map(|spec| &spec.taints).flatten();
        if taints.into_iter().any(|taint| taint.key == DRAIN_TAINT) {
            return Some(Self::Drained);
        }
        let conditions = node.status.iter().flat_map(|status| &status.conditions);
        let shuts_down = conditions.flatten().any(|condition| {
            let message = condition.message.as_deref().unwrap_or_default();
            condition.type_ == "Ready" && condition.status != "True" && message.contains(SHUTS_DOWN)
        });
        shuts_down.then_some(Self::ShutDown)
    }

    /// Why a sandbox ends by it.
    pub(super) fn cause(self) -> Cause {
        let message = match self {
            Self::Drained => format!("its node is being drained (the taint {DRAIN_TAINT})"),
            Self::ShutDown => "its node is shutting down".to_owned(),
        };
        let reason = Reason::NodeShutdown;
        Cause::new(reason, reason.default_domain(), message)
    }
}

#[derive(Serialize, Deserialize)]
struct Remembered {
    name: String,
    uid: String,
}

/// Remembers and follows the Node.
#[derive(Debug)]
pub(super) struct OwnNode {
    folder: Folder,
    name: String,
    facts: watch::Sender<Option<NodeFacts>>,
    ours: watch::Sender<Option<OurNode>>,
}

impl OwnNode {
    /// What is remembered in the state folder of the Node `name`. Blocks on the disk.
    pub(super) fn open(state: &Path, name: &str) -> Result<Self, OwnNodeError> {
        let folder = Folder::open(state)?;
        let facts = match folder.read(FILE, MAX)? {
            None => None,
            Some(bytes) => {
                let Remembered { name: found, uid } =
                    serde_json::from_slice(&bytes).map_err(OwnNodeError::Content)?;
                if found != name {
                    return Err(OwnNodeError::OfAnother {
                        found,
                        wanted: name.to_owned(),
                    });
                }
                let node = OurNode { name: found, uid };
                Some(NodeFacts {
                    node,
                    address: None,
                    leaving: None,
                })
            }
        };
        let ours = facts.as_ref().map(|facts| facts.node.clone());
        Ok(Self {
            folder,
            name: name.to_owned(),
            facts: watch::Sender::new(facts),
            ours: watch::Sender::new(ours),
        })
    }

    /// Which Node this is, once that is known.
    pub(super) fn ours(&self) -> watch::Receiver<Option<OurNode>> {
        self.ours.subscribe()
    }

    /// What it says, once that is known.
    pub(super) fn facts(&self) -> watch::Receiver<Option<NodeFacts>> {
        self.facts.subscribe()
    }

    /// Follows it until `stop`.
    pub(super) async fn run(
        self,
        client: kube::Client,
        outlook: watch::Sender<Outlook>,
        stop: CancellationToken,
    ) {
        let nodes: Api<DeserializeGuard<Node>> = Api::all(client);
        let one = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let mut told = std::pin::pin!(patient(watcher(nodes, one), |event| !matches!(
            event,
            Event::Init
        )));
        loop {
            let next = tokio::select! {
                // Both are cancel safe: a stream keeps what is not taken.
                () = stop.cancelled() => return,
                next = told.next() => next,
            };
            match next {
                Some(Ok(Event::Apply(node) | Event::InitApply(node))) => {
                    self.see(node);
                    let facts = self.facts.borrow().clone();
                    let now = Outlook {
                        is_known: true,
                        leaving: facts.and_then(|facts| facts.leaving).map(Leaving::cause),
                    };
                    outlook.send_if_modified(|before| {
                        let differs = *before != now;
                        *before = now;
                        differs
                    });
                }
                Some(Ok(Event::Delete(_))) => {
                    tracing::error!(
                        node = self.name,
                        "this Node was deleted; its sandboxes go on until they are declared lost"
                    );
                }
                Some(Ok(Event::Init | Event::InitDone)) => {}
                Some(Err(error)) => tracing::warn!(
                    node = self.name,
                    error = &error as &dyn std::error::Error,
                    "the watch of this Node is broken"
                ),
                None => return,
            }
        }
    }

    fn see(&self, DeserializeGuard(node): DeserializeGuard<Node>) {
        let (metadata, address, leaving) = match node {
            Ok(node) => {
                let (address, leaving) = (address(&node), Leaving::of(&node));
                (node.metadata, address, leaving)
            }
            // What this build cannot read of it changes nothing of who it is.
            Err(invalid) => {
                let before = self.facts.borrow().clone();
                let leaving = before.and_then(|before| before.leaving);
                (invalid.metadata, None, leaving)
            }
        };
        let Some(uid) = metadata.uid else { return };
        let node = OurNode {
            name: self.name.clone(),
            uid,
        };
        let before = self.ours.borrow().clone();
        if before.as_ref() != Some(&node) {
            tracing::info!(node = node.name, uid = node.uid, "this is the Node");
            if let Err(error) = self.remember(&node) {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "a start without apiserver would not know which Node this is"
                );
            }
            self.ours.send_replace(Some(node.clone()));
        }
        let facts = Some(NodeFacts {
            node,
            address,
            leaving,
        });
        self.facts.send_if_modified(|before| {
            let differs = *before != facts;
            *before = facts;
            differs
        });
    }

    fn remember(&self, node: &OurNode) -> Result<(), OwnNodeError> {
        let remembered = Remembered {
            name: node.name.clone(),
            uid: node.uid.clone(),
        };
        let bytes = serde_json::to_vec(&remembered).map_err(OwnNodeError::Content)?;
        self.folder.replace(FILE, &bytes, true)?;
        Ok(())
    }
}

fn address(node: &Node) -> Option<String> {
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    let internal = addresses
        .iter()
        .find(|address| address.type_ == "InternalIP")?;
    Some(internal.address.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(uid: &str) -> DeserializeGuard<Node> {
        let node = json!({
            "metadata": {"name": "one", "uid": uid},
            "status": {"addresses": [
                {"type": "Hostname", "address": "one"}, {"type": "InternalIP", "address": "10.0.0.1"},
            ]},
        });
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn who_it_is_outlasts_the_agent() {
        let state = tempfile::tempdir().unwrap();
        let own = OwnNode::open(state.path(), "one").unwrap();
        assert_eq!(*own.ours().borrow(), None);
        own.see(node("uid-1"));
        let facts = own.facts().borrow().clone().unwrap();
        assert_eq!(facts.address.as_deref(), Some("10.0.0.1"));
        let next = OwnNode::open(state.path(), "one").unwrap();
        let remembered = next.facts().borrow().clone().unwrap();
        assert_eq!((remembered.node, remembered.address), (facts.node, None));
        next.see(node("uid-2"));
        assert_eq!(next.ours().borrow().as_ref().unwrap().uid, "uid-2");
        let again = OwnNode::open(state.path(), "one").unwrap();
        assert_eq!(again.ours().borrow().as_ref().unwrap().uid, "uid-2");
    }

    #[test]
    fn a_node_leaves_by_a_taint_or_by_its_kubelets_word() {
        let of = |spec: serde_json::Value, message: &str, ready: &str| {
            let conditions = json!([{"type": "Ready", "status": ready, "message": message}]);
            let node = json!({"spec": spec, "status": {"conditions": conditions}});
            Leaving::of(&serde_json::from_value(node).unwrap())
        };
        let taint = |key: &str| json!({"taints": [{"key": key, "effect": "NoSchedule"}]});
        let well = "kubelet is posting ready status";
        assert_eq!(of(json!({}), well, "True"), None);
        assert_eq!(of(taint("cloche.dev/other"), well, "True"), None);
        assert_eq!(
            of(taint("cloche.dev/drain"), well, "True"),
            Some(Leaving::Drained)
        );
        let shuts_down = "[container runtime network not ready, node is shutting down]";
        assert_eq!(of(json!({}), shuts_down, "False"), Some(Leaving::ShutDown));
        assert_eq!(of(json!({}), "kubelet stopped", "Unknown"), None);
    }

    #[test]
    fn another_nodes_state_is_refused() {
        let state = tempfile::tempdir().unwrap();
        OwnNode::open(state.path(), "one")
            .unwrap()
            .see(node("uid-1"));
        assert!(matches!(
            OwnNode::open(state.path(), "two"),
            Err(OwnNodeError::OfAnother { .. })
        ));
        std::fs::write(state.path().join(FILE), "{").unwrap();
        assert!(matches!(
            OwnNode::open(state.path(), "one"),
            Err(OwnNodeError::Content(_))
        ));
    }
}
