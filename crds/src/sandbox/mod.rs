//! `Sandbox`: one isolated machine for untrusted code.
//!
//! The types here are what stands in a manifest. Only [`rules`](crate::rules) read a raw [`SandboxSpec`]; all else works on
//! the [`Effective`] that they make of it.

mod effective;
mod security;
mod status;

pub use effective::{
    Effective, EffectiveResources, EnvReference, EnvValue, Idle, MainCommand, ReferenceKind,
};
pub use security::{Capability, Security, SecurityContext};
pub use status::{
    EffectiveStatus, ResourceAmounts, ResourcesStatus, RuntimeStatus, SandboxStatus, Termination,
};

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;

/// `apiVersion` of every object.
pub const API_VERSION: &str = "cloche.dev/v1alpha1";
/// `kind` of a [`Sandbox`].
pub const KIND: &str = "Sandbox";

/// What a sandbox is made from, what it may use, and how long it lives. A field that is not here is refused.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "cloche.dev",
    version = "v1alpha1",
    kind = "Sandbox",
    namespaced,
    shortname = "sbx",
    category = "cloche",
    status = "SandboxStatus",
    derive = "PartialEq",
    doc = "An isolated machine for untrusted code.",
    selectable = ".status.nodeName",
    selectable = ".status.phase",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.termination.reason"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.nodeName"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Exit","type":"integer","jsonPath":".status.termination.exitCode","priority":1}"#,
    printcolumn = r#"{"name":"Image digest","type":"string","jsonPath":".status.imageDigest","priority":1}"#,
    printcolumn = r#"{"name":"Expires","type":"date","jsonPath":".status.expiresAt","priority":1}"#
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SandboxSpec {
    /// The image: a registry reference as Kubernetes reads it (`python:3.11-slim` is
    /// `docker.io/library/python:3.11-slim`), or, where the node has a local image directory, `oci:PATH[:TAG]`,
    /// `oci-archive:PATH[:TAG]` or `rootfs:PATH`, with PATH relative to that directory.
    pub image: String,
    /// When the image is asked for at its registry; not for local images. Default: `Always` for the tag `latest`, else `IfNotPresent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,
    /// Secrets in the sandbox's namespace with users and passwords of registries, tried in this order where the image has to be asked for;
    /// not for local images. Only in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_secrets: Option<Vec<PullSecret>>,
    /// The main process in place of the image's entrypoint; when it exits the sandbox ends. Where command and args are both
    /// absent the sandbox idles and serves exec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Arguments of the command; without a command, of the image's entrypoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Environment of everything that runs in the sandbox, over the image's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<EnvVar>>,
    /// Absolute path in which commands start, made if missing (not in a read-only root). Default: the image's, else `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// Absolute path of the shell that runs string commands. Default: /bin/bash if the image has it, else /bin/sh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// Host name inside. Default: the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// What it may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// As whom its commands run, and with which rights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
    /// How long it may take to start, live and end. The only part of the spec that can be changed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// Labels that the node must have, as in a pod. Only in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Taints of nodes that do not keep it away, as in a pod. Only in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Toleration>>,
}

/// When the image is asked for at its registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// At each start; an image that is already on the node is not fetched again.
    Always,
    /// Only where the node has not got it.
    IfNotPresent,
    /// Never: an image that the node has not got ends the sandbox with `ImageNotFound`.
    Never,
}

/// A Secret of type `kubernetes.io/dockerconfigjson` or `kubernetes.io/dockercfg`.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PullSecret {
    /// Its name.
    pub name: String,
}

/// One environment variable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvVar {
    /// Its name: letters, digits, `.`, `_` and `-`, not beginning with a digit.
    pub name: String,
    /// Its value, taken as it is: nothing in it is expanded. Default: empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Where its value is taken from when the sandbox starts, in place of `value`. What changes there later does not count. Only in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<EnvVarSource>,
}

/// Where a value is taken from: one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvVarSource {
    /// A key of a Secret in the sandbox's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,
    /// A key of a `ConfigMap` in the sandbox's namespace, of its `data`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
}

/// A key of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyRef {
    /// The object's name.
    pub name: String,
    /// The key in it. Its value is text, without NUL.
    pub key: String,
    /// Whether the sandbox starts without the variable where there is no such object or key. Default: false, it waits for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// What a sandbox may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resources {
    /// What is set aside for it on its node. Default: the limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<ResourceList>,
    /// What it can never exceed. Default: cpu 1, memory 512Mi, ephemeral-storage 2Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceList>,
    /// The most processes and threads at one time. Default: 1024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<i64>,
}

/// An amount of each resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResourceList {
    /// Cores: `2`, `"0.5"` or `500m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Quantity>,
    /// Bytes: `512Mi`, `1G`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
    /// Bytes of all that it writes to files, whatever their place; past its limit the guest is told that the disk is full.
    #[serde(
        default,
        rename = "ephemeral-storage",
        skip_serializing_if = "Option::is_none"
    )]
    pub ephemeral_storage: Option<Quantity>,
}

/// How long a sandbox may take to start, live and end. 0 is refused everywhere: leave a field out for its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Lifecycle {
    /// Whether it runs, and what of it is kept while it does not. Default: `Running`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_state: Option<DesiredState>,
    /// Seconds after its first Running at which it ends with `DeadlineExceeded`; time in which the node sleeps counts. Default:
    /// never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<i64>,
    /// Seconds of idleness after which `idleAction` is taken. It is idle while no client is attached to it (a session, a followed log) and
    /// its commands use less than a hundredth of a core; paused time does not count, and it begins anew with the node's agent. Default:
    /// never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<i64>,
    /// What becomes of it once it is idle for `idleTimeoutSeconds`, without which it means nothing. Default: `Stop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_action: Option<IdleAction>,
    /// Seconds from its creation to its binding; then it ends with `Unschedulable`. Default: it waits. Only in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_timeout_seconds: Option<i64>,
    /// Seconds from its binding to Running, image pull included; then it ends with `StartTimeout`. Default: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_timeout_seconds: Option<i64>,
    /// Seconds between SIGTERM and SIGKILL of the main process at a deliberate end. Default: 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    /// Seconds after its end at which the object is deleted, by the clocks of node and cluster. Default: it is kept. Only in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i64>,
}

/// Whether a sandbox is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DesiredState {
    /// It runs.
    #[default]
    Running,
    /// None of its processes gets a processor; all else of it stays, memory too. It runs first, if it never did.
    Paused,
    /// Its files are kept; its commands end (the main process with SIGTERM and time, as at its end), and it holds no memory and no
    /// processor. Once it is to run again, its main process is started anew.
    /// One that never ran does not begin to.
    Stopped,
}

/// What becomes of an idle sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum IdleAction {
    /// It is stopped: its files are kept, its commands end. The next session or a change of its spec has it run again.
    #[default]
    Stop,
    /// It is paused. The next session, a change of its spec or a deletion has it run again.
    Pause,
    /// It ends with `IdleTimeout`.
    End,
}

/// A taint that does not keep the sandbox away. A taint that comes later ends nothing, so there is no time to tolerate one for.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Toleration {
    /// The taint's key. Absent: every taint; the operator is then `Exists`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How the taint's value is compared. Default: `Equal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<TolerationOperator>,
    /// The taint's value; nothing beside `Exists`. Default: empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The taint's effect. Absent: every effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
}

/// How a toleration compares a taint's value.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum TolerationOperator {
    /// Whatever it is.
    Exists,
    /// It is the toleration's.
    Equal,
}

/// What a taint does.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum TaintEffect {
    /// Nothing new is bound to the node.
    NoSchedule,
    /// Something new is bound to it only where nothing else is left.
    PreferNoSchedule,
    /// As `NoSchedule`; pods are also evicted, sandboxes are not.
    NoExecute,
}
