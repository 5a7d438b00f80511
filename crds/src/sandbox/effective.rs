//! What a spec means after validation and defaults: plain values, nothing left to parse.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    DesiredState, EnvVar, IdleAction, PullPolicy, ResourceList, Sandbox, Security, SecurityContext,
};
use crate::image::ImageRef;
use crate::limits::{
    DEFAULT_CPU, DEFAULT_DISK, DEFAULT_GRACE_SECONDS, DEFAULT_MEMORY, DEFAULT_PIDS,
    DEFAULT_START_TIMEOUT_SECONDS,
};
use crate::quantity::{Bytes, Millicores, Quantity, QuantityError};
use crate::rules::Violation;

/// A spec that kept every rule, with its defaults filled in. What the image decides (entrypoint, shell, working directory,
/// user) is still open. Kept in the agent's records: the names of its fields never change their meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Effective {
    /// Where the image comes from.
    pub image: ImageRef,
    /// When its registry is asked.
    pub pull_policy: PullPolicy,
    /// Names of Secrets with users of registries, in the order in which they are tried. Not in records of agents that are older than the
    /// field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull_secrets: Vec<String>,
    /// What runs as the sandbox's own command.
    pub main: MainCommand,
    /// What the spec itself gives a value, in its order; names are unique, also with those of `env_from`.
    pub env: Vec<EnvValue>,
    /// What has its value elsewhere, in the order of the spec. Not in records of agents that are older than the field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_from: Vec<EnvReference>,
    /// Absolute; `None`: the image's, else `/`.
    pub working_dir: Option<String>,
    /// Absolute; `None`: /bin/bash if the image has it, else /bin/sh.
    pub shell: Option<String>,
    /// A DNS label.
    pub hostname: String,
    /// What it may use.
    pub resources: EffectiveResources,
    /// As whom its commands run. Not in records of agents that are older than the field.
    #[serde(default)]
    pub security: Security,
    /// How long it may live; `None`: for ever.
    #[serde(rename = "ttlSeconds", with = "optional_seconds")]
    pub ttl: Option<Duration>,
    /// Whether it is to run. Not in records of agents that are older than the field, nor is what becomes of an idle one.
    #[serde(rename = "desiredState", default)]
    pub desired: DesiredState,
    /// What becomes of it when it is idle; `None`: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
    /// How long it may take to start.
    #[serde(rename = "startTimeoutSeconds", with = "seconds")]
    pub start_timeout: Duration,
    /// Between SIGTERM and SIGKILL.
    #[serde(rename = "terminationGracePeriodSeconds", with = "seconds")]
    pub grace: Duration,
}

impl Effective {
    /// What a sandbox means that has kept every rule. It fails, with what could not be read, only for one that has not.
    pub(crate) fn of(sandbox: &Sandbox) -> Result<Self, Violation> {
        let spec = &sandbox.spec;
        let image: ImageRef =
            spec.image
                .parse()
                .map_err(|error: crate::image::ImageRefError| {
                    Violation::new("spec.image", error.to_string())
                })?;
        // As in a pod: a tag that moves is asked for each time.
        let default_policy = if image.is_latest() {
            PullPolicy::Always
        } else {
            PullPolicy::IfNotPresent
        };
        let command = spec.command.clone().unwrap_or_default();
        let args = spec.args.clone().unwrap_or_default();
        let main = match (command.is_empty(), args.is_empty()) {
            (true, true) => MainCommand::Idle,
            (true, false) => MainCommand::Entrypoint(args),
            (false, _) => MainCommand::Command(command.into_iter().chain(args).collect()),
        };
        let name = sandbox.metadata.name.clone().unwrap_or_default();
        let (from, env): (Vec<_>, Vec<_>) = spec
            .env
            .iter()
            .flatten()
            .partition(|variable| variable.value_from.is_some());
        let env = env.into_iter().map(|variable| EnvValue {
            name: variable.name.clone(),
            value: variable.value.clone().unwrap_or_default(),
        });
        let env_from = from.into_iter().filter_map(EnvReference::of);
        let lifecycle = spec.lifecycle.clone().unwrap_or_default();
        Ok(Self {
            pull_policy: spec.image_pull_policy.unwrap_or(default_policy),
            image,
            pull_secrets: spec
                .image_pull_secrets
                .iter()
                .flatten()
                .map(|secret| secret.name.clone())
                .collect(),
            main,
            env: env.collect(),
            env_from: env_from.collect(),
            working_dir: spec.working_dir.clone(),
            shell: spec.shell.clone(),
            hostname: spec.hostname.clone().unwrap_or(name),
            resources: EffectiveResources::of(sandbox)?,
            security: security(spec.security_context.as_ref())?,
            ttl: lifecycle
                .ttl_seconds
                .map(|seconds| duration("ttlSeconds", seconds))
                .transpose()?,
            desired: lifecycle.desired_state.unwrap_or_default(),
            idle: lifecycle
                .idle_timeout_seconds
                .map(|seconds| {
                    let timeout = duration("idleTimeoutSeconds", seconds)?;
                    let action = lifecycle.idle_action.unwrap_or_default();
                    Ok(Idle { timeout, action })
                })
                .transpose()?,
            start_timeout: duration(
                "startTimeoutSeconds",
                lifecycle
                    .start_timeout_seconds
                    .unwrap_or(DEFAULT_START_TIMEOUT_SECONDS),
            )?,
            grace: duration(
                "terminationGracePeriodSeconds",
                lifecycle
                    .termination_grace_period_seconds
                    .unwrap_or(DEFAULT_GRACE_SECONDS),
            )?,
        })
    }

    /// Whether `other` is the same but for what may change while a sandbox exists (`spec.lifecycle`).
    pub fn same_but_lifecycle(&self, other: &Self) -> bool {
        let Self {
            image,
            pull_policy,
            pull_secrets,
            main,
            env,
            env_from,
            working_dir,
            shell,
            hostname,
            resources,
            security,
            ttl: _,
            desired: _,
            idle: _,
            start_timeout: _,
            grace: _,
        } = self;
        *image == other.image
            && *pull_policy == other.pull_policy
            && pull_secrets.iter().collect::<BTreeSet<_>>() == other.pull_secrets.iter().collect()
            && *main == other.main
            && by_name(env) == by_name(&other.env)
            && references_by_name(env_from) == references_by_name(&other.env_from)
            && *working_dir == other.working_dir
            && *shell == other.shell
            && *hostname == other.hostname
            && *resources == other.resources
            && *security == other.security
    }
}

/// Variables whatever their order, which means nothing: no two have one name.
fn by_name(env: &[EnvValue]) -> BTreeMap<&str, &str> {
    env.iter()
        .map(|variable| (variable.name.as_str(), variable.value.as_str()))
        .collect()
}

/// And those that have their values elsewhere.
fn references_by_name(env: &[EnvReference]) -> BTreeMap<&str, &EnvReference> {
    env.iter()
        .map(|variable| (variable.name.as_str(), variable))
        .collect()
}

/// What becomes of an idle sandbox, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Idle {
    /// How long it is idle before.
    #[serde(rename = "timeoutSeconds", with = "seconds")]
    pub timeout: Duration,
    /// What is done then.
    pub action: IdleAction,
}

/// What runs as the sandbox's own command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MainCommand {
    /// Nothing: it idles and serves exec.
    Idle,
    /// The image's entrypoint with these arguments, of which there is at least one.
    Entrypoint(Vec<String>),
    /// Program and arguments, of which there is at least the program; the image's entrypoint and arguments do not count.
    Command(Vec<String>),
}

/// One environment variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvValue {
    /// Its name; no `=`, no NUL.
    pub name: String,
    /// Its value; no NUL.
    pub value: String,
}

/// One environment variable whose value is a key of an object in the sandbox's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvReference {
    /// The variable's name; no `=`, no NUL.
    pub name: String,
    /// The object's kind.
    pub kind: ReferenceKind,
    /// The object's name.
    pub object: String,
    /// The key in it.
    pub key: String,
    /// Whether the variable is left out where there is no such object or key.
    #[serde(default)]
    pub optional: bool,
}

impl EnvReference {
    /// That of a variable; `None` where it names no key.
    fn of(variable: &EnvVar) -> Option<Self> {
        let source = variable.value_from.as_ref()?;
        let (kind, key) = match (&source.secret_key_ref, &source.config_map_key_ref) {
            (Some(key), _) => (ReferenceKind::Secret, key),
            (None, Some(key)) => (ReferenceKind::ConfigMap, key),
            (None, None) => return None,
        };
        Some(Self {
            name: variable.name.clone(),
            kind,
            object: key.name.clone(),
            key: key.key.clone(),
            optional: key.optional.unwrap_or(false),
        })
    }
}

/// Kind of an object that a value can be taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ReferenceKind {
    /// A Secret.
    Secret,
    /// A `ConfigMap`.
    ConfigMap,
}

impl std::fmt::Display for ReferenceKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        })
    }
}

/// What a sandbox may use. Requests are never above limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EffectiveResources {
    /// Processor time set aside.
    pub cpu_request: Millicores,
    /// Processor time never exceeded.
    pub cpu_limit: Millicores,
    /// Memory set aside, in bytes.
    pub memory_request: Bytes,
    /// Memory never exceeded, in bytes: what the guest sees as its memory. The sentry's own comes on top.
    pub memory_limit: Bytes,
    /// Disk set aside, in bytes. Not in records of agents that are older than the field, nor is the limit.
    #[serde(default = "default_disk")]
    pub disk_request: Bytes,
    /// What it can write to files, in bytes: past it the guest sees ENOSPC.
    #[serde(default = "default_disk")]
    pub disk_limit: Bytes,
    /// Processes and threads inside.
    pub pids: u32,
}

const fn default_disk() -> Bytes {
    DEFAULT_DISK
}

impl EffectiveResources {
    fn of(sandbox: &Sandbox) -> Result<Self, Violation> {
        let resources = sandbox.spec.resources.clone().unwrap_or_default();
        let limits = resources.limits.unwrap_or_default();
        let requests = resources.requests.unwrap_or_default();
        let read_cpu = |list: &ResourceList, default| {
            read(list.cpu.as_ref(), Quantity::millicores, default, "cpu")
        };
        let read_memory = |list: &ResourceList, default| {
            read(list.memory.as_ref(), Quantity::bytes, default, "memory")
        };
        let read_disk = |list: &ResourceList, default| {
            let quantity = list.ephemeral_storage.as_ref();
            read(quantity, Quantity::bytes, default, "ephemeral-storage")
        };
        let cpu_limit = read_cpu(&limits, DEFAULT_CPU)?;
        let disk_limit = read_disk(&limits, DEFAULT_DISK)?;
        let memory_limit = read_memory(&limits, DEFAULT_MEMORY)?;
        Ok(Self {
            cpu_request: read_cpu(&requests, cpu_limit)?,
            cpu_limit,
            memory_request: read_memory(&requests, memory_limit)?,
            memory_limit,
            disk_request: read_disk(&requests, disk_limit)?,
            disk_limit,
            pids: resources
                .pids
                .unwrap_or(DEFAULT_PIDS)
                .try_into()
                .map_err(|_| {
                    Violation::new("spec.resources.pids", "is not a number of processes")
                })?,
        })
    }
}

fn security(context: Option<&SecurityContext>) -> Result<Security, Violation> {
    let Some(context) = context else {
        return Ok(Security::default());
    };
    let id = |id: i64| {
        u32::try_from(id)
            .map_err(|_| Violation::new("spec.securityContext", format!("{id} is no id")))
    };
    let default = Security::default();
    let capabilities = context.capabilities.as_ref();
    Ok(Security {
        user: context.run_as_user.map(id).transpose()?,
        group: context.run_as_group.map(id).transpose()?,
        groups: context
            .supplemental_groups
            .iter()
            .flatten()
            .copied()
            .map(id)
            .collect::<Result<_, _>>()?,
        read_only_root: context
            .read_only_root_filesystem
            .unwrap_or(default.read_only_root),
        writable_paths: context.writable_paths.iter().flatten().cloned().collect(),
        allow_privilege_escalation: context
            .allow_privilege_escalation
            .unwrap_or(default.allow_privilege_escalation),
        capabilities: capabilities
            .map_or(default.capabilities, |list| list.iter().copied().collect()),
    })
}

fn read<T>(
    quantity: Option<&Quantity>,
    read: fn(&Quantity) -> Result<T, QuantityError>,
    default: T,
    name: &str,
) -> Result<T, Violation> {
    quantity.map_or(Ok(default), |quantity| {
        read(quantity)
            .map_err(|error| Violation::new(format!("spec.resources: {name}"), error.to_string()))
    })
}

fn duration(field: &str, seconds: i64) -> Result<Duration, Violation> {
    u64::try_from(seconds)
        .map(Duration::from_secs)
        .map_err(|_| {
            Violation::new(
                format!("spec.lifecycle.{field}"),
                format!("is {seconds}, not a time"),
            )
        })
}

/// Durations as whole seconds.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(value.as_secs())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_secs)
    }
}

/// The same where there may be none.
mod optional_seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[allow(clippy::ref_option)] // serde's `with` passes a reference to the field
    pub(super) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(|value| value.as_secs()).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_secs))
    }
}
