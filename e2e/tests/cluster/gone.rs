//! Nodes and namespaces that go.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::cluster::NAMESPACE;
use cloche_crds::{Phase, Reason, SandboxNode};
use cloche_e2e::Options;
use cloche_e2e::cluster::{self, Cluster, condition};
use cloche_e2e::deadline::until;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::scene;

const LIMIT: Duration = Duration::from_mins(2);

/// The Node object is deleted: its sandbox is lost, and an agent that is still there does not go on with it.
#[tokio::test]
async fn a_deleted_node_loses_its_sandboxes() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        scene::start(cluster, "lost", &json!({})).await?;
        let nodes: Api<Node> = Api::all(cluster.plane.client().await?);
        nodes.delete("node1", &DeleteParams::default()).await?;
        let lost = cluster
            .wait("lost", LIMIT, "it is lost", |object| {
                condition(object, "Finished") == Some("True")
            })
            .await?;
        let status = lost.status.context("its status")?;
        ensure!(status.phase == Phase::Failed, "{status:?}");
        let end = status.termination.context("its end")?;
        ensure!(end.reason == Reason::NodeLost, "{end:?}");
        // Without a node nobody else releases it.
        cluster
            .sandboxes()
            .await?
            .delete("lost", &DeleteParams::default())
            .await?;
        cluster.wait_gone("lost").await
    })
    .await
    .unwrap();
}

/// A silent agent ends nothing: its sandboxes are Unknown, and Ready again when it is back.
#[tokio::test]
async fn a_silent_agent_ends_nothing() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        scene::start(cluster, "quiet", &json!({})).await?;
        cluster.agents[0].kill().await?;
        let silent = cluster
            .wait("quiet", LIMIT, "its agent counts as silent", |object| {
                condition(object, "Ready") == Some("Unknown")
            })
            .await?;
        let status = silent.status.context("its status")?;
        ensure!(status.phase == Phase::Running, "{status:?}");
        ensure!(status.termination.is_none(), "{status:?}");
        cluster.agents[0].restart().await?;
        cluster.wait_ready("quiet").await?;
        let told = scene::python(cluster, "quiet", "print('here')").await?;
        ensure!(told == "here\n", "{told:?}");
        Ok(())
    })
    .await
    .unwrap();
}

/// While the agent is down, and where no node was ever found: a namespace that is deleted goes, the first when the agent is back.
#[tokio::test]
async fn namespaces_go() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        for namespace in ["bound", "unbound"] {
            cluster
                .plane
                .kubectl_text(&["create", "namespace", namespace])
                .await?;
        }
        cluster
            .apply(&scene::manifest("bound", "one", &json!({})))
            .await?;
        let nowhere = json!({"nodeSelector": {"example.com/none": "such"}});
        cluster
            .apply(&scene::manifest("unbound", "two", &nowhere))
            .await?;
        cluster
            .plane
            .kubectl_text(&[
                "wait",
                "--namespace=bound",
                "--for=condition=Ready",
                "sbx/one",
                "--timeout=60s",
            ])
            .await?;
        cluster
            .plane
            .kubectl_text(&[
                "wait",
                "--namespace=unbound",
                "--for=condition=Scheduled=False",
                "sbx/two",
                "--timeout=60s",
            ])
            .await?;
        cluster.agents[0].kill().await?;
        for namespace in ["bound", "unbound"] {
            cluster
                .plane
                .kubectl_text(&["delete", "namespace", namespace, "--wait=false"])
                .await?;
        }
        namespace_gone(cluster, "unbound").await?;
        cluster.agents[0].restart().await?;
        namespace_gone(cluster, "bound").await
    })
    .await
    .unwrap();
}

/// The pod that holds a node's budget is evicted: what runs there goes on, and nothing new comes.
#[tokio::test]
async fn a_node_without_its_reservation_is_drained() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        scene::start(cluster, "stays", &json!({})).await?;
        let client = cluster.plane.client().await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let name = "cloche-reservation-node1";
        pods.delete(name, &DeleteParams::default()).await?;
        let nodes: Api<SandboxNode> = Api::all(client);
        until(LIMIT, "the node says that it is not reserved", async || {
            let node = nodes.get("node1").await.context("get the sandbox node")?;
            let conditions = node.status.unwrap_or_default().conditions;
            let told = conditions.iter().any(|condition| {
                (condition.status.as_str(), condition.reason.as_str()) == ("False", "NotReserved")
            });
            Ok(told.then_some(()))
        })
        .await?;
        let new = scene::manifest("default", "new", &json!({}));
        cluster.apply(&new).await?;
        cluster
            .wait("new", LIMIT, "it waits for a node", |object| {
                condition(object, "Scheduled") == Some("False")
            })
            .await?;
        let told = scene::python(cluster, "stays", "print('here')").await?;
        ensure!(told == "here\n", "{told:?}");
        Ok(())
    })
    .await
    .unwrap();
}

/// What runs there is told to end and has its time, what is stopped stays so, and nothing new comes until that is taken back.
#[tokio::test]
async fn a_drained_node_ends_what_runs_and_keeps_what_is_stopped() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        let polite = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nprint('ready', flush=True)\ntime.sleep(1000)";
        let own = json!({"command": ["python3", "-c", polite]});
        scene::start(cluster, "runs", &own).await?;
        scene::first_words(cluster, "runs").await?;
        scene::start(cluster, "stopped", &json!({})).await?;
        scene::python(cluster, "stopped", "open('/f', 'w').write('mine')").await?;
        let stopped = cluster.sandbox(&["stop", "stopped"]).await?;
        ensure!(stopped.status.success(), "{stopped:?}");

        let drained = cluster.sandbox(&["drain", "node1"]).await?;
        let told = String::from_utf8_lossy(&drained.stdout).into_owned();
        ensure!(drained.status.success() && told.contains("1 stopped"), "{drained:?}");
        let ended = cluster
            .wait("runs", LIMIT, "its end", |object| condition(object, "Finished") == Some("True"))
            .await?;
        let end = ended.status.and_then(|status| status.termination).context("its end")?;
        ensure!(
            (end.reason, end.exit_code) == (Reason::NodeShutdown, Some(5)),
            "{end:?}"
        );
        cluster.apply(&scene::manifest("default", "new", &json!({}))).await?;
        cluster
            .wait("new", LIMIT, "it waits for a node", |object| {
                condition(object, "Scheduled") == Some("False")
            })
            .await?;
        let start = cluster.sandbox(&["start", "stopped", "--wait=false"]).await?;
        ensure!(start.status.success(), "{start:?}");
        cluster
            .wait("stopped", LIMIT, "it waits for room", |object| {
                scene::message(object, "Ready").contains("waits for room")
            })
            .await?;

        let undone = cluster.sandbox(&["drain", "node1", "--undo"]).await?;
        ensure!(undone.status.success(), "{undone:?}");
        cluster.wait_ready("new").await?;
        cluster.wait_ready("stopped").await?;
        let file = scene::python(cluster, "stopped", "print(open('/f').read())").await?;
        ensure!(file == "mine\n", "{file:?}");
        Ok(())
    })
    .await
    .unwrap();
}

/// A node that was lost comes back with what it ran, and what was bound to it since has the room of that: it waits, and runs.
#[tokio::test]
async fn a_node_that_comes_back_makes_room_first() {
    let options = Options {
        more: ["--cpu-budget", "1"].map(Into::into).to_vec(),
        ..scene::options().unwrap()
    };
    cluster::run(1, options, async |cluster| {
        let most = json!({"resources": {
            "requests": {"cpu": "600m", "memory": "32Mi", "ephemeral-storage": "16Mi"},
            "limits": {"cpu": "1", "memory": "256Mi"},
        }});
        scene::start(cluster, "z-lost", &most).await?;
        cluster.agents[0].kill().await?;
        let taint = "node.kubernetes.io/out-of-service";
        let tainted = format!("{taint}=shutdown:NoExecute");
        cluster
            .plane
            .kubectl_text(&["taint", "node", "node1", &tainted])
            .await?;
        let lost = cluster
            .wait("z-lost", LIMIT, "it is lost", |object| {
                condition(object, "Finished") == Some("True")
            })
            .await?;
        let end = lost.status.and_then(|status| status.termination);
        ensure!(end.context("its end")?.reason == Reason::NodeLost);
        let free = format!("{taint}-");
        cluster
            .plane
            .kubectl_text(&["taint", "node", "node1", &free])
            .await?;
        // Listed before the other one.
        let new = scene::manifest("default", "a-new", &most);
        cluster.apply(&new).await?;
        cluster
            .wait("a-new", LIMIT, "it is bound", |object| {
                condition(object, "Scheduled") == Some("True")
            })
            .await?;
        cluster.agents[0].restart().await?;
        cluster.wait_ready("a-new").await.map(drop)
    })
    .await
    .unwrap();
}

/// Deleted before its node had begun it, and held by somebody else: its end is told all the same, which gives its room back.
#[tokio::test]
async fn what_was_deleted_before_it_began_is_told_to_have_ended() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        cluster.agents[0].kill().await?;
        let mut held: Value =
            serde_json::from_str(&scene::manifest("default", "held", &json!({})))?;
        held["metadata"]["finalizers"] = json!(["example.com/held"]);
        cluster.apply(&held.to_string()).await?;
        cluster
            .wait("held", LIMIT, "it is bound", |object| {
                condition(object, "Scheduled") == Some("True")
            })
            .await?;
        let sandboxes = cluster.sandboxes().await?;
        sandboxes.delete("held", &DeleteParams::default()).await?;
        cluster.agents[0].restart().await?;
        let ended = cluster
            .wait(
                "held",
                LIMIT,
                "its end is told, and it is released",
                |object| {
                    let finalizers = object.metadata.finalizers.as_deref().unwrap_or_default();
                    condition(object, "Finished") == Some("True")
                        && finalizers == ["example.com/held"]
                },
            )
            .await?;
        let status = ended.status.context("its status")?;
        ensure!(status.phase == Phase::Ended, "{status:?}");
        let end = status.termination.context("its end")?;
        ensure!(
            end.reason == Reason::Deleted && end.started_at.is_none(),
            "{end:?}"
        );
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        sandboxes
            .patch("held", &PatchParams::default(), &free)
            .await?;
        cluster.wait_gone("held").await
    })
    .await
    .unwrap();
}

async fn namespace_gone(cluster: &Cluster, name: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(cluster.plane.client().await?);
    until(LIMIT, "the namespace is gone", async || {
        let found = namespaces.get_opt(name).await.context("get a namespace")?;
        Ok(found.is_none().then_some(()))
    })
    .await
}
