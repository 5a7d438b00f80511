//! What is written, as JSON patches. Pure.
//!
//! Every patch begins with a test of the UID: an object that was deleted and made anew under its name is another one. What is written
//! over is tested too, so that of two writers one has to look again. Only the fields that are the operator's are touched: the status of
//! an agent that is newer than this keeps what is not known here.

use cloche_crds::cluster::FINALIZER;
use cloche_crds::condition::{Condition, Time, bounded, set_condition};
use cloche_crds::sandbox::Termination;
use cloche_crds::{
    ConditionReason, ConditionStatus, ConditionType, Phase, Reason, SandboxNodeStatus,
    SandboxStatus,
};
use jiff::Timestamp;
use kube::api::Patch;
use serde_json::{Value, json};

use crate::index::node::NodeName;
use crate::index::sandbox::Unbound;
use crate::loss::Loss;

/// A JSON patch, not yet sent.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPatch(Vec<Value>);

/// No patch by the grammar of RFC 6902: a mistake in here.
#[derive(Debug, thiserror::Error)]
#[error("write a JSON patch")]
pub struct PatchError(#[from] serde_json::Error);

impl JsonPatch {
    fn of(uid: &str) -> Self {
        Self(vec![
            json!({"op": "test", "path": "/metadata/uid", "value": uid}),
        ])
    }

    fn test(self, path: &str, value: Value) -> Self {
        self.then("test", path, Some(value))
    }

    /// Also replaces what is there.
    fn add(self, path: &str, value: Value) -> Self {
        self.then("add", path, Some(value))
    }

    fn remove(self, path: &str) -> Self {
        self.then("remove", path, None)
    }

    fn then(mut self, operation: &str, path: &str, value: Option<Value>) -> Self {
        let mut step = json!({"op": operation, "path": path});
        if let (Some(step), Some(value)) = (step.as_object_mut(), value) {
            step.insert("value".to_owned(), value);
        }
        self.0.push(step);
        self
    }

    /// As the client sends it.
    pub fn to_patch(&self) -> Result<Patch<()>, PatchError> {
        Ok(Patch::Json(serde_json::from_value(Value::Array(
            self.0.clone(),
        ))?))
    }
}

/// Puts our finalizer on an object that has these, and is not being deleted.
pub fn put_finalizer(uid: &str, finalizers: &[String]) -> JsonPatch {
    let patch = JsonPatch::of(uid).test("/metadata/deletionTimestamp", Value::Null);
    if finalizers.is_empty() {
        patch
            .test("/metadata/finalizers", Value::Null)
            .add("/metadata/finalizers", json!([FINALIZER]))
    } else {
        patch
            .test("/metadata/finalizers", json!(finalizers))
            .add("/metadata/finalizers/-", json!(FINALIZER))
    }
}

/// Takes our finalizer off an object that has these; `None` where it is not among them.
pub fn take_finalizer(uid: &str, finalizers: &[String]) -> Option<JsonPatch> {
    let place = finalizers.iter().position(|name| name == FINALIZER)?;
    let path = format!("/metadata/finalizers/{place}");
    Some(
        JsonPatch::of(uid)
            .test(&path, json!(FINALIZER))
            .remove(&path),
    )
}

/// What the operator says of an unbound sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scheduled {
    /// It is bound.
    To {
        /// The node.
        node: NodeName,
        /// Its Node's UID.
        uid: Box<str>,
    },
    /// No node can take it.
    Not {
        /// Why.
        message: String,
    },
}

/// Writes what is said over the status of an unbound sandbox, as it was seen: `None` where it has none yet.
pub fn schedule(
    uid: &str,
    generation: i64,
    seen: Option<&Unbound>,
    scheduled: &Scheduled,
    now: Timestamp,
) -> JsonPatch {
    let before = seen.map_or(&[][..], |seen| &seen.conditions);
    let mut conditions = before.to_vec();
    let (status, reason, message) = match scheduled {
        Scheduled::To { node, .. } => (
            ConditionStatus::True,
            ConditionReason::Bound,
            format!("bound to {node}"),
        ),
        Scheduled::Not { message } => (
            ConditionStatus::False,
            ConditionReason::Unschedulable,
            message.clone(),
        ),
    };
    let kind = ConditionType::Scheduled;
    set_condition(&mut conditions, kind, status, reason, &message, now);
    let conditions = json!(conditions);
    let phase = json!(Phase::Pending.as_str());
    let patch = JsonPatch::of(uid);
    let Some(seen) = seen else {
        let mut status = json!({
            "observedGeneration": generation,
            "phase": phase,
            "conditions": conditions,
        });
        if let Scheduled::To { node, uid } = scheduled {
            status["nodeName"] = json!(**node);
            status["nodeUID"] = json!(**uid);
        }
        return patch.test("/status", Value::Null).add("/status", status);
    };
    let patch = patch
        .test("/status/nodeName", Value::Null)
        .test("/status/termination", Value::Null)
        .test("/status/conditions", seen.written.clone())
        .add("/status/observedGeneration", json!(generation))
        .add("/status/phase", phase)
        .add("/status/conditions", conditions);
    match scheduled {
        Scheduled::To { node, uid } => patch
            .add("/status/nodeName", json!(**node))
            .add("/status/nodeUID", json!(uid)),
        Scheduled::Not { .. } => patch,
    }
}

/// An object that was just read.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// `metadata.uid`.
    pub uid: &'a str,
    /// `metadata.resourceVersion`.
    pub version: &'a str,
}

impl Read<'_> {
    fn patch(self) -> JsonPatch {
        JsonPatch::of(self.uid).test("/metadata/resourceVersion", json!(self.version))
    }
}

/// Writes that the agent of a bound sandbox is not heard.
pub fn unreachable(
    read: Read<'_>,
    status: &SandboxStatus,
    node: &str,
    now: Timestamp,
) -> JsonPatch {
    let message = format!("the agent of {node} is not heard; what runs there goes on");
    let conditions = not_heard(&status.conditions, &message, now);
    read.patch().add("/status/conditions", json!(conditions))
}

/// The same of a node. Its status is there: an agent was heard.
pub fn node_unreachable(read: Read<'_>, status: &SandboxNodeStatus, now: Timestamp) -> JsonPatch {
    let message = "its Lease is not renewed; what runs there goes on";
    let conditions = not_heard(&status.conditions, message, now);
    read.patch().add("/status/conditions", json!(conditions))
}

fn not_heard(before: &[Condition], message: &str, now: Timestamp) -> Vec<Condition> {
    let mut conditions = before.to_vec();
    set_condition(
        &mut conditions,
        ConditionType::Ready,
        ConditionStatus::Unknown,
        ConditionReason::AgentUnreachable,
        message,
        now,
    );
    conditions
}

/// Writes the end of a bound sandbox whose node is lost.
pub fn lose(
    read: Read<'_>,
    status: &SandboxStatus,
    node: &str,
    loss: Loss,
    now: Timestamp,
) -> JsonPatch {
    let message = bounded(&format!(
        "the node {node} is lost: {loss}; create the sandbox anew to run it elsewhere"
    ));
    let mut conditions = status.conditions.clone();
    let end = end(Reason::NodeLost, message, &mut conditions, now);
    let termination = Termination {
        started_at: status.started_at.clone(),
        ..end
    };
    read.patch()
        .add("/status/termination", json!(termination))
        .add("/status/phase", json!(termination.reason.phase().as_str()))
        .add("/status/conditions", json!(conditions))
}

/// Writes the end of a sandbox that was not bound in its time, over its status as it was seen: `None` where it has none yet.
pub fn never_bound(
    uid: &str,
    generation: i64,
    seen: Option<&Unbound>,
    reason: Reason,
    why: &str,
    now: Timestamp,
) -> JsonPatch {
    let message = bounded(&format!(
        "it was not bound within spec.lifecycle.scheduleTimeoutSeconds: {why}"
    ));
    let mut conditions = seen.map_or_else(Vec::new, |seen| seen.conditions.clone());
    let (kind, scheduled) = (ConditionType::Scheduled, ConditionReason::Unschedulable);
    set_condition(
        &mut conditions,
        kind,
        ConditionStatus::False,
        scheduled,
        why,
        now,
    );
    let termination = end(reason, message, &mut conditions, now);
    let phase = json!(termination.reason.phase().as_str());
    let patch = JsonPatch::of(uid);
    let Some(seen) = seen else {
        let status = json!({
            "observedGeneration": generation,
            "phase": phase,
            "conditions": conditions,
            "termination": termination,
        });
        return patch.test("/status", Value::Null).add("/status", status);
    };
    patch
        .test("/status/nodeName", Value::Null)
        .test("/status/termination", Value::Null)
        .test("/status/conditions", seen.written.clone())
        .add("/status/observedGeneration", json!(generation))
        .add("/status/termination", json!(termination))
        .add("/status/phase", phase)
        .add("/status/conditions", json!(conditions))
}

/// The end that an operator tells, and the conditions that go with it.
fn end(
    reason: Reason,
    message: String,
    conditions: &mut Vec<Condition>,
    now: Timestamp,
) -> Termination {
    for (kind, holds) in [
        (ConditionType::Ready, ConditionStatus::False),
        (ConditionType::Stalled, ConditionStatus::True),
        (ConditionType::Finished, ConditionStatus::True),
    ] {
        let why = ConditionReason::Ended(reason);
        set_condition(conditions, kind, holds, why, &message, now);
    }
    Termination {
        reason,
        failure_domain: reason.default_domain(),
        message,
        exit_code: None,
        signal: None,
        started_at: None,
        finished_at: Some(Time(now)),
        peak_memory_bytes: None,
        cpu_seconds: None,
        written_bytes: None,
    }
}
