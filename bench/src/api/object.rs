//! What is started, and what its object tells. Pure.

use cloche_crds::sandbox::{API_VERSION, KIND};
use kube::api::DynamicObject;
use serde_json::{Value, json};

/// What is measured, and what it stands beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A Sandbox.
    Sandbox,
    /// A pod with the cluster's own runtime.
    Runc,
    /// A pod with the `RuntimeClass` gvisor.
    Gvisor,
}

impl Kind {
    /// The pods.
    pub(super) const PODS: [Self; 2] = [Self::Runc, Self::Gvisor];
}

/// In the rig's registry, which stands for Docker Hub.
const IMAGE: &str = "busybox:latest";
/// Waits; ends at once when it is told to.
const COMMAND: [&str; 3] = [
    "/bin/sh",
    "-c",
    "trap 'exit 0' TERM; sleep 1000000 & wait $!",
];
/// Memory of the default pool's shape, in mebibytes.
pub(super) const MEBIBYTES: u64 = 512;

/// An object of a kind. Requests are so small that the 50 fit into the budget of the rig, with what is added for each sentry; nothing is in a
/// pod that could be left out.
pub(super) fn manifest(kind: Kind, name: &str) -> Value {
    let resources = json!({
        "requests": {"cpu": "20m", "memory": "32Mi"},
        "limits": {"cpu": "1", "memory": format!("{MEBIBYTES}Mi")},
    });
    let (image, command) = (IMAGE, COMMAND);
    match kind {
        Kind::Sandbox => {
            // Of a sandbox what it writes is limited, and by default set aside; of a pod it is not.
            let mut resources = resources;
            resources["requests"]["ephemeral-storage"] = json!("16Mi");
            json!({
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": {"name": name},
                "spec": {"image": image, "imagePullPolicy": "IfNotPresent", "command": command, "resources": resources},
            })
        }
        Kind::Runc | Kind::Gvisor => json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "runtimeClassName": (kind == Kind::Gvisor).then_some("gvisor"),
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 5,
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "containers": [{
                    "name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": command, "resources": resources,
                }],
            },
        }),
    }
}

/// A Sandbox that no node can take.
pub(super) fn nowhere(name: &str) -> Value {
    let mut object = manifest(Kind::Sandbox, name);
    object["spec"]["nodeSelector"] = json!({"cloche.dev/bench": "nowhere"});
    object
}

/// The status of a condition of a Sandbox or a pod.
fn condition<'a>(object: &'a DynamicObject, kind: &str) -> Option<&'a str> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    let found = conditions
        .iter()
        .find(|condition| condition["type"] == kind)?;
    found["status"].as_str()
}

pub(super) fn is_ready(object: &DynamicObject) -> bool {
    condition(object, "Ready") == Some("True")
}

/// Whether it is told that no node can take it.
pub(super) fn is_unschedulable(object: &DynamicObject) -> bool {
    condition(object, "Scheduled") == Some("False")
}

/// Whether a Sandbox is bound to a node.
pub(super) fn is_bound(object: &DynamicObject) -> bool {
    object.data["status"]["nodeName"].is_string()
}

/// What it ended by, where it has ended.
pub(super) fn end(object: &DynamicObject) -> Option<String> {
    let status = &object.data["status"];
    let phase = status["phase"].as_str()?;
    matches!(phase, "Succeeded" | "Failed" | "Ended").then(|| {
        format!(
            "{phase}: {}",
            status
                .get("termination")
                .or_else(|| status.get("containerStatuses"))
                .unwrap_or(status)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(status: &Value) -> DynamicObject {
        serde_json::from_value(json!({"metadata": {"name": "a"}, "status": status})).unwrap()
    }

    #[test]
    fn sandboxes_and_pods_tell_alike() {
        let fresh: DynamicObject = serde_json::from_value(json!({"metadata": {}})).unwrap();
        assert!(!is_ready(&fresh) && !is_bound(&fresh) && !is_unschedulable(&fresh));
        assert_eq!(end(&fresh), None);
        let bound = object(&json!({"nodeName": "node1", "conditions": [
            {"type": "Scheduled", "status": "True"}, {"type": "Ready", "status": "False"}]}));
        assert!(is_bound(&bound) && !is_ready(&bound) && !is_unschedulable(&bound));
        let pod = object(
            &json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
        );
        assert!(is_ready(&pod) && !is_bound(&pod));
        assert_eq!(end(&pod), None);
        let waits = object(&json!({"conditions": [{"type": "Scheduled", "status": "False"}]}));
        assert!(is_unschedulable(&waits));
        let ended = object(&json!({"phase": "Failed", "termination": {"reason": "OOMKilled"}}));
        assert_eq!(end(&ended).unwrap(), r#"Failed: {"reason":"OOMKilled"}"#);
    }

    #[test]
    fn what_is_measured_keeps_the_rules_and_has_the_pools_shape() {
        for object in [manifest(Kind::Sandbox, "a"), nowhere("a")] {
            let sandbox = cloche_crds::decode::sandbox(&object).unwrap();
            let effective = cloche_crds::rules::validate(&sandbox).unwrap();
            assert_eq!(effective.resources.memory_limit.0, MEBIBYTES << 20);
            assert_eq!(effective.resources.cpu_limit.0, 1000);
        }
    }

    #[test]
    fn pods_differ_in_their_runtime_alone() {
        let [mut one, mut other] = Kind::PODS.map(|kind| manifest(kind, "a"));
        assert_ne!(one, other);
        one["spec"]["runtimeClassName"].take();
        other["spec"]["runtimeClassName"].take();
        assert_eq!(one, other);
    }
}
