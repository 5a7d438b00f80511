//! What the node writes back.
//!
//! Read leniently (unknown fields and words of a newer agent are met with a catch-all), written strictly.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Effective;
use crate::phase::Phase;
use crate::quantity::Quantity;
use crate::reason::{FailureDomain, Reason};

/// What became of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStatus {
    /// The `metadata.generation` that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where it is in its life.
    #[serde(default)]
    #[schemars(with = "String")]
    pub phase: Phase,
    /// `Accepted` (standalone), `Scheduled`, `ImageReady`, `Ready`, `Stalled`, `Finished`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The node that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// That node's UID: a node that was deleted and made anew under its old name is another one. Absent standalone.
    #[serde(default, rename = "nodeUID", skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<String>,
    /// What applies after the image and the defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective: Option<EffectiveStatus>,
    /// `sha256:` and 64 hex digits: the image's manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_digest: Option<String>,
    /// What runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeStatus>,
    /// When it first was Running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When `lifecycle.ttlSeconds` will be over, by the node's wall clock. The limit itself is kept in elapsed time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination: Option<Termination>,
}

/// What applies after the image and the defaults. A field that the image decides is absent until the image is there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveStatus {
    /// The host name inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Where commands start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// What runs string commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// As whom commands run: a number or a name of the image's /etc/passwd, and after a `:` perhaps a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whether only /tmp and `writablePaths` can be written to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only_root_filesystem: Option<bool>,
    /// What can be written to beside /tmp where the root is read-only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writable_paths: Vec<String>,
    /// Whether a program can get more rights than the command that starts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_privilege_escalation: Option<bool>,
    /// The capabilities that root has, and that other users can get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<String>>,
    /// What it may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourcesStatus>,
}

impl EffectiveStatus {
    /// What is known before the image is there.
    pub fn before_image(effective: &Effective) -> Self {
        let (resources, security) = (&effective.resources, &effective.security);
        Self {
            hostname: Some(effective.hostname.clone()),
            working_dir: effective.working_dir.clone(),
            shell: effective.shell.clone(),
            user: None,
            read_only_root_filesystem: Some(security.read_only_root),
            writable_paths: security.writable_paths.iter().cloned().collect(),
            allow_privilege_escalation: Some(security.allow_privilege_escalation),
            capabilities: Some(
                security
                    .capabilities
                    .iter()
                    .map(|capability| capability.as_str().to_owned())
                    .collect(),
            ),
            resources: Some(ResourcesStatus {
                requests: ResourceAmounts {
                    cpu: resources.cpu_request.into(),
                    memory: resources.memory_request.into(),
                    ephemeral_storage: Some(resources.disk_request.into()),
                },
                limits: ResourceAmounts {
                    cpu: resources.cpu_limit.into(),
                    memory: resources.memory_limit.into(),
                    ephemeral_storage: Some(resources.disk_limit.into()),
                },
                pids: i64::from(resources.pids),
            }),
        }
    }
}

/// What a sandbox may use, with nothing left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourcesStatus {
    /// What is set aside for it.
    pub requests: ResourceAmounts,
    /// What it can never exceed.
    pub limits: ResourceAmounts,
    /// The most processes and threads at one time.
    pub pids: i64,
}

/// An amount of every resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceAmounts {
    /// Cores.
    pub cpu: Quantity,
    /// Bytes.
    pub memory: Quantity,
    /// Bytes of what it writes to files. Not told by older agents.
    #[serde(
        default,
        rename = "ephemeral-storage",
        skip_serializing_if = "Option::is_none"
    )]
    pub ephemeral_storage: Option<Quantity>,
}

/// What runs the sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStatus {
    /// `runsc`.
    pub name: String,
    /// What it says of its own version.
    pub version: String,
    /// How it meets system calls: `systrap`.
    pub platform: String,
    /// The runtime profile: a hash over everything that a snapshot of it would depend on.
    pub profile: String,
}

/// How a sandbox ended. Written once, then frozen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Termination {
    /// Why.
    #[schemars(with = "String")]
    pub reason: Reason,
    /// Who is at fault.
    #[schemars(with = "String")]
    pub failure_domain: FailureDomain,
    /// One line for a person: what happened, to what, and what to do. At most 4096
    /// bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The main process's exit code, 0 to 255; 128 + signal where a signal ended it. Absent where it never ran to an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended the main process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// When it first was Running; absent where it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// The most memory that was seen in use by it, in bytes, as sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<i64>,
    /// Processor time that it used, in seconds, rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<i64>,
    /// The most that all it wrote to files was seen to hold at one time, in bytes, as sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_bytes: Option<i64>,
}
