//! Whose a sandbox is. Pure.

use cloche_crds::Sandbox;

/// Whether `sandbox` is the object of this UID, bound to the node of this name and UID, and neither ended nor going.
pub(super) fn is_of(sandbox: &Sandbox, uid: &str, node: &str, node_uid: &str) -> bool {
    let meta = &sandbox.metadata;
    let is_it = meta.uid.as_deref() == Some(uid) && meta.deletion_timestamp.is_none();
    let is_there = sandbox.status.as_ref().is_some_and(|status| {
        status.termination.is_none()
            && status.node_name.as_deref() == Some(node)
            && status.node_uid.as_deref() == Some(node_uid)
    });
    is_it && is_there
}

#[cfg(test)]
mod tests {
    use cloche_crds::sandbox::Termination;
    use cloche_crds::{FailureDomain, Reason, SandboxSpec, SandboxStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn bound() -> Sandbox {
        let mut sandbox = Sandbox::new("demo", SandboxSpec::default());
        sandbox.metadata.uid = Some("u1".to_owned());
        sandbox.status = Some(SandboxStatus {
            node_name: Some("one".to_owned()),
            node_uid: Some("n1".to_owned()),
            ..SandboxStatus::default()
        });
        sandbox
    }

    #[test]
    fn a_sandbox_is_of_the_node_that_it_is_bound_to() {
        let sandbox = bound();
        assert!(is_of(&sandbox, "u1", "one", "n1"));
        assert!(!is_of(&sandbox, "u2", "one", "n1"), "another object");
        assert!(!is_of(&sandbox, "", "one", "n1"), "no object");
        assert!(!is_of(&sandbox, "u1", "two", "n1"), "another node");
        assert!(
            !is_of(&sandbox, "u1", "one", "n2"),
            "a node that was made anew"
        );
    }

    #[test]
    fn what_is_not_bound_or_has_ended_or_goes_is_of_no_node() {
        let change = |change: fn(&mut Sandbox)| {
            let mut sandbox = bound();
            change(&mut sandbox);
            is_of(&sandbox, "u1", "one", "n1")
        };
        assert!(!change(|sandbox| sandbox.status = None));
        assert!(!change(|sandbox| {
            sandbox.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        }));
        assert!(!change(|sandbox| {
            let status = sandbox.status.as_mut().unwrap();
            status.node_uid = None;
        }));
        assert!(!change(|sandbox| {
            let status = sandbox.status.as_mut().unwrap();
            status.termination = Some(Termination {
                reason: Reason::Completed,
                failure_domain: FailureDomain::Workload,
                message: String::new(),
                exit_code: Some(0),
                signal: None,
                started_at: None,
                finished_at: None,
                peak_memory_bytes: None,
                cpu_seconds: None,
                written_bytes: None,
            });
        }));
    }
}
