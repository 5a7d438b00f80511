//! `SandboxNode`: what the agent of one node offers.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;
use crate::sandbox::RuntimeStatus;

/// `kind` of a [`SandboxNode`].
pub const NODE_KIND: &str = "SandboxNode";

/// Which node it speaks of. The object has the node's name.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "cloche.dev",
    version = "v1alpha1",
    kind = "SandboxNode",
    shortname = "sbxnode",
    category = "cloche",
    status = "SandboxNodeStatus",
    derive = "PartialEq",
    doc = "What a node offers to sandboxes, as its agent tells it.",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name":"CPU","type":"string","jsonPath":".status.allocatable.cpu"}"#,
    printcolumn = r#"{"name":"Memory","type":"string","jsonPath":".status.allocatable.memory"}"#,
    printcolumn = r#"{"name":"Runtime","type":"string","jsonPath":".status.runtimes[0].version"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Endpoint","type":"string","jsonPath":".status.endpoint","priority":1}"#
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SandboxNodeSpec {
    /// UID of the Node. A node that was deleted and made anew under its old name is another one.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
}

/// What the agent offers. Whoever schedules takes from it only what the Node itself does not deny.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxNodeStatus {
    /// Where the agent's API is served over mTLS: `10.0.0.1:7443`, `[fd00::1]:7443`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// What all sandboxes of the node may request together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<NodeAllocatable>,
    /// The machine's architecture, as images name it: `amd64`, `arm64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// What can run a sandbox, the one for new sandboxes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runtimes: Vec<RuntimeStatus>,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// What all sandboxes of a node may request together, overheads included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeAllocatable {
    /// Cores.
    pub cpu: Quantity,
    /// Bytes.
    pub memory: Quantity,
    /// Bytes of what sandboxes write to files. Not told by older agents, and then not counted.
    #[serde(
        default,
        rename = "ephemeral-storage",
        skip_serializing_if = "Option::is_none"
    )]
    pub ephemeral_storage: Option<Quantity>,
    /// What each sandbox takes of the memory beside its own request, in bytes.
    pub sandbox_overhead: Quantity,
}
