//! The CRDs as the apiserver gets them: derived from the types, with the bounds and rules that the types do not tell.
//!
//! Each bound is the twin of a rule in [`rules`](crate::rules). Some of those rules are stricter, since the schema language cannot say
//! them at a cost that it allows: that command, args and env fit together (`process-size`), the exact grammar of registry hosts (`image`),
//! rounding of quantities, and lengths, which the schema counts in characters and the rules in bytes. An update that writes `cpu: "1"`
//! for `cpu: 1` changes nothing for the rules, and is refused here. The agent has the last word.
//!
//! Rules that look at what was before compare presence and value on the parent: a rule on an optional field alone is evaded by
//! removing the field and putting it back. Rules at the root only compare: one that a stored object could break would also refuse
//! its status and the removal of its finalizer.

mod environment;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::condition::MAX_MESSAGE;
use crate::limits::{
    ARGUMENT_CHARACTERS, ARGUMENTS, DEFAULT_CPU, DEFAULT_DISK, DEFAULT_MEMORY, LABEL, LABEL_PREFIX,
    LEAST_CPU_LIMIT, LEAST_DISK_LIMIT, LEAST_MEMORY_LIMIT, MOST_CPU, MOST_DISK, MOST_GRACE_SECONDS,
    MOST_ID, MOST_MEMORY, MOST_PIDS, MOST_START_TIMEOUT_SECONDS, MOST_TTL_SECONDS, NODE_SELECTOR,
    PATH, SUPPLEMENTAL_GROUPS, TOLERATIONS, WRITABLE_PATHS,
};
use crate::node::SandboxNode;
use crate::sandbox::{Capability, Sandbox};
use crate::{image, quantity};

/// A DNS label of RFC 1123, in lower case.
const LABEL_PATTERN: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// Longest of what the status tells in a word: versions, hashes, users, node names.
const WORD: usize = 256;
/// Most conditions.
const CONDITIONS: usize = 16;
/// Most capabilities that are told: all that a set of the kernel can hold.
const CAPABILITIES: usize = 64;
/// Most runtimes of a node.
const RUNTIMES: usize = 16;
/// The fields of a spec that cannot change.
const FIXED: [&str; 13] = [
    "image",
    "imagePullPolicy",
    "imagePullSecrets",
    "command",
    "args",
    "env",
    "workingDir",
    "shell",
    "hostname",
    "resources",
    "securityContext",
    "nodeSelector",
    "tolerations",
];

/// The CRD of [`Sandbox`].
pub fn sandbox() -> Result<CustomResourceDefinition, SchemaError> {
    // Not a field of the types: all of it but the name is the apiserver's.
    let metadata = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": LABEL, "pattern": LABEL_PATTERN}},
    });
    bounded(Sandbox::crd(), bounds(), Some(metadata))
}

/// The CRD of [`SandboxNode`](crate::SandboxNode).
pub fn sandbox_node() -> Result<CustomResourceDefinition, SchemaError> {
    bounded(SandboxNode::crd(), node(), None)
}

/// `crd` with bounds on its fields.
fn bounded(
    crd: CustomResourceDefinition,
    bounds: Vec<(&'static str, Value)>,
    metadata: Option<Value>,
) -> Result<CustomResourceDefinition, SchemaError> {
    let mut crd = serde_json::to_value(crd)?;
    let root = crd
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema")
        .ok_or(SchemaError::NoSuchField("openAPIV3Schema"))?;
    for (path, bounds) in bounds {
        add(root, path, bounds)?;
    }
    if let Some(metadata) = metadata {
        root["properties"]["metadata"] = metadata;
    }
    Ok(serde_json::from_value(crd)?)
}

/// A CRD that could not be made: the types and the bounds here do not fit.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// There is no such field in the schema of the types.
    #[error("the schema has no field {0}")]
    NoSuchField(&'static str),
    /// It is no CRD.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Lays `bounds` over the schema of the field at `path` (`spec.env[].name`; the root is empty).
fn add(root: &mut Value, path: &'static str, bounds: Value) -> Result<(), SchemaError> {
    let mut at = root;
    for name in path.split('.').filter(|name| !name.is_empty()) {
        let (name, is_item) = match name.strip_suffix("[]") {
            Some(list) => (list, true),
            None => (name, false),
        };
        at = at
            .get_mut("properties")
            .and_then(|properties| properties.get_mut(name))
            .ok_or(SchemaError::NoSuchField(path))?;
        if is_item {
            at = at.get_mut("items").ok_or(SchemaError::NoSuchField(path))?;
        }
    }
    let (Some(at), Value::Object(bounds)) = (at.as_object_mut(), bounds) else {
        return Err(SchemaError::NoSuchField(path));
    };
    at.extend(bounds);
    Ok(())
}

/// What every field is held to.
fn bounds() -> Vec<(&'static str, Value)> {
    let mut all = vec![("", json!({"x-kubernetes-validations": transitions()}))];
    all.extend(spec());
    all.extend(lifecycle());
    all.extend(environment::bounds());
    all.extend(security());
    all.extend(placement());
    all.extend(status());
    all
}

fn spec() -> Vec<(&'static str, Value)> {
    let path = json!({"maxLength": PATH, "pattern": r"^/[^\x00]*$"});
    let arguments = json!({"maxItems": ARGUMENTS, "x-kubernetes-list-type": "atomic"});
    let argument = json!({"maxLength": ARGUMENT_CHARACTERS, "pattern": r"^[^\x00]*$"});
    let mut command = arguments.clone();
    command["x-kubernetes-validations"] = json!([{
        "rule": "self.size() == 0 || self[0] != ''",
        "message": "the first entry is empty: name the program, or leave command out",
    }]);
    let mut shell = path.clone();
    shell["pattern"] = json!(r"^/([^\x00]*[^/\x00])$");
    vec![
        ("spec", json!({"x-kubernetes-validations": of_spec()})),
        (
            "spec.image",
            json!({"minLength": 1, "maxLength": image::MAX_LENGTH, "pattern": image_pattern()}),
        ),
        ("spec.command", command),
        ("spec.command[]", argument.clone()),
        ("spec.args", arguments),
        ("spec.args[]", argument),
        ("spec.workingDir", path),
        ("spec.shell", shell),
        (
            "spec.hostname",
            json!({"maxLength": LABEL, "pattern": LABEL_PATTERN}),
        ),
        (
            "spec.resources",
            json!({"x-kubernetes-validations": requests_within_limits()}),
        ),
        (
            "spec.resources.limits",
            json!({"x-kubernetes-validations": [
                within("cpu", &LEAST_CPU_LIMIT.to_string(), &MOST_CPU.to_string()),
                within("memory", &LEAST_MEMORY_LIMIT.to_string(), &MOST_MEMORY.to_string()),
                within("ephemeral-storage", &LEAST_DISK_LIMIT.to_string(), &MOST_DISK.to_string()),
            ]}),
        ),
        (
            "spec.resources.requests",
            json!({"x-kubernetes-validations": [
                within("cpu", "1m", &MOST_CPU.to_string()),
                within("memory", "1", &MOST_MEMORY.to_string()),
                within("ephemeral-storage", "1", &MOST_DISK.to_string()),
            ]}),
        ),
        (
            "spec.resources.pids",
            json!({"minimum": 1, "maximum": MOST_PIDS}),
        ),
    ]
}

fn lifecycle() -> Vec<(&'static str, Value)> {
    let seconds = |most: i64| json!({"minimum": 1, "maximum": most});
    vec![
        (
            "spec.lifecycle",
            json!({"x-kubernetes-validations": [
                {
                    "rule": "!has(self.idleAction) || has(self.idleTimeoutSeconds)",
                    "message": "is missing: say when the sandbox counts as idle, or leave idleAction out",
                    "fieldPath": ".idleTimeoutSeconds",
                },
            ]}),
        ),
        (
            "spec.lifecycle.idleTimeoutSeconds",
            seconds(MOST_TTL_SECONDS),
        ),
        ("spec.lifecycle.ttlSeconds", seconds(MOST_TTL_SECONDS)),
        (
            "spec.lifecycle.scheduleTimeoutSeconds",
            seconds(MOST_TTL_SECONDS),
        ),
        (
            "spec.lifecycle.ttlSecondsAfterFinished",
            seconds(MOST_TTL_SECONDS),
        ),
        (
            "spec.lifecycle.startTimeoutSeconds",
            seconds(MOST_START_TIMEOUT_SECONDS),
        ),
        (
            "spec.lifecycle.terminationGracePeriodSeconds",
            seconds(MOST_GRACE_SECONDS),
        ),
    ]
}

fn security() -> Vec<(&'static str, Value)> {
    let id = json!({"minimum": 0, "maximum": MOST_ID});
    vec![
        ("spec.securityContext.runAsUser", id.clone()),
        ("spec.securityContext.runAsGroup", id.clone()),
        (
            "spec.securityContext.supplementalGroups",
            json!({"maxItems": SUPPLEMENTAL_GROUPS, "x-kubernetes-list-type": "atomic"}),
        ),
        ("spec.securityContext.supplementalGroups[]", id),
        (
            "spec.securityContext",
            json!({"x-kubernetes-validations": [{
                "rule": "!has(self.writablePaths) || self.writablePaths.size() == 0 || (has(self.readOnlyRootFilesystem) && self.readOnlyRootFilesystem)",
                "message": "means nothing where the whole root can be written to: set readOnlyRootFilesystem, or leave it out",
                "fieldPath": ".writablePaths",
            }]}),
        ),
        (
            "spec.securityContext.writablePaths",
            json!({"maxItems": WRITABLE_PATHS, "x-kubernetes-list-type": "set"}),
        ),
        (
            "spec.securityContext.writablePaths[]",
            json!({
                "maxLength": PATH,
                "pattern": plain_path(),
                "x-kubernetes-validations": [{
                    "rule": "!self.matches('^/(proc|sys|dev|[.]cloche)(/|$)')",
                    "message": "is not part of the root file system: take it out",
                }],
            }),
        ),
        (
            "spec.securityContext.capabilities",
            json!({"maxItems": Capability::ALL.len(), "x-kubernetes-list-type": "set"}),
        ),
    ]
}

/// A label's name, which is also what a value looks like that is not empty.
const LABEL_NAME: &str = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?";

/// Labels and taints as Kubernetes has them.
fn placement() -> Vec<(&'static str, Value)> {
    let key = format!("^({}/)?{LABEL_NAME}$", environment::SUBDOMAIN);
    let value = json!({"maxLength": LABEL, "pattern": format!("^({LABEL_NAME})?$")});
    vec![
        (
            "spec.nodeSelector",
            json!({
                "maxProperties": NODE_SELECTOR,
                "additionalProperties": {"type": "string", "maxLength": LABEL, "pattern": value["pattern"]},
                // Keys of a map have no schema of their own.
                "x-kubernetes-validations": [{
                    "rule": format!(
                        "self.all(key, key.size() <= {} && key.matches(r'{key}'))",
                        LABEL_PREFIX + 1 + LABEL
                    ),
                    "message": "has a key that is no label's: write 1 to 63 letters, digits, -, _ and ., after a DNS name and / if need be",
                }],
            }),
        ),
        (
            "spec.tolerations",
            json!({"maxItems": TOLERATIONS, "x-kubernetes-list-type": "atomic"}),
        ),
        (
            "spec.tolerations[]",
            json!({"x-kubernetes-validations": [
                {
                    "rule": "has(self.key) || (has(self.operator) && self.operator == 'Exists')",
                    "message": "has no key: name one, or write operator Exists to tolerate every taint",
                },
                {
                    "rule": "!has(self.value) || !has(self.operator) || self.operator != 'Exists'",
                    "message": "means nothing beside operator Exists: leave it out, or write operator Equal",
                    "fieldPath": ".value",
                },
            ]}),
        ),
        (
            "spec.tolerations[].key",
            json!({"maxLength": LABEL_PREFIX + 1 + LABEL, "pattern": key}),
        ),
        ("spec.tolerations[].value", value),
    ]
}

/// What the node writes is bounded too, but not closed: an agent that is newer than the CRD must still be able to tell an end.
fn status() -> Vec<(&'static str, Value)> {
    let word = json!({"maxLength": WORD});
    let quantity = json!({"maxLength": quantity::MAX_LENGTH});
    let path = json!({"maxLength": PATH});
    let mut all = vec![
        // Read with a default, but not stored with one.
        ("status.phase", json!({"maxLength": WORD, "default": null})),
        ("status.conditions", conditions()),
        ("status.nodeName", word.clone()),
        ("status.nodeUID", word.clone()),
        ("status.imageDigest", word.clone()),
        ("status.effective.hostname", word.clone()),
        ("status.effective.workingDir", path.clone()),
        ("status.effective.shell", path.clone()),
        ("status.effective.user", word.clone()),
        (
            "status.effective.writablePaths",
            json!({"maxItems": WRITABLE_PATHS, "x-kubernetes-list-type": "atomic"}),
        ),
        ("status.effective.writablePaths[]", path.clone()),
        (
            "status.effective.capabilities",
            json!({"maxItems": CAPABILITIES, "x-kubernetes-list-type": "atomic"}),
        ),
        ("status.effective.capabilities[]", word.clone()),
        ("status.termination.reason", word.clone()),
        ("status.termination.failureDomain", word.clone()),
        (
            "status.termination.message",
            json!({"maxLength": MAX_MESSAGE}),
        ),
    ];
    for field in [
        "status.runtime.name",
        "status.runtime.version",
        "status.runtime.platform",
        "status.runtime.profile",
    ] {
        all.push((field, word.clone()));
    }
    for field in [
        "status.effective.resources.requests.cpu",
        "status.effective.resources.requests.memory",
        "status.effective.resources.requests.ephemeral-storage",
        "status.effective.resources.limits.cpu",
        "status.effective.resources.limits.memory",
        "status.effective.resources.limits.ephemeral-storage",
    ] {
        all.push((field, quantity.clone()));
    }
    all
}

/// What an agent tells of its node.
fn node() -> Vec<(&'static str, Value)> {
    let word = json!({"maxLength": WORD});
    let quantity = json!({"maxLength": quantity::MAX_LENGTH});
    let mut uid = word.clone();
    uid["minLength"] = json!(1);
    uid["x-kubernetes-validations"] = json!([{
        "rule": "self == oldSelf",
        "message": "cannot change: a node that was made anew has an object of its own",
    }]);
    let runtimes = json!({"maxItems": RUNTIMES, "x-kubernetes-list-type": "atomic"});
    let mut all = vec![
        ("spec.nodeUID", uid),
        ("status.conditions", conditions()),
        ("status.endpoint", word.clone()),
        ("status.architecture", word.clone()),
        ("status.runtimes", runtimes),
    ];
    for field in [
        "status.runtimes[].name",
        "status.runtimes[].version",
        "status.runtimes[].platform",
        "status.runtimes[].profile",
    ] {
        all.push((field, word.clone()));
    }
    for field in [
        "status.allocatable.cpu",
        "status.allocatable.memory",
        "status.allocatable.ephemeral-storage",
        "status.allocatable.sandboxOverhead",
    ] {
        all.push((field, quantity.clone()));
    }
    all
}

/// Conditions as Kubernetes has them; a list by type.
fn conditions() -> Value {
    json!({
        "maxItems": CONDITIONS,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {"type": "string", "maxLength": WORD},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                "lastTransitionTime": {"type": "string", "format": "date-time"},
                "reason": {"type": "string", "maxLength": WORD},
                "message": {"type": "string", "maxLength": MAX_MESSAGE},
            },
        },
    })
}

/// What was bound stays bound there, and an end stays as it was told.
fn transitions() -> Value {
    let kept = |field: &str, message: &str| {
        json!({
            "rule": format!(
                "!has(oldSelf.status) || !has(oldSelf.status.{field}) || (has(self.status) && has(self.status.{field}) && self.status.{field} == oldSelf.status.{field})"
            ),
            "message": message,
            "fieldPath": format!(".status.{field}"),
        })
    };
    // One by one: in a filtered list the order would count, and the list is one by type.
    let of = |object: &str, kind: &str| {
        format!(
            "(has({object}.status.conditions) ? {object}.status.conditions.filter(c, c.type == '{kind}') : [])"
        )
    };
    let frozen = ["Ready", "Finished"]
        .map(|kind| format!("{} == {}", of("self", kind), of("oldSelf", kind)))
        .join(" && ");
    json!([
        kept("nodeName", "cannot change or vanish: a sandbox stays on its node"),
        kept("nodeUID", "cannot change or vanish: a sandbox stays on its node"),
        kept("termination", "cannot change or vanish: an end is told once"),
        {
            "rule": format!(
                "!has(oldSelf.status) || !has(oldSelf.status.termination) || (has(self.status) && has(self.status.phase) == has(oldSelf.status.phase) && (!has(self.status.phase) || self.status.phase == oldSelf.status.phase) && {frozen})"
            ),
            "message": "phase, Ready and Finished cannot change after the end",
            "fieldPath": ".status",
        },
    ])
}

/// All of the spec but its lifecycle is decided when the sandbox is created.
fn immutable() -> impl Iterator<Item = Value> {
    FIXED.iter().map(|field| {
            json!({
                "rule": format!(
                    "has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
                ),
                "message": "cannot change while the sandbox exists: put it back, or delete the sandbox and create it anew",
                "fieldPath": format!(".{field}"),
            })
    })
}

/// What is said of the whole spec.
fn of_spec() -> Value {
    // Of fields that cannot change, so looked at when they come: at a later change of the lifecycle it would refuse an object that is
    // older than the rule.
    let mut rules = vec![json!({
        "optionalOldSelf": true,
        "rule": "oldSelf.hasValue() || !has(self.imagePullPolicy) || !self.image.matches('^(oci|oci-archive|rootfs):')",
        "message": "means nothing for a local image, which is looked at whenever a sandbox starts: leave it out",
        "fieldPath": ".imagePullPolicy",
    })];
    rules.push(json!({
        "optionalOldSelf": true,
        "rule": "oldSelf.hasValue() || !has(self.imagePullSecrets) || !self.image.matches('^(oci|oci-archive|rootfs):')",
        "message": "means nothing for a local image, which no registry is asked for: leave it out",
        "fieldPath": ".imagePullSecrets",
    }));
    rules.extend(immutable());
    rules.into()
}

/// Where a field is, as a rule's path.
fn at(field: &str) -> String {
    if field.contains('-') {
        format!("['{field}']")
    } else {
        format!(".{field}")
    }
}

/// How a field is called in a rule. Source: escaping of property names in the apiserver's CEL.
fn in_rule(field: &str) -> String {
    field.replace('-', "__dash__")
}

/// A quantity of a list lies between two.
fn within(field: &str, least: &str, most: &str) -> Value {
    let name = in_rule(field);
    json!({
        "rule": format!(
            "!has(self.{name}) || (isQuantity(string(self.{name})) && quantity(string(self.{name})).compareTo(quantity('{least}')) >= 0 && quantity(string(self.{name})).compareTo(quantity('{most}')) <= 0)"
        ),
        "message": format!("write {least} to {most}, or leave it out for the default"),
        "fieldPath": at(field),
    })
}

/// No request is above its limit, also where the limit is the default. What is no quantity is left to the other rules.
fn requests_within_limits() -> Value {
    [
        ("cpu", DEFAULT_CPU.to_string()),
        ("memory", DEFAULT_MEMORY.to_string()),
        ("ephemeral-storage", DEFAULT_DISK.to_string()),
    ]
    .iter()
    .map(|(field, default)| {
        let name = in_rule(field);
        let limit = format!(
            "(has(self.limits) && has(self.limits.{name}) ? string(self.limits.{name}) : '{default}')"
        );
        json!({
            "rule": format!(
                "!has(self.requests) || !has(self.requests.{name}) || !isQuantity(string(self.requests.{name})) || !isQuantity({limit}) || quantity(string(self.requests.{name})).compareTo(quantity({limit})) <= 0"
            ),
            "message": format!(
                "is more than the limit (default {default}): lower it, or raise the limit"
            ),
            "fieldPath": format!(".requests{}", at(field)),
        })
    })
    .collect()
}

/// Absolute paths without `.`, `..` and empty parts.
fn plain_path() -> String {
    let part = r"([^/.\x00][^/\x00]*|\.[^/.\x00][^/\x00]*|\.\.[^/\x00]+)";
    format!("^(/{part})+$")
}

/// References as [`ImageRef`](crate::ImageRef) reads them, except that an address in brackets is not looked into.
fn image_pattern() -> String {
    // Neither `.` nor `..`: expressions here cannot look ahead.
    let name = r"([A-Za-z0-9_-][A-Za-z0-9._-]*|\.[A-Za-z0-9_-][A-Za-z0-9._-]*|\.\.[A-Za-z0-9._-]+)";
    let local = format!("{name}(/{name})*");
    let tag = "[A-Za-z0-9_][A-Za-z0-9._-]{0,127}";
    let part = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*";
    let label = "[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?";
    let host = format!(r"({label}(\.{label})*|\[[0-9A-Fa-f:.]+\])(:[0-9]{{1,5}})?");
    let registry = format!("({host}/)?{part}(/{part})*(:{tag})?(@sha256:[0-9a-f]{{64}})?");
    format!("^((oci|oci-archive):{local}(:{tag})?|rootfs:{local}|{registry})$")
}

#[cfg(test)]
mod tests;
