//! What is kept of a Sandbox: little, for there may be 100,000.

use std::fmt;
use std::sync::Arc;

use cloche_crds::cluster::FINALIZER;
use cloche_crds::condition::Condition;
use cloche_crds::rules::validate;
use cloche_crds::{ConditionReason, ConditionStatus, ConditionType, Phase, Sandbox, SandboxStatus};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::shape::Shape;
use crate::lenient::Lenient;

/// What a sandbox is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxKey {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Box<str>,
}

/// A shared [`SandboxKey`].
pub type Key = Arc<SandboxKey>;

impl fmt::Display for SandboxKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// The binding that a sandbox has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// `status.nodeName`.
    pub node: Arc<str>,
    /// `status.nodeUID`; `None` where whoever bound it wrote none.
    pub uid: Option<Box<str>>,
}

/// What it asks of a node, or why that cannot be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asks {
    /// It kept every rule.
    Shape(Arc<Shape>),
    /// It cannot be read or breaks rules, and no node would run it: what is wrong, for its status.
    Invalid(Box<str>),
}

/// A Sandbox as it was last seen.
#[derive(Clone, Debug)]
pub struct SandboxSeen {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.resourceVersion`, of which the larger is the newer.
    pub version: u64,
    /// `metadata.generation`.
    pub generation: i64,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// `metadata.finalizers`, in their order.
    pub finalizers: Vec<String>,
    /// What it asks of a node.
    pub asks: Asks,
    /// Where it is bound to.
    pub bound: Option<Bound>,
    /// What its status tells of how it is.
    pub told: Told,
    /// Whether it is already told that its agent is not heard.
    pub unreachable: bool,
    /// In which of its node's silences that was last told.
    pub told_silence: u32,
    /// When its object is to be dealt with, if ever: ended as unschedulable while it waits for a node, deleted after its end.
    pub due: Option<Timestamp>,
    /// Of its status, if it has one and as long as it is unbound: the binding is written over it.
    pub unbound_status: Option<Box<Unbound>>,
}

/// What a status tells of how a sandbox is, as far as that decides what it takes of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Nothing, or that it is on its way to run, or runs.
    Lives,
    /// It is stopped.
    Stopped,
    /// It was stopped, and is being brought back: its files are there still.
    Waking,
    /// It has ended.
    Ended,
}

impl Told {
    fn by(status: &SandboxStatus) -> Self {
        if status.termination.is_some() || status.phase.is_terminal() {
            Self::Ended
        } else if status.phase == Phase::Stopped {
            Self::Stopped
        } else if status.phase == Phase::Starting && status.started_at.is_some() {
            Self::Waking
        } else {
            Self::Lives
        }
    }
}

/// Of the status of an unbound sandbox what a binding is written over.
#[derive(Clone, Debug)]
pub struct Unbound {
    /// `status.conditions`, without those that cannot be read.
    pub conditions: Vec<Condition>,
    /// The same as they stand there; null where there are none.
    pub written: Value,
}

/// The key of an object. `None` for an object without a name, which the apiserver never sends.
pub fn key_of(metadata: &kube::api::ObjectMeta) -> Option<SandboxKey> {
    Some(SandboxKey {
        namespace: metadata.namespace.as_deref()?.into(),
        name: metadata.name.as_deref()?.into(),
    })
}

/// `metadata.resourceVersion` as a number. Kubernetes promises that versions of one kind can be compared so.
pub fn version_of(metadata: &kube::api::ObjectMeta) -> u64 {
    let version = metadata.resource_version.as_deref();
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}

impl SandboxSeen {
    /// Reads an object. `same_spec` is what an earlier version of it with this generation asked for; `intern` shares shapes.
    pub fn read(
        read: &Lenient,
        same_spec: Option<&Asks>,
        intern: impl FnOnce(Shape) -> Arc<Shape>,
    ) -> Self {
        let metadata = &read.sandbox.metadata;
        let status = read.sandbox.status.as_ref();
        let bound = status.and_then(|status| {
            Some(Bound {
                node: status.node_name.as_deref()?.into(),
                uid: status.node_uid.as_deref().map(Into::into),
            })
        });
        let asks = same_spec.cloned().unwrap_or_else(|| {
            if let Some(why) = &read.unread {
                return Asks::Invalid(format!("the spec cannot be read: {why}").into());
            }
            match validate(&read.sandbox) {
                Ok(effective) => Asks::Shape(intern(Shape::of(&read.sandbox.spec, &effective))),
                Err(violations) => {
                    Asks::Invalid(format!("the spec breaks a rule: {violations}").into())
                }
            }
        });
        let told = status.map_or(Told::Lives, Told::by);
        Self {
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            version: version_of(metadata),
            generation: metadata.generation.unwrap_or(0),
            deleting: metadata.deletion_timestamp.is_some(),
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
            asks,
            told,
            unreachable: status.is_some_and(is_unreachable),
            told_silence: 0,
            due: due(&read.sandbox, told == Told::Ended),
            unbound_status: match &bound {
                Some(_) => None,
                None => status.map(|status| {
                    Box::new(Unbound {
                        conditions: status.conditions.clone(),
                        written: read.conditions.clone(),
                    })
                }),
            },
            bound,
        }
    }

    /// Whether our finalizer is on it.
    pub fn has_finalizer(&self) -> bool {
        self.finalizers.iter().any(|name| name == FINALIZER)
    }

    /// Whether it waits for a node.
    pub fn is_waiting(&self) -> bool {
        self.bound.is_none() && self.told != Told::Ended && !self.deleting
    }

    /// Whether the time has come that its spec names.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// The message of the condition that says that no node can take it.
    pub fn unschedulable(&self) -> Option<&str> {
        let conditions = &self.unbound_status.as_ref()?.conditions;
        let scheduled = condition(conditions, ConditionType::Scheduled)?;
        (scheduled.reason == ConditionReason::Unschedulable.as_str())
            .then_some(scheduled.message.as_str())
    }
}

/// By the times that are written in it: a watch may be late, and another operator may have led before. Nothing is of one that is being
/// deleted.
fn due(sandbox: &Sandbox, has_ended: bool) -> Option<Timestamp> {
    if sandbox.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let lifecycle = sandbox.spec.lifecycle.as_ref()?;
    let status = sandbox.status.as_ref();
    let is_bound = status.is_some_and(|status| status.node_name.is_some());
    let (from, seconds) = match status.and_then(|status| status.termination.as_ref()) {
        Some(end) => (
            end.finished_at.as_ref()?,
            lifecycle.ttl_seconds_after_finished?,
        ),
        None if has_ended || is_bound => return None,
        None => (
            sandbox.metadata.creation_timestamp.as_ref()?,
            lifecycle.schedule_timeout_seconds?,
        ),
    };
    // What is written is cut to whole seconds: never too early.
    let wait = SignedDuration::from_secs(seconds.checked_add(1)?);
    from.0.checked_add(wait).ok()
}

fn condition(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions
        .iter()
        .find(|condition| condition.type_ == kind.as_str())
}

/// Whether Ready already says that the agent is not heard.
pub fn is_unreachable(status: &SandboxStatus) -> bool {
    says_unreachable(&status.conditions)
}

/// The same of any list of conditions.
pub fn says_unreachable(conditions: &[Condition]) -> bool {
    condition(conditions, ConditionType::Ready).is_some_and(|ready| {
        ready.status == ConditionStatus::Unknown.as_str()
            && ready.reason == ConditionReason::AgentUnreachable.as_str()
    })
}
