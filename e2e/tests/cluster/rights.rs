//! Who may write what: an agent's token speaks for its own node alone.

use std::time::Duration;

use anyhow::{Result, ensure};
use cloche_crds::cluster::{FINALIZER, NAMESPACE};
use cloche_crds::{Sandbox, SandboxNode};
use cloche_e2e::cluster::{self, Cluster};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::scene;

const LIMIT: Duration = Duration::from_mins(1);

/// What the apiserver said: 200, or its refusal.
fn code<T>(answer: Result<T, kube::Error>) -> Result<u16> {
    match answer {
        Ok(_) => Ok(200),
        Err(kube::Error::Api(status)) => Ok(status.code),
        Err(problem) => Err(problem.into()),
    }
}

async fn patch(client: &Client, name: &str, status: bool, body: &Value) -> Result<u16> {
    let sandboxes: Api<Sandbox> = Api::default_namespaced(client.clone());
    let (params, patch) = (PatchParams::default(), Patch::Merge(body));
    if status {
        code(sandboxes.patch_status(name, &params, &patch).await)
    } else {
        code(sandboxes.patch(name, &params, &patch).await)
    }
}

async fn agents(cluster: &Cluster) -> Result<(Client, Client)> {
    Ok((
        cluster.agent_client("node1").await?,
        cluster.agent_client("node2").await?,
    ))
}

#[tokio::test]
async fn an_agent_writes_of_its_own_node_alone() {
    cluster::run(2, scene::options().unwrap(), async |cluster| {
        let (one, two) = agents(cluster).await?;
        scene::start(
            cluster,
            "here",
            &json!({"nodeSelector": {"kubernetes.io/hostname": "node1"}}),
        )
        .await?;
        // Status: its own, not another's; never a binding.
        let told = json!({"status": {"phase": "Running"}});
        ensure!(patch(&one, "here", true, &told).await? == 200);
        ensure!(patch(&two, "here", true, &told).await? == 403);
        let nowhere = json!({"nodeSelector": {"example.com/none": "such"}});
        cluster
            .apply(&scene::manifest("default", "unbound", &nowhere))
            .await?;
        let bind = json!({"status": {"nodeName": "node1", "nodeUID": "x"}});
        ensure!(patch(&one, "unbound", true, &bind).await? == 403);
        // Spec and metadata: nobody's.
        for body in [
            json!({"spec": {"lifecycle": {"ttlSeconds": 5}}}),
            json!({"metadata": {"labels": {"a": "b"}}}),
            json!({"metadata": {"annotations": {"a": "b"}}}),
            json!({"metadata": {"finalizers": []}}),
        ] {
            ensure!(patch(&one, "here", false, &body).await? == 403, "{body}");
            ensure!(patch(&two, "here", false, &body).await? == 403, "{body}");
        }
        // Finalizers: of a sandbox that goes, and only ours. One of ours is put beside, so that the object stays.
        let admin = cluster.plane.client().await?;
        let held = json!({"metadata": {"finalizers": [FINALIZER, "example.com/held"]}});
        ensure!(patch(&admin, "unbound", false, &held).await? == 200);
        let other = json!({"metadata": {"finalizers": []}});
        let sandboxes: Api<Sandbox> = Api::default_namespaced(admin.clone());
        sandboxes
            .delete("unbound", &DeleteParams::default())
            .await?;
        ensure!(patch(&one, "unbound", false, &other).await? == 403);
        ensure!(patch(&admin, "unbound", false, &other).await? == 200);

        other_objects(&one).await
    })
    .await
    .unwrap();
}

/// Everything but sandboxes, with the token of node1.
async fn other_objects(one: &Client) -> Result<()> {
    let (post, merge) = (PostParams::default(), PatchParams::default());
    let nodes: Api<SandboxNode> = Api::all(one.clone());
    let draw = json!({"status": {"endpoint": "192.0.2.1:1"}});
    let drawn = nodes
        .patch_status("node2", &merge, &Patch::Merge(&draw))
        .await;
    ensure!(code(drawn)? == 403);
    ensure!(code(nodes.delete("node2", &DeleteParams::default()).await)? == 403);
    let leases: Api<Lease> = Api::namespaced(one.clone(), NAMESPACE);
    let late = json!({"spec": {"leaseDurationSeconds": 7}});
    ensure!(code(leases.patch("node2", &merge, &Patch::Merge(&late)).await)? == 403);
    ensure!(code(leases.patch("node1", &merge, &Patch::Merge(&late)).await)? == 200);
    ensure!(
        code(
            leases
                .patch("cloche-operator", &merge, &Patch::Merge(&late))
                .await
        )? == 403
    );
    let elsewhere: Api<Lease> = Api::namespaced(one.clone(), "kube-node-lease");
    ensure!(code(elsewhere.patch("node1", &merge, &Patch::Merge(&late)).await)? == 403);
    let secrets: Api<Secret> = Api::all(one.clone());
    ensure!(code(secrets.list(&ListParams::default()).await)? == 403);
    let secret: Api<Secret> = Api::namespaced(one.clone(), NAMESPACE);
    ensure!(code(secret.get("cloche-ca").await)? == 403);
    let maps: Api<ConfigMap> = Api::namespaced(one.clone(), NAMESPACE);
    ensure!(code(maps.list(&ListParams::default()).await)? == 403);
    let pods: Api<Pod> = Api::all(one.clone());
    ensure!(code(pods.list(&ListParams::default()).await)? == 403);
    // Of those of Cloche itself it looks for the one that holds its node's budget.
    let ours: Api<Pod> = Api::namespaced(one.clone(), NAMESPACE);
    ensure!(code(ours.list(&ListParams::default()).await)? == 200);
    let reservation = "cloche-reservation-node1";
    let deleted = ours.delete(reservation, &DeleteParams::default()).await;
    ensure!(code(deleted)? == 403);
    // Events: of sandboxes, and in its own name.
    let events: Api<Event> = Api::default_namespaced(one.clone());
    for (name, kind, node, wanted) in [
        ("fine", "Sandbox", "node1", 200),
        ("of-a-pod", "Pod", "node1", 403),
        ("of-another", "Sandbox", "node2", 403),
    ] {
        let event: Event = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default"},
            "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Warning", "reason": "Forged", "action": "End",
            "regarding": {"kind": kind, "namespace": "default", "name": "here"},
            "reportingController": "cloche.dev/agent", "reportingInstance": node,
        }))?;
        let told = code(events.create(&post, &event).await)?;
        ensure!(told == wanted, "{name}: {told}");
    }
    let deleted = events.delete("fine", &DeleteParams::default()).await;
    ensure!(code(deleted)? == 403);
    let requests: Api<CertificateSigningRequest> = Api::all(one.clone());
    let gateway: CertificateSigningRequest = serde_json::from_value(json!({
        "metadata": {"generateName": "forged-"},
        "spec": {"request": "", "signerName": "cloche.dev/gateway", "usages": ["client auth"]},
    }))?;
    let asked = code(requests.create(&post, &gateway).await)?;
    ensure!(asked == 403 || asked == 422, "{asked}");
    Ok(())
}

/// A user with every right on Sandboxes: the finalizer stays, so that nothing runs without an object, and labels are few.
#[tokio::test]
async fn a_user_makes_no_ghosts() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        let rules = json!({"apiVersion": "v1", "kind": "List", "items": [
            {
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                "metadata": {"name": "owner", "namespace": "default"},
                "rules": [{"apiGroups": ["cloche.dev"], "resources": ["sandboxes"], "verbs": ["*"]}],
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
                "metadata": {"name": "owner", "namespace": "default"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "owner"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}],
            },
        ]});
        cluster.apply(&rules.to_string()).await?;
        let ann = cluster.client_as("ann").await?;
        scene::start(cluster, "mine", &json!({})).await?;
        let label = json!({"metadata": {"labels": {"a": "b"}}});
        ensure!(patch(&ann, "mine", false, &label).await? == 200);
        let bare = json!({"metadata": {"finalizers": []}});
        ensure!(patch(&ann, "mine", false, &bare).await? == 403);
        let many: Value = (0..65).map(|at| (format!("l{at}"), json!("x"))).collect::<serde_json::Map<_, _>>().into();
        let many = json!({"metadata": {"labels": many}});
        ensure!(patch(&ann, "mine", false, &many).await? == 422);
        // Nor while it goes, when somebody else still holds it; then it goes as ever.
        let other = json!({"metadata": {"finalizers": [FINALIZER, "example.com/held"]}});
        ensure!(patch(&ann, "mine", false, &other).await? == 200);
        let sandboxes: Api<Sandbox> = Api::default_namespaced(ann.clone());
        sandboxes.delete("mine", &DeleteParams::default()).await?;
        let taken = patch(&ann, "mine", false, &json!({"metadata": {"finalizers": ["example.com/held"]}})).await?;
        // Unless its agent was quicker.
        let is_gone = sandboxes
            .get("mine")
            .await?
            .metadata
            .finalizers
            .is_none_or(|names| !names.iter().any(|name| name == FINALIZER));
        ensure!(taken == 403 || is_gone, "{taken}");
        cluster
            .wait("mine", LIMIT, "its agent lets go", |object| {
                let names = object.metadata.finalizers.as_deref().unwrap_or_default();
                names == ["example.com/held"]
            })
            .await?;
        ensure!(patch(&ann, "mine", false, &bare).await? == 200);
        cluster.wait_gone("mine").await
    })
    .await
    .unwrap();
}
