//! Where a sandbox is, and whether it can be asked what is asked.

use std::net::{IpAddr, SocketAddr};

use cloche_crds::condition::Condition;
use cloche_crds::{Phase, Sandbox, SandboxNode};
use k8s_openapi::api::core::v1::Node;
use kube::api::Api;

use crate::access::{Apiserver, Deed};
use crate::refusal::{Kind, Refusal};

/// A sandbox on its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its namespace.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
    /// Its UID: another sandbox of the same name is another one.
    pub(crate) uid: String,
    /// The node that it is bound to.
    pub(crate) node: String,
}

/// Finds the sandbox as it is now.
pub(crate) async fn find(
    apiserver: &Apiserver,
    namespace: &str,
    name: &str,
    deed: Deed,
) -> Result<Place, Refusal> {
    let sandboxes: Api<Sandbox> = Api::namespaced(apiserver.client(), namespace);
    let found = apiserver.get(&sandboxes, name).await?;
    let sandbox = found.ok_or_else(|| {
        let message = format!("there is no sandbox {name:?} in namespace {namespace:?}");
        Refusal::new(Kind::NotFound, message)
    })?;
    place(&sandbox, namespace, name, deed)
}

/// Where `sandbox` is. The agent has the last word on what it can do: refused here is only what its status leaves no doubt about.
pub(crate) fn place(
    sandbox: &Sandbox,
    namespace: &str,
    name: &str,
    deed: Deed,
) -> Result<Place, Refusal> {
    let conflict = |message: String| Err(Refusal::new(Kind::Conflict, message));
    let status = sandbox.status.clone().unwrap_or_default();
    if let (Deed::Exec, Some(end)) = (deed, &status.termination) {
        let (reason, message) = (end.reason, &end.message);
        return conflict(format!("sandbox {name:?} has ended: {reason}: {message}"));
    }
    let Some(node) = status.node_name.filter(|node| !node.is_empty()) else {
        // It ended before any node had it: there is nothing to be read or joined.
        if let Some(end) = &status.termination {
            let (reason, message) = (end.reason, &end.message);
            return conflict(format!("sandbox {name:?} has ended: {reason}: {message}"));
        }
        let why = told(&status.conditions, "Scheduled");
        return conflict(format!("sandbox {name:?} is not bound to a node yet{why}"));
    };
    match status.phase {
        Phase::Pending | Phase::Starting if status.started_at.is_none() => {
            let phase = status.phase;
            let why = ["ImageReady", "Ready"]
                .into_iter()
                .map(|kind| told(&status.conditions, kind))
                .find(|why| !why.is_empty())
                .unwrap_or_default();
            conflict(format!(
                "sandbox {name:?} is {phase}, wait for its condition Ready{why}"
            ))
        }
        // Use of one that is paused or stopped since it was idle has it run again; its agent has whoever comes meanwhile wait.
        Phase::Pending
        | Phase::Starting
        | Phase::Running
        | Phase::Paused
        | Phase::Stopped
        | Phase::Terminating
        | Phase::Succeeded
        | Phase::Failed
        | Phase::Ended
        | Phase::Unknown => Ok(Place {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: sandbox.metadata.uid.clone().unwrap_or_default(),
            node,
        }),
    }
}

/// What a condition that does not hold says; empty where it holds or says nothing.
fn told(conditions: &[Condition], kind: &str) -> String {
    conditions
        .iter()
        .find(|condition| condition.type_ == kind && condition.status != "True")
        .map(|condition| match condition.message.as_str() {
            "" => format!(" ({kind}: {})", condition.reason),
            message => format!(" ({kind}: {}: {message})", condition.reason),
        })
        .unwrap_or_default()
}

/// Where the agent of `node` is served.
pub(crate) async fn endpoint(apiserver: &Apiserver, node: &str) -> Result<SocketAddr, Refusal> {
    let sandbox_nodes: Api<SandboxNode> = Api::all(apiserver.client());
    let told = apiserver.get(&sandbox_nodes, node).await?;
    let nodes: Api<Node> = Api::all(apiserver.client());
    let node_itself = apiserver.get(&nodes, node).await?;
    let endpoint = told
        .and_then(|told| told.status?.endpoint)
        .and_then(|endpoint| endpoint.parse::<SocketAddr>().ok())
        .ok_or_else(|| {
            let message =
                format!("the agent of node {node:?} does not say where it can be reached; retry");
            Refusal::new(Kind::ServiceUnavailable, message)
        })?;
    // What an agent says itself must lead nowhere else.
    if node_itself.is_some_and(|node| is_of(endpoint.ip(), &node)) {
        Ok(endpoint)
    } else {
        let message = format!(
            "the agent of node {node:?} says that it is at {endpoint}, which is no internal address of that node; retry"
        );
        Err(Refusal::new(Kind::ServiceUnavailable, message))
    }
}

/// Whether it is an internal address of `node`.
fn is_of(address: IpAddr, node: &Node) -> bool {
    let status = node.status.as_ref();
    let addresses = status.and_then(|status| status.addresses.as_deref());
    addresses.unwrap_or_default().iter().any(|one| {
        one.type_ == "InternalIP"
            && one
                .address
                .parse::<IpAddr>()
                .is_ok_and(|one| one == address)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn placed(status: &Value, deed: Deed) -> Result<Place, Refusal> {
        let sandbox = json!({
            "apiVersion": "cloche.dev/v1alpha1", "kind": "Sandbox",
            "metadata": {"name": "demo", "namespace": "team", "uid": "u"},
            "spec": {"image": "python"}, "status": status,
        });
        place(
            &serde_json::from_value(sandbox).unwrap(),
            "team",
            "demo",
            deed,
        )
    }

    #[test]
    fn an_agent_is_at_an_address_of_its_node() {
        let node = serde_json::from_value(json!({"metadata": {"name": "one"}, "status": {"addresses": [
            {"type": "Hostname", "address": "10.0.0.2"}, {"type": "InternalIP", "address": "10.0.0.1"},
            {"type": "InternalIP", "address": "fd00::1"},
        ]}}))
        .unwrap();
        for (address, is_its) in [
            ("10.0.0.1", true),
            ("fd00:0::1", true),
            ("10.0.0.2", false),
            ("127.0.0.1", false),
            ("169.254.169.254", false),
        ] {
            assert_eq!(is_of(address.parse().unwrap(), &node), is_its, "{address}");
        }
        assert!(!is_of("10.0.0.1".parse().unwrap(), &Node::default()));
    }

    fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
        json!({"type": kind, "status": status, "reason": reason, "message": message,
               "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    #[test]
    fn a_sandbox_that_runs_is_where_its_node_is() {
        let running = json!({"phase": "Running", "nodeName": "one"});
        for deed in [Deed::Exec, Deed::Attach, Deed::Log] {
            let place = placed(&running, deed).unwrap();
            assert_eq!((&*place.node, &*place.uid), ("one", "u"));
        }
        // Not to be told from here: the agent knows.
        let newer = json!({"phase": "Hibernating", "nodeName": "one"});
        assert!(placed(&newer, Deed::Exec).is_ok());
    }

    #[test]
    fn what_does_not_run_yet_says_what_it_waits_for() {
        let unbound = json!({"phase": "Pending", "conditions": [
            condition("Scheduled", "False", "Unschedulable", "no node has 4 cores")]});
        let refusal = placed(&unbound, Deed::Exec).unwrap_err();
        assert_eq!(refusal.kind, Kind::Conflict);
        assert_eq!(
            refusal.message,
            "sandbox \"demo\" is not bound to a node yet (Scheduled: Unschedulable: no node has 4 cores)"
        );
        let pulling = json!({"phase": "Starting", "nodeName": "one", "conditions": [
            condition("Scheduled", "True", "Bound", ""), condition("ImageReady", "False", "Pulling", "3 of 9 MB"),
            condition("Ready", "False", "Waiting", "")]});
        assert_eq!(
            placed(&pulling, Deed::Log).unwrap_err().message,
            "sandbox \"demo\" is Starting, wait for its condition Ready (ImageReady: Pulling: 3 of 9 MB)"
        );
        assert!(placed(&Value::Null, Deed::Exec).is_err());
    }

    #[test]
    fn what_has_ended_runs_nothing_more_but_can_be_read() {
        let ended = |node: Option<&str>| {
            json!({"phase": "Failed", "nodeName": node, "termination":
                {"reason": "OOMKilled", "failureDomain": "Workload", "message": "over 64Mi"}})
        };
        assert_eq!(
            placed(&ended(Some("one")), Deed::Exec).unwrap_err().message,
            "sandbox \"demo\" has ended: OOMKilled: over 64Mi"
        );
        assert!(placed(&ended(Some("one")), Deed::Log).is_ok());
        assert!(placed(&ended(Some("one")), Deed::Attach).is_ok());
        assert_eq!(
            placed(&ended(None), Deed::Log).unwrap_err().kind,
            Kind::Conflict
        );
    }
}
