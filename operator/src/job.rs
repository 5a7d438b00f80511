//! What is decided to be done, and what came of it.

use std::sync::Arc;

use cloche_crds::SandboxNode;

use crate::failure::Class;
use crate::index::node::NodeName;
use crate::index::sandbox::Key;
use crate::lenient::Lenient;
use crate::loss::Loss;
use crate::patch::JsonPatch;

/// What a job is about. One at a time is done for each.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// A Sandbox.
    Sandbox(Key),
    /// A `SandboxNode`.
    Node(NodeName),
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// What it is about.
    pub subject: Subject,
    /// Of that, only the object with this UID.
    pub uid: Box<str>,
    /// What to do.
    pub task: Task,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// Both patches at once, of which there is at least one.
    Write {
        /// Of the object.
        finalizer: Option<JsonPatch>,
        /// Of its status.
        status: Option<JsonPatch>,
    },
    /// Take our finalizer off. Where `absent` is given, only after the apiserver says that this Node is not there, or is another one.
    Release {
        /// What to send.
        patch: JsonPatch,
        /// The Node's name and the UID that the sandbox is bound to.
        absent: Option<(NodeName, Option<Box<str>>)>,
    },
    /// Delete the object as it was in this version.
    Delete {
        /// Its `metadata.resourceVersion`.
        version: u64,
    },
    /// Read the sandbox and write that its agent is not heard, if it has not ended.
    Unreachable,
    /// Read the sandbox and write that its node is lost, if it has not ended. Of a Node that is said to be gone the apiserver is asked
    /// first.
    Lose(Loss),
    /// Read the `SandboxNode` and write that the agent is not heard.
    NodeUnreachable,
}

impl Task {
    /// The word for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Write { .. } => "write",
            Self::Release { .. } => "release the finalizer",
            Self::Delete { .. } => "delete what ended long ago",
            Self::Unreachable | Self::NodeUnreachable => "tell that the agent is not heard",
            Self::Lose(_) => "tell that the node is lost",
        }
    }
}

/// What came of a job.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The sandbox as it is now; whether or not anything had to be written.
    Sandbox(Arc<Lenient>),
    /// The node's object as it is now.
    Node(Arc<SandboxNode>),
    /// There is no object with this UID.
    Gone,
    /// It failed.
    Failed(Class),
}
