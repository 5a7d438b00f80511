//! Which Node this is: remembered on disk, and followed.
//!
//! A Node that was deleted and made anew under its old name is another one, of which no sandbox is left by the operator's word. So the
//! UID counts, and an agent that starts while the apiserver is away must know it nevertheless.

use std::path::Path;

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
    pub(super) async fn run(self, client: kube::Client, stop: CancellationToken) {
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
                Some(Ok(Event::Apply(node) | Event::InitApply(node))) => self.see(node),
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
        let (metadata, address) = match node {
            Ok(node) => {
                let address = address(&node);
                (node.metadata, address)
            }
            // What this build cannot read of it changes nothing of who it is.
            Err(invalid) => (invalid.metadata, None),
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
        let facts = Some(NodeFacts { node, address });
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
