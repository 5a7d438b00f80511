//! What is kept of a node: its Node, what its agent offers, and how much of that is in use.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use cloche_crds::quantity::{Bytes, Millicores, Quantity};
use cloche_crds::sandbox::TaintEffect;
use cloche_crds::{ConditionStatus, ConditionType, SandboxNode};
use k8s_openapi::api::core::v1::{Node as NodeObject, NodeStatus};

use super::sandbox::{Key, says_unreachable, version_of};
use super::shape::Charge;
use crate::loss::Judgement;

/// The taint by which an administrator says that a node is down for good.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Processor time, memory and disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Processor time.
    pub cpu: Millicores,
    /// Memory.
    pub memory: Bytes,
    /// Disk.
    pub disk: Bytes,
}

/// A taint that keeps something away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value; may be empty.
    pub value: String,
    /// What it does.
    pub effect: TaintEffect,
}

/// The Node object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// Taints with an effect that is known.
    pub taints: Vec<Taint>,
    /// Whether an administrator said that it is down for good.
    pub out_of_service: bool,
    /// `spec.unschedulable`.
    pub cordoned: bool,
    /// Whether its condition Ready is True.
    pub ready: bool,
    /// `status.allocatable`: what pods and sandboxes may have at most.
    pub ceiling: Amount,
}

impl Machine {
    /// Reads a Node.
    pub fn read(object: &NodeObject) -> Self {
        let spec = object.spec.as_ref();
        let status = object.status.as_ref();
        let taints = spec
            .and_then(|spec| spec.taints.as_deref())
            .unwrap_or_default();
        let effect = |word: &str| match word {
            "NoSchedule" => Some(TaintEffect::NoSchedule),
            "PreferNoSchedule" => Some(TaintEffect::PreferNoSchedule),
            "NoExecute" => Some(TaintEffect::NoExecute),
            _ => None,
        };
        let known = taints.iter().filter_map(|taint| {
            Some(Taint {
                key: taint.key.clone(),
                value: taint.value.clone().unwrap_or_default(),
                effect: effect(&taint.effect)?,
            })
        });
        let ready = |status: &NodeStatus| {
            let mut conditions = status.conditions.iter().flatten();
            conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        Self {
            uid: object.metadata.uid.as_deref().unwrap_or_default().into(),
            labels: object.metadata.labels.clone().unwrap_or_default(),
            taints: known.collect(),
            out_of_service: taints.iter().any(|taint| taint.key == OUT_OF_SERVICE),
            cordoned: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
            ready: status.is_some_and(ready),
            ceiling: status.map(ceiling).unwrap_or_default(),
        }
    }
}

/// What cannot be read counts as nothing: a sandbox too few on a node is better than one too many. Disk is the agent's to offer: it need
/// not be on the kubelet's file system, of which the Node tells.
fn ceiling(status: &NodeStatus) -> Amount {
    let read = |name: &str| {
        let quantity = status.allocatable.as_ref()?.get(name)?;
        Some(Quantity(quantity.0.clone()))
    };
    Amount {
        cpu: read("cpu")
            .and_then(|quantity| quantity.millicores().ok())
            .unwrap_or_default(),
        memory: read("memory")
            .and_then(|quantity| quantity.bytes().ok())
            .unwrap_or_default(),
        disk: NO_BOUND,
    }
}

/// Where nobody says how much there is.
const NO_BOUND: Bytes = Bytes(u64::MAX);

/// The `SandboxNode` object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its own `metadata.uid`.
    pub uid: Box<str>,
    /// Its `metadata.resourceVersion`.
    pub version: u64,
    /// The UID of the Node that it speaks of.
    pub node_uid: Box<str>,
    /// Whether its condition Ready is True and there is an endpoint.
    pub ready: bool,
    /// Whether it is already told that the agent is not heard.
    pub unreachable: bool,
    /// In which of its silences that was last told.
    pub told_silence: u32,
    /// What all sandboxes may request together.
    pub budget: Amount,
    /// What each takes of the memory beside its request.
    pub overhead: Bytes,
}

impl Offer {
    /// Reads a `SandboxNode`.
    pub fn read(object: &SandboxNode) -> Self {
        let status = object.status.clone().unwrap_or_default();
        let ready = status.conditions.iter().any(|condition| {
            condition.type_ == ConditionType::Ready.as_str()
                && condition.status == ConditionStatus::True.as_str()
        });
        let offered = status.allocatable.unwrap_or_default();
        Self {
            uid: object.metadata.uid.as_deref().unwrap_or_default().into(),
            version: version_of(&object.metadata),
            node_uid: object.spec.node_uid.as_str().into(),
            ready: ready && status.endpoint.is_some(),
            unreachable: says_unreachable(&status.conditions),
            told_silence: 0,
            budget: Amount {
                cpu: offered.cpu.millicores().unwrap_or_default(),
                memory: offered.memory.bytes().unwrap_or_default(),
                disk: offered
                    .ephemeral_storage
                    .map_or(NO_BOUND, |quantity| quantity.bytes().unwrap_or_default()),
            },
            overhead: offered.sandbox_overhead.bytes().unwrap_or_default(),
        }
    }
}

/// When the agent was last heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// What its Lease said then: whoever renewed it, and when by their own clock. Only compared. Empty where the Lease is gone.
    pub mark: String,
    /// When that was first seen here, since the operator's start.
    pub at: Duration,
}

/// Everything that is known of a node, by its name.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Its Node; `None` where there is none.
    pub machine: Option<Machine>,
    /// What its agent offers; `None` where none ever did.
    pub offer: Option<Offer>,
    /// Its agent's Lease; `None` where there is none.
    pub heard: Option<Heard>,
    /// Since when its Node is seen not to be ready, since the operator's start.
    pub not_ready_since: Option<Duration>,
    /// What it was last judged to be.
    pub judged: Judgement,
    /// How often its agent became silent.
    pub silences: u32,
    /// Sandboxes that are bound to it.
    pub sandboxes: HashSet<Key>,
    /// What those that have not ended, and those that are about to be bound, request together, without overheads.
    pub used: Amount,
    /// How many those are, without those that are stopped: they have no overhead, and request their disk alone.
    pub count: u64,
}

impl Node {
    /// Whether nothing is known of it any more.
    pub fn is_forgotten(&self) -> bool {
        self.machine.is_none()
            && self.offer.is_none()
            && self.heard.is_none()
            && self.sandboxes.is_empty()
            && self.count == 0
    }

    /// An agent whose Lease is gone goes on to be silent; one that offers nothing either, or has no Node, was taken away.
    pub fn forget_agent_that_is_gone(&mut self) {
        let heard = self.heard.as_ref();
        let is_without_lease = heard.is_some_and(|heard| heard.mark.is_empty());
        if is_without_lease && (self.machine.is_none() || self.offer.is_none()) {
            self.heard = None;
        }
    }

    /// Counts a sandbox.
    pub fn charge(&mut self, charge: &Charge) {
        let Charge { shape, is_stopped } = charge;
        self.used.disk.0 = self.used.disk.0.saturating_add(shape.disk.0);
        if !is_stopped {
            self.used.cpu.0 = self.used.cpu.0.saturating_add(shape.cpu.0);
            self.used.memory.0 = self.used.memory.0.saturating_add(shape.memory.0);
            self.count += 1;
        }
    }

    /// Counts it no more.
    pub fn discharge(&mut self, charge: &Charge) {
        let Charge { shape, is_stopped } = charge;
        self.used.disk.0 = self.used.disk.0.saturating_sub(shape.disk.0);
        if !is_stopped {
            self.used.cpu.0 = self.used.cpu.0.saturating_sub(shape.cpu.0);
            self.used.memory.0 = self.used.memory.0.saturating_sub(shape.memory.0);
            self.count = self.count.saturating_sub(1);
        }
    }

    /// Whether a sandbox that is bound to this Node's UID is on a Node that is still there.
    pub fn is_still(&self, uid: Option<&str>) -> bool {
        let machine = self.machine.as_ref();
        machine.is_some_and(|machine| uid.is_none_or(|uid| *machine.uid == *uid))
    }
}

/// The name of a node.
pub type NodeName = Arc<str>;
