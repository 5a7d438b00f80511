//! Bounds on what is taken from objects beside the sandbox: the environment, and users of registries.

use serde_json::{Value, json};

use crate::limits::{ENV, ENV_NAME, ENV_VALUE, OBJECT_NAME, PULL_SECRETS};

/// A DNS subdomain of RFC 1123, in lower case.
pub(super) const SUBDOMAIN: &str =
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";

pub(super) fn bounds() -> Vec<(&'static str, Value)> {
    let name = json!({"maxLength": OBJECT_NAME, "pattern": format!("^{SUBDOMAIN}$")});
    // Neither `.` nor what begins with `..`.
    let key = json!({
        "maxLength": OBJECT_NAME,
        "pattern": r"^([-_a-zA-Z0-9][-._a-zA-Z0-9]*|\.[-_a-zA-Z0-9][-._a-zA-Z0-9]*)$",
    });
    vec![
        (
            "spec.imagePullSecrets",
            json!({
                "maxItems": PULL_SECRETS,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            }),
        ),
        ("spec.imagePullSecrets[].name", name.clone()),
        (
            "spec.env",
            json!({
                "maxItems": ENV,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            }),
        ),
        (
            "spec.env[]",
            json!({"x-kubernetes-validations": [{
                "rule": "!has(self.value) || !has(self.valueFrom)",
                "message": "has both value and valueFrom: keep one",
            }]}),
        ),
        (
            "spec.env[].name",
            json!({"maxLength": ENV_NAME, "pattern": "^[-._a-zA-Z][-._a-zA-Z0-9]*$"}),
        ),
        (
            "spec.env[].value",
            json!({"maxLength": ENV_VALUE, "pattern": r"^[^\x00]*$"}),
        ),
        (
            "spec.env[].valueFrom",
            json!({"x-kubernetes-validations": [{
                "rule": "has(self.secretKeyRef) != has(self.configMapKeyRef)",
                "message": "names not exactly one of secretKeyRef and configMapKeyRef: write one",
            }]}),
        ),
        ("spec.env[].valueFrom.secretKeyRef.name", name.clone()),
        ("spec.env[].valueFrom.secretKeyRef.key", key.clone()),
        ("spec.env[].valueFrom.configMapKeyRef.name", name),
        ("spec.env[].valueFrom.configMapKeyRef.key", key),
    ]
}
