//! Cloche's processes on the node, found from outside.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use cloche_crds::cluster::NAMESPACE;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::Api;

/// The Lease of the operator that acts, and the beginning of its holder's name: the pod.
const LEASE: &str = "cloche-operator";

/// The rig's node: all of its processes are in this group.
fn group() -> Result<String> {
    Ok(format!("/rig{}/node1", variable("RIG_ID")?))
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set: run this by cargo xtask bench"))
}

/// The node's `/var/lib`.
pub(super) fn var_lib() -> Result<PathBuf> {
    Ok(Path::new(&variable("RIG_RUN")?).join("node1/lib"))
}

/// The agent.
pub(super) fn agent() -> Result<i32> {
    let found = running(|arguments| arguments.starts_with(b"/usr/bin/cloche-agent\0node\0"))?;
    ensure!(found.len() == 1, "{} agents run on the node", found.len());
    Ok(found[0])
}

/// The operator that acts, of all its replicas.
pub(super) async fn operator(client: &Client) -> Result<i32> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let lease = leases
        .get(LEASE)
        .await
        .context("get the operator's Lease")?;
    let holder = lease.spec.and_then(|spec| spec.holder_identity);
    let holder = holder.context("no operator acts")?;
    let pod = pod_of(&holder).with_context(|| format!("an operator is called {holder:?}"))?;
    let wanted = format!("HOSTNAME={pod}");
    let mut found = running(|arguments| arguments.starts_with(b"/usr/bin/cloche-operator\0"))?;
    found.retain(|pid| {
        std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|variables| {
            variables
                .split(|byte| *byte == 0)
                .any(|variable| variable == wanted.as_bytes())
        })
    });
    ensure!(found.len() == 1, "{} processes are {pod}", found.len());
    Ok(found[0])
}

/// The pod's name, of `POD_UNIQUE`.
fn pod_of(holder: &str) -> Option<&str> {
    holder.rsplit_once('_').map(|(pod, _)| pod)
}

/// Processes of the node with such arguments, each followed by a NUL.
fn running(is_wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<i32>> {
    let group = group()?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").context("list processes")? {
        let path = entry.context("list processes")?.path();
        let Some(pid) = path
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok())
        else {
            continue;
        };
        // One that has just ended is none.
        let read = |name: &str| std::fs::read(path.join(name)).unwrap_or_default();
        if is_wanted(&read("cmdline")) && is_in(&String::from_utf8_lossy(&read("cgroup")), &group) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Whether `/proc/PID/cgroup` (`cgroups(7)`) names a group below this one.
fn is_in(groups: &str, group: &str) -> bool {
    groups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .filter_map(|path| path.strip_prefix(group))
        .any(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_compared_by_whole_names() {
        let told = "4:memory:/rig3/node1/kubepods/pod1/x\n0::/\n";
        assert!(is_in(told, "/rig3/node1"));
        assert!(is_in("1:cpu:/rig3/node1\n", "/rig3/node1"));
        assert!(!is_in(told, "/rig3/node"));
        assert!(!is_in(told, "/rig2/node1"));
        assert!(!is_in("", "/rig3/node1"));
    }

    #[test]
    fn a_holder_is_named_after_its_pod() {
        assert_eq!(
            pod_of("cloche-operator-5d-x_00ff"),
            Some("cloche-operator-5d-x")
        );
        assert_eq!(pod_of("cloche-operator"), None);
    }
}
