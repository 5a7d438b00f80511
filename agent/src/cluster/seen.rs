//! A Sandbox as the apiserver showed it: read once, leniently where others write, strictly where a user does. Pure.

use cloche_crds::rules::validate;
use cloche_crds::sandbox::{API_VERSION, KIND};
use cloche_crds::{Effective, Sandbox, decode};
use kube::api::DynamicObject;
use serde_json::{Map, Value, json};

use crate::source::SandboxKey;

/// What a person wrote, understood.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Understood {
    /// The object, without status.
    pub object: Sandbox,
    /// What it means.
    pub effective: Effective,
}

/// An object as it was seen once.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    /// Its name.
    pub key: SandboxKey,
    /// Which of all that ever had this name.
    pub uid: String,
    /// `metadata.resourceVersion`, where that is a number: the greater of two of one object is the newer.
    pub version: Option<u64>,
    /// Of its spec.
    pub generation: i64,
    /// It has a deletion timestamp, which never goes away again.
    pub deleting: bool,
    /// Who has to agree before it goes, in order.
    pub finalizers: Vec<String>,
    /// Its spec, or what is wrong with it.
    pub spec: Result<Box<Understood>, String>,
    /// `status`, with whatever others put there.
    pub status: Map<String, Value>,
}

impl Seen {
    /// Reads an object; `None` where it has no name or UID, which an apiserver never sends.
    pub(super) fn of(object: DynamicObject) -> Option<Self> {
        let DynamicObject { metadata, data, .. } = object;
        let key = SandboxKey {
            namespace: metadata.namespace.clone()?,
            name: metadata.name.clone()?,
        };
        let status = match data.get("status") {
            Some(Value::Object(status)) => status.clone(),
            _ => Map::new(),
        };
        let mut written = Map::new();
        written.insert("name".to_owned(), json!(key.name));
        written.insert("namespace".to_owned(), json!(key.namespace));
        if let Some(labels) = &metadata.labels {
            written.insert("labels".to_owned(), json!(labels));
        }
        if let Some(annotations) = &metadata.annotations {
            written.insert("annotations".to_owned(), json!(annotations));
        }
        let mut value = json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": written});
        if let (Some(spec), Some(value)) = (data.get("spec"), value.as_object_mut()) {
            value.insert("spec".to_owned(), spec.clone());
        }
        let uid = metadata.uid.clone()?;
        let spec = decode::sandbox(&value)
            .and_then(|object| {
                let effective = validate(&object)?;
                Ok((object, effective))
            })
            .map(|(mut object, effective)| {
                object.metadata.uid = Some(uid.clone());
                object.metadata.creation_timestamp = metadata.creation_timestamp;
                Box::new(Understood { object, effective })
            })
            .map_err(|violations| violations.to_string());
        Some(Self {
            key,
            uid,
            version: metadata
                .resource_version
                .and_then(|version| version.parse().ok()),
            generation: metadata.generation.unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
            finalizers: metadata.finalizers.unwrap_or_default(),
            spec,
            status,
        })
    }

    /// Whether `other`, of the same object, is newer. Where that cannot be told, what came later is.
    pub(super) fn is_older_than(&self, other: &Self) -> bool {
        match (self.version, other.version) {
            (Some(own), Some(other)) => own < other,
            _ => false,
        }
    }

    /// A word of the status; empty where it has none.
    pub(super) fn word(&self, field: &str) -> &str {
        self.status
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// How it ended, once that has been told.
    pub(super) fn termination(&self) -> Option<&Map<String, Value>> {
        self.status.get("termination")?.as_object()
    }

    /// Whether it is bound to the Node `name` of the UID `uid`.
    pub(super) fn is_bound_to(&self, name: &str, uid: &str) -> bool {
        self.word("nodeName") == name && self.word("nodeUID") == uid
    }

    /// Whether its status tells that its command had been begun.
    pub(super) fn has_run(&self) -> bool {
        self.status.contains_key("startedAt")
            || matches!(self.word("phase"), "Running" | "Terminating")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An object that is bound to node `one` (UID `node-1`), with `patch` over it.
    pub(in crate::cluster) fn object(patch: &Value) -> DynamicObject {
        let mut object = json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": "demo",
                "namespace": "default",
                "uid": "uid-1",
                "resourceVersion": "100",
                "generation": 1,
                "finalizers": ["cloche.dev/teardown"],
            },
            "spec": {"image": "oci:busybox"},
            "status": {
                "nodeName": "one",
                "nodeUID": "node-1",
                "conditions": [{
                    "type": "Scheduled", "status": "True", "reason": "Bound", "message": "by the scheduler",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            },
        });
        merge(&mut object, patch);
        serde_json::from_value(object).unwrap()
    }

    /// JSON merge patch (RFC 7386).
    fn merge(into: &mut Value, patch: &Value) {
        let (Value::Object(fields), Value::Object(changes)) = (&mut *into, patch) else {
            *into = patch.clone();
            return;
        };
        for (field, change) in changes {
            if change.is_null() {
                fields.remove(field);
            } else {
                merge(fields.entry(field).or_insert(Value::Null), change);
            }
        }
    }

    pub(in crate::cluster) fn seen(patch: &Value) -> Seen {
        Seen::of(object(patch)).unwrap()
    }

    #[test]
    fn what_a_user_wrote_is_read_strictly() {
        let understood = seen(&json!({})).spec.unwrap();
        assert_eq!(understood.effective.hostname, "demo");
        assert_eq!(understood.object.metadata.uid.as_deref(), Some("uid-1"));
        assert_eq!(understood.object.status, None);
        let wrong = seen(&json!({"spec": {"egress": {}}})).spec.unwrap_err();
        assert!(wrong.starts_with("spec.egress: unknown field"), "{wrong}");
        let wrong = seen(&json!({"spec": {"image": "Python"}}))
            .spec
            .unwrap_err();
        assert!(wrong.starts_with("spec.image: "), "{wrong}");
    }

    #[test]
    fn what_others_wrote_is_read_leniently() {
        let seen = seen(&json!({"status": {"conditions": "none", "mood": 1, "phase": "Dreaming"}}));
        assert!(seen.spec.is_ok());
        assert_eq!(seen.word("phase"), "Dreaming");
        assert!(seen.is_bound_to("one", "node-1") && !seen.is_bound_to("one", "node-2"));
        assert!(seen.termination().is_none() && !seen.has_run());
    }

    #[test]
    fn the_newer_of_two_is_known() {
        let old = seen(&json!({"metadata": {"resourceVersion": "99"}}));
        let new = seen(&json!({}));
        assert!(old.is_older_than(&new) && !new.is_older_than(&old) && !new.is_older_than(&new));
        let odd = seen(&json!({"metadata": {"resourceVersion": "x"}}));
        assert!(!odd.is_older_than(&new) && !new.is_older_than(&odd));
    }
}
