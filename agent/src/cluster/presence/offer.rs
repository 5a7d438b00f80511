//! What the node offers, as an object, and what is to be done that the apiserver has it so. Pure.

use std::net::{IpAddr, SocketAddr};

use cloche_crds::condition::{Condition, Time};
use cloche_crds::quantity::{Bytes, Millicores};
use cloche_crds::sandbox::RuntimeStatus;
use cloche_crds::{
    ConditionReason, ConditionStatus, ConditionType, NodeAllocatable, SandboxNode, SandboxNodeSpec,
    SandboxNodeStatus,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::DynamicObject;
use serde_json::{Map, Value, json};

use crate::cluster::judge::OurNode;
use crate::cluster::own_node::NodeFacts;
use crate::instance::limits::SENTRY_MEMORY;
use crate::sandbox::admission::Budget;

/// What of an offer the agent knows by itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Terms {
    /// Where its API is reached; without, at the Node's address.
    pub(crate) advertise: Option<IpAddr>,
    /// The port of its API.
    pub(crate) port: u16,
    /// What sandboxes may request.
    pub(crate) budget: Budget,
    /// What runs them.
    pub(crate) runtime: RuntimeStatus,
    /// The machine's, as images name it.
    pub(crate) architecture: &'static str,
}

impl Terms {
    /// What the Node of these facts offers, unless something stands against it.
    pub(crate) fn offer(&self, facts: &NodeFacts, unready: Option<Unready>) -> Offer {
        let of_node = || facts.address.as_deref()?.parse().ok();
        Offer {
            node: facts.node.clone(),
            endpoint: self
                .advertise
                .or_else(of_node)
                .map(|address| SocketAddr::new(address, self.port)),
            budget: self.budget,
            runtime: self.runtime.clone(),
            architecture: self.architecture,
            // First, for it ends what runs.
            unready: facts.leaving.map(|_| Unready::Leaving).or(unready),
        }
    }
}

/// Why nothing new is to come here. What runs goes on, unless the node is leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unready {
    /// Nobody can reach the agent.
    NoCertificate,
    /// Others may have what sandboxes would request.
    NotReserved,
    /// Its sandboxes are to end.
    Leaving,
    /// Little is left of its disk.
    DiskPressure,
}

impl Unready {
    const fn reason(self) -> ConditionReason {
        match self {
            Self::NoCertificate => ConditionReason::NoCertificate,
            Self::NotReserved => ConditionReason::NotReserved,
            Self::Leaving => ConditionReason::Draining,
            Self::DiskPressure => ConditionReason::DiskPressure,
        }
    }

    const fn message(self) -> &'static str {
        match self {
            Self::NoCertificate => {
                "the agent has no certificate that holds: is the operator running? kubectl get csr shows what was asked for"
            }
            Self::NotReserved => {
                "the pod that holds the budget of this node's sandboxes is not Running: look at the pods of the DaemonSet cloche-reservation"
            }
            Self::DiskPressure => {
                "little is left of the disk that its sandboxes write to: those that are furthest over what they requested are evicted before it is full"
            }
            Self::Leaving => {
                "the Node is being drained (kubectl sandbox drain --undo takes that back) or shut down: what runs there ends"
            }
        }
    }
}

/// What the node offers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Offer {
    /// Which Node it is.
    pub(crate) node: OurNode,
    /// Where its API is served.
    pub(crate) endpoint: Option<SocketAddr>,
    /// What sandboxes may request.
    pub(crate) budget: Budget,
    /// What runs them.
    pub(crate) runtime: RuntimeStatus,
    /// The machine's, as images name it.
    pub(crate) architecture: &'static str,
    /// Why nothing new is to come.
    pub(crate) unready: Option<Unready>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Nothing.
    Rest,
    /// Make the object.
    Create(Box<SandboxNode>),
    /// Delete the one of this UID, which is another Node's of the same name.
    Delete(String),
    /// Apply this JSON patch to its status.
    Tell(Value),
}

/// Whose the objects are that tell of a Node: they go when it goes.
pub(crate) fn owner(node: &OurNode) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.name.clone(),
        uid: node.uid.clone(),
        ..OwnerReference::default()
    }
}

/// The next thing to do, where the apiserver has `seen`.
pub(crate) fn step(
    offer: &Offer,
    seen: Option<&DynamicObject>,
    now: Timestamp,
) -> Result<Step, serde_json::Error> {
    let Some(seen) = seen else {
        let mut object = SandboxNode::new(
            &offer.node.name,
            SandboxNodeSpec {
                node_uid: offer.node.uid.clone(),
            },
        );
        object.metadata.owner_references = Some(vec![owner(&offer.node)]);
        return Ok(Step::Create(Box::new(object)));
    };
    let uid = seen.metadata.uid.clone().unwrap_or_default();
    if seen.metadata.deletion_timestamp.is_some() {
        // It is made anew when it is gone.
        return Ok(Step::Rest);
    }
    if seen.data.pointer("/spec/nodeUID").and_then(Value::as_str) != Some(&offer.node.uid) {
        return Ok(Step::Delete(uid));
    }
    let before = match seen.data.get("status") {
        Some(Value::Object(status)) => status.clone(),
        _ => Map::new(),
    };
    let status = status(offer, &before, now)?;
    if status == before {
        return Ok(Step::Rest);
    }
    Ok(Step::Tell(json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/status", "value": status},
    ])))
}

/// The status, beside what others have put there.
fn status(
    offer: &Offer,
    before: &Map<String, Value>,
    now: Timestamp,
) -> Result<Map<String, Value>, serde_json::Error> {
    let conditions = before.get("conditions").and_then(Value::as_array);
    let conditions = conditions.map_or(&[][..], Vec::as_slice);
    let is_ready =
        |condition: &&Value| condition["type"].as_str() == Some(ConditionType::Ready.as_str());
    let (holds, reason, message) = match offer.unready {
        None => (ConditionStatus::True, ConditionReason::Running, ""),
        Some(unready) => (ConditionStatus::False, unready.reason(), unready.message()),
    };
    let ready = Condition {
        type_: ConditionType::Ready.as_str().to_owned(),
        status: holds.as_str().to_owned(),
        reason: reason.as_str().to_owned(),
        message: message.to_owned(),
        last_transition_time: Time(now),
        observed_generation: None,
    };
    let mut ready = serde_json::to_value(ready)?;
    let old = conditions.iter().find(is_ready);
    if let Some(old) = old.filter(|old| old["status"] == ready["status"]) {
        ready["lastTransitionTime"] = old["lastTransitionTime"].clone();
    }
    let others = conditions.iter().filter(|one| !is_ready(one)).cloned();
    let conditions: Vec<Value> = std::iter::once(ready).chain(others).collect();
    let ours = SandboxNodeStatus {
        endpoint: offer.endpoint.map(|endpoint| endpoint.to_string()),
        allocatable: Some(NodeAllocatable {
            cpu: Millicores(offer.budget.cpu_millis).into(),
            memory: Bytes(offer.budget.memory).into(),
            ephemeral_storage: Some(Bytes(offer.budget.disk).into()),
            sandbox_overhead: Bytes(SENTRY_MEMORY).into(),
        }),
        architecture: Some(offer.architecture.to_owned()),
        runtimes: vec![offer.runtime.clone()],
        conditions: Vec::new(),
    };
    let mut status = before.clone();
    if let Value::Object(ours) = serde_json::to_value(ours)? {
        status.extend(ours);
    }
    if offer.endpoint.is_none() {
        status.remove("endpoint");
    }
    status.insert("conditions".to_owned(), Value::Array(conditions));
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        Terms {
            advertise: None,
            port: 7443,
            budget: Budget {
                memory: 8 << 30,
                cpu_millis: 8000,
                disk: 64 << 30,
            },
            runtime: RuntimeStatus {
                name: "runsc".to_owned(),
                ..RuntimeStatus::default()
            },
            architecture: "amd64",
        }
    }

    fn facts(address: Option<&str>) -> NodeFacts {
        NodeFacts {
            node: OurNode {
                name: "one".to_owned(),
                uid: "node-1".to_owned(),
            },
            address: address.map(str::to_owned),
            leaving: None,
        }
    }

    fn offer() -> Offer {
        terms().offer(&facts(Some("10.0.0.1")), None)
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn seen(node: &str, status: &Value) -> DynamicObject {
        let object = json!({
            "metadata": {"name": "one", "uid": "uid-1"}, "spec": {"nodeUID": node}, "status": status,
        });
        serde_json::from_value(object).unwrap()
    }

    fn told(status: &Value, second: i64) -> Value {
        match step(&offer(), Some(&seen("node-1", status)), at(second)).unwrap() {
            Step::Tell(patch) => patch[1]["value"].clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_is_made_told_and_then_left_alone() {
        let Step::Create(object) = step(&offer(), None, at(0)).unwrap() else {
            panic!()
        };
        assert_eq!(object.spec.node_uid, "node-1");
        assert_eq!(object.metadata.owner_references.unwrap()[0].uid, "node-1");
        let status = told(&Value::Null, 0);
        assert_eq!(status["endpoint"], "10.0.0.1:7443");
        assert_eq!(
            status["allocatable"],
            json!({"cpu": "8", "memory": "8Gi", "ephemeral-storage": "64Gi", "sandboxOverhead": "32Mi"})
        );
        assert_eq!(status["runtimes"][0]["name"], "runsc");
        assert_eq!(status["conditions"][0]["status"], "True");
        let rest = step(&offer(), Some(&seen("node-1", &status)), at(50)).unwrap();
        assert_eq!(rest, Step::Rest);
    }

    #[test]
    fn what_others_told_stays_but_for_ready() {
        let mood = json!({"type": "Mood", "status": "True"});
        let ready = json!({"type": "Ready", "status": "Unknown", "lastTransitionTime": "x"});
        let status = told(&json!({"cached": 1, "conditions": [mood, ready]}), 7);
        assert_eq!(status["cached"], 1);
        assert_eq!(status["conditions"][1], mood);
        assert_eq!(status["conditions"][0]["status"], "True");
        assert_eq!(
            status["conditions"][0]["lastTransitionTime"],
            serde_json::to_value(Time(at(7))).unwrap()
        );
    }

    #[test]
    fn what_stands_against_it_is_told() {
        let status = told(&Value::Null, 0);
        for unready in [
            Unready::NoCertificate,
            Unready::NotReserved,
            Unready::Leaving,
            Unready::DiskPressure,
        ] {
            let offer = terms().offer(&facts(Some("10.0.0.1")), Some(unready));
            let step = step(&offer, Some(&seen("node-1", &status)), at(9)).unwrap();
            let Step::Tell(patch) = step else {
                panic!("{step:?}")
            };
            let ready = &patch[1]["value"]["conditions"][0];
            assert_eq!(ready["status"], "False");
            assert_eq!(ready["reason"], unready.reason().as_str());
            assert_ne!(ready["message"], "");
            assert_eq!(
                ready["lastTransitionTime"],
                serde_json::to_value(Time(at(9))).unwrap()
            );
        }
    }

    #[test]
    fn that_a_node_leaves_is_told_first() {
        let leaving = NodeFacts {
            leaving: Some(crate::cluster::own_node::Leaving::Drained),
            ..facts(None)
        };
        let offer = terms().offer(&leaving, Some(Unready::NoCertificate));
        assert_eq!(offer.unready, Some(Unready::Leaving));
    }

    #[test]
    fn another_nodes_goes_first() {
        let old = seen("node-0", &Value::Null);
        let delete = step(&offer(), Some(&old), at(0)).unwrap();
        assert_eq!(delete, Step::Delete("uid-1".to_owned()));
        let mut going = old;
        going.metadata.deletion_timestamp = Some(Time(at(0)));
        assert_eq!(step(&offer(), Some(&going), at(0)).unwrap(), Step::Rest);
    }

    #[test]
    fn an_endpoint_is_written_as_it_is_dialled() {
        let written = |terms: &Terms, address| {
            let endpoint = terms.offer(&facts(address), None).endpoint;
            endpoint.map(|endpoint| endpoint.to_string())
        };
        let mut terms = terms();
        let v6 = written(&terms, Some("fd00::1"));
        assert_eq!(v6.as_deref(), Some("[fd00::1]:7443"));
        assert_eq!(written(&terms, Some("a-host")), None);
        assert_eq!(written(&terms, None), None);
        terms.advertise = Some("10.9.9.9".parse().unwrap());
        let advertised = written(&terms, Some("fd00::1"));
        assert_eq!(advertised.as_deref(), Some("10.9.9.9:7443"));
    }
}
