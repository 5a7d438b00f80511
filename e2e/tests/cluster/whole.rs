//! One life, from the user's apply to the end of the object.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cloche_crds::cluster::FINALIZER;
use cloche_crds::{Phase, Reason};
use cloche_e2e::cluster::{self, Cluster, condition};
use cloche_e2e::deadline::until;
use kube::api::DeleteParams;
use serde_json::json;

use crate::scene;

const LIMIT: Duration = Duration::from_mins(1);

#[tokio::test]
async fn a_sandbox_lives_and_leaves_nothing() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        warm(cluster).await?;
        let before = writes(cluster).await?;
        scene::start(cluster, "one", &json!({})).await?;
        let object = cluster.sandboxes().await?.get("one").await?;
        ensure!(object.metadata.finalizers == Some(vec![FINALIZER.to_owned()]));
        let status = object.status.as_ref().context("its status")?;
        ensure!(status.node_name.as_deref() == Some("node1"), "{status:?}");
        ensure!(status.phase == Phase::Running, "{status:?}");
        ensure!(
            condition(&object, "Scheduled") == Some("True"),
            "{status:?}"
        );
        ensure!(
            condition(&object, "ImageReady") == Some("True"),
            "{status:?}"
        );

        let program = "import sys; print(6 * 7); print('told', file=sys.stderr); sys.exit(3)";
        let output = cluster
            .sandbox(&["exec", "one", "--", "python3", "-c", program])
            .await?;
        ensure!(output.status.code() == Some(3), "{output:?}");
        ensure!(output.stdout == b"42\n", "{output:?}");
        ensure!(output.stderr == b"told\n", "{output:?}");

        cluster
            .plane
            .kubectl_text(&["delete", "sbx", "one", "--timeout=60s"])
            .await?;
        cluster.wait_gone("one").await?;
        // Finalizer, binding, Running, the finalizer's removal: the end of a sandbox whose object is being deleted is told by that.
        let made = writes(cluster).await? - before;
        ensure!(made <= 5, "{made} writes");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_end_is_told_with_its_reason_and_code() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        warm(cluster).await?;
        let before = writes(cluster).await?;
        let more = json!({"command": ["python3", "-c", "print('done'); raise SystemExit(4)"]});
        cluster
            .apply(&scene::manifest("default", "ends", &more))
            .await?;
        let ended = cluster
            .wait("ends", LIMIT, "it has ended", |object| {
                condition(object, "Finished") == Some("True")
            })
            .await?;
        let status = ended.status.as_ref().context("its status")?;
        let end = status.termination.as_ref().context("its end")?;
        ensure!(end.reason == Reason::Error, "{end:?}");
        ensure!(end.exit_code == Some(4), "{end:?}");
        ensure!(status.phase == Phase::Failed, "{status:?}");
        ensure!(condition(&ended, "Ready") == Some("False"), "{status:?}");
        let log = cluster.sandbox(&["log", "ends"]).await?;
        ensure!(log.stdout == b"done\n", "{log:?}");
        cluster
            .sandboxes()
            .await?
            .delete("ends", &DeleteParams::default())
            .await?;
        cluster.wait_gone("ends").await?;
        // Finalizer, binding, Running, the end, the finalizer's removal.
        let made = writes(cluster).await? - before;
        ensure!(made <= 5, "{made} writes");
        Ok(())
    })
    .await
    .unwrap();
}

/// What nobody asked for is told as an event, once; what is as it was asked for is not.
#[tokio::test]
async fn an_abnormal_end_is_an_event() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        let program = |text: &str| json!({"command": ["python3", "-c", text]});
        let hog = program("x = b'x' * (1 << 30)");
        for (name, spec) in [("fine", program("print('done')")), ("hog", hog)] {
            let manifest = scene::manifest("default", name, &spec);
            cluster.apply(&manifest).await?;
            cluster
                .wait(name, LIMIT, "it has ended", |object| {
                    condition(object, "Finished") == Some("True")
                })
                .await?;
        }
        let told = until(LIMIT, "its end is an event", async || {
            let told = scene::events(cluster, "hog").await?;
            Ok((!told.is_empty()).then_some(told))
        })
        .await?;
        let [event] = &told[..] else {
            bail!("{told:?}");
        };
        let hog = cluster.sandboxes().await?.get("hog").await?;
        let end = hog.status.and_then(|status| status.termination);
        let end = end.context("its end")?;
        ensure!(end.reason == Reason::OOMKilled, "{end:?}");
        ensure!(
            event.type_.as_deref() == Some("Warning")
                && event.reason.as_deref() == Some("OOMKilled")
                && event.note.as_deref() == Some(&end.message)
                && event.reporting_instance.as_deref() == Some("node1"),
            "{event:?}"
        );
        let described = cluster.sandbox(&["describe", "hog"]).await?;
        let described = String::from_utf8_lossy(&described.stdout).into_owned();
        ensure!(described.contains("cloche.dev/agent"), "{described}");
        let quiet = scene::events(cluster, "fine").await?;
        ensure!(quiet.is_empty(), "{quiet:?}");
        Ok(())
    })
    .await
    .unwrap();
}

/// Puts the image on the node: a start that takes longer than a second is told once more.
async fn warm(cluster: &Cluster) -> Result<()> {
    scene::start(cluster, "warm", &json!({})).await
}

/// Writes to Sandbox objects by anybody but users, by the apiserver's own count: patches and updates of the object and its status.
async fn writes(cluster: &Cluster) -> Result<u64> {
    let metrics = cluster
        .plane
        .kubectl_text(&["get", "--raw", "/metrics"])
        .await?;
    let lines = metrics.lines().filter(|line| {
        line.starts_with("apiserver_request_total{")
            && line.contains("resource=\"sandboxes\"")
            && ["PATCH", "PUT", "APPLY"]
                .iter()
                .any(|verb| line.contains(&format!("verb=\"{verb}\"")))
    });
    let mut sum = 0;
    for line in lines {
        let count = line.rsplit(' ').next().context("a count")?;
        sum += count.parse::<u64>().with_context(|| line.to_owned())?;
    }
    Ok(sum)
}
