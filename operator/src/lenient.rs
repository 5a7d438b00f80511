//! A Sandbox as far as it can be read.
//!
//! The apiserver takes some of what this build cannot read: fields of a newer CRD, a time with an offset that no clock has. Such an
//! object must still be found bound, ended, lost and released: only its spec is read strictly, since nothing may run by half of it.

use std::borrow::Cow;

use cloche_crds::condition::Condition;
use cloche_crds::sandbox::Termination;
use cloche_crds::{FailureDomain, Reason, Sandbox, SandboxSpec, SandboxStatus};
use k8s_openapi::NamespaceResourceScope;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// A Sandbox, and what of it cannot be read.
#[derive(Clone, Debug)]
pub struct Lenient {
    /// The object, without what cannot be read: then an empty spec, and of the status only what the operator goes by.
    pub sandbox: Sandbox,
    /// Why its spec cannot be read, if so.
    pub unread: Option<Box<str>>,
    /// `status.conditions` as they stand there; null where there are none.
    pub conditions: Value,
}

impl<'de> Deserialize<'de> for Lenient {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Map::deserialize(deserializer)?;
        let mut take = |field| object.remove(field).unwrap_or_default();
        let metadata: ObjectMeta =
            serde_json::from_value(take("metadata")).map_err(D::Error::custom)?;
        let status = take("status");
        let (spec, unread) = match serde_json::from_value(take("spec")) {
            Ok(spec) => (spec, None),
            Err(error) => (SandboxSpec::default(), Some(error.to_string().into())),
        };
        let conditions = status.get("conditions").cloned().unwrap_or_default();
        let sandbox = Sandbox {
            metadata,
            spec,
            status: (!status.is_null()).then(|| read(&status)),
        };
        Ok(Self {
            sandbox,
            unread,
            conditions,
        })
    }
}

fn read(status: &Value) -> SandboxStatus {
    SandboxStatus::deserialize(status).unwrap_or_else(|_| SandboxStatus {
        phase: field(status, "phase").unwrap_or_default(),
        conditions: conditions(status),
        node_name: field(status, "nodeName"),
        node_uid: field(status, "nodeUID"),
        started_at: field(status, "startedAt"),
        termination: status
            .get("termination")
            .filter(|termination| termination.is_object())
            .map(|_| ended()),
        ..SandboxStatus::default()
    })
}

fn field<T: DeserializeOwned>(status: &Value, name: &str) -> Option<T> {
    T::deserialize(status.get(name)?).ok()
}

fn conditions(status: &Value) -> Vec<Condition> {
    let all = status.get("conditions").and_then(Value::as_array);
    let all = all.into_iter().flatten();
    all.filter_map(|condition| Condition::deserialize(condition).ok())
        .collect()
}

/// That it ended; how is not looked at.
fn ended() -> Termination {
    Termination {
        reason: Reason::Unknown,
        failure_domain: FailureDomain::Unknown,
        message: String::new(),
        exit_code: None,
        signal: None,
        started_at: None,
        finished_at: None,
        peak_memory_bytes: None,
        cpu_seconds: None,
        written_bytes: None,
    }
}

impl Resource for Lenient {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Sandbox::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Sandbox::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Sandbox::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Sandbox::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        self.sandbox.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.sandbox.meta_mut()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lenient(spec: &Value, status: &Value) -> Lenient {
        let object = json!({
            "apiVersion": "cloche.dev/v1alpha1", "kind": "Sandbox",
            "metadata": {"name": "s", "namespace": "default", "uid": "u", "finalizers": ["f"]},
            "spec": spec, "status": status,
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn what_can_be_read_is_read_whole() {
        let status = json!({"phase": "Running", "imageDigest": "sha256:0", "nodeName": "n"});
        let read = lenient(&json!({"image": "python"}), &status);
        assert_eq!(read.unread, None);
        assert_eq!(read.sandbox.spec.image, "python");
        let status = read.sandbox.status.unwrap();
        assert_eq!(status.image_digest.as_deref(), Some("sha256:0"));
        assert_eq!(read.conditions, Value::Null);
        assert_eq!(
            lenient(&json!({"image": "python"}), &Value::Null)
                .sandbox
                .status,
            None
        );
    }

    #[test]
    fn where_it_is_bound_and_that_it_ended_is_read_of_whatever_is_there() {
        let odd = "2026-01-01T00:00:00+99:99";
        let of = |kind: &str, time: &str| json!({"type": kind, "status": "True", "reason": "Bound", "message": "", "lastTransitionTime": time});
        let conditions = json!([of("Scheduled", odd), of("Ready", "2026-01-01T00:00:00Z")]);
        let status = json!({
            "phase": "Failed", "nodeName": "n", "nodeUID": "node", "conditions": conditions,
            "termination": {"reason": "Error", "failureDomain": "Workload", "finishedAt": odd},
        });
        let read = lenient(&json!({"image": "python", "newer": 1}), &status);
        assert!(read.unread.unwrap().contains("newer"));
        assert_eq!(read.conditions, conditions);
        assert_eq!(read.sandbox.metadata.uid.as_deref(), Some("u"));
        let status = read.sandbox.status.unwrap();
        assert_eq!(status.node_name.as_deref(), Some("n"));
        assert_eq!(status.node_uid.as_deref(), Some("node"));
        assert_eq!(status.conditions.len(), 1);
        assert!(status.termination.is_some());
    }
}
