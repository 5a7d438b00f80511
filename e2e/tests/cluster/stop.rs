//! Sandboxes that are stopped and brought back, through the apiserver and the gateway.

use anyhow::{Context as _, Result, ensure};
use cloche_crds::{Phase, Sandbox};
use cloche_e2e::cluster::{self, Cluster};
use serde_json::json;

use crate::scene::{self, LIMIT};

async fn wait_stopped(cluster: &Cluster, name: &str) -> Result<Sandbox> {
    let is_stopped = |object: &Sandbox| {
        let status = object.status.as_ref();
        status.is_some_and(|status| status.phase == Phase::Stopped)
    };
    cluster.wait(name, LIMIT, "it is stopped", is_stopped).await
}

#[tokio::test]
async fn idleness_and_kubectl_stop_and_bring_back() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        let lazy = json!({"lifecycle": {"idleTimeoutSeconds": 1}});
        scene::start(cluster, "lazy", &lazy).await?;
        scene::python(cluster, "lazy", "open('/f', 'w').write('mine')").await?;
        let before = wait_stopped(cluster, "lazy").await?;
        let file = scene::python(cluster, "lazy", "print(open('/f').read())").await?;
        ensure!(file == "mine\n", "{file:?}");
        wait_stopped(cluster, "lazy").await?;

        // As any client of the apiserver does it.
        let patch =
            |desired: &str| json!({"spec": {"lifecycle": {"desiredState": desired}}}).to_string();
        scene::start(cluster, "told", &json!({})).await?;
        scene::python(cluster, "told", "open('/g', 'w').write('too')").await?;
        let merge = async |desired: &str| {
            let patch = patch(desired);
            let words = ["patch", "sbx", "told", "--type=merge", "-p", &patch];
            cluster.plane.kubectl_text(&words).await
        };
        merge("Stopped").await?;
        wait_stopped(cluster, "told").await?;
        let listed = cluster.plane.kubectl_text(&["get", "sbx", "told"]).await?;
        ensure!(listed.contains("Stopped"), "{listed}");
        let refused = cluster.sandbox(&["exec", "told", "--", "true"]).await?;
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(
            !refused.status.success() && why.contains("is stopped"),
            "{refused:?}"
        );
        merge("Running").await?;
        cluster.wait_ready("told").await?;
        let file = scene::python(cluster, "told", "print(open('/g').read())").await?;
        ensure!(file == "too\n", "{file:?}");

        let started = |object: &Sandbox| object.status.as_ref()?.started_at.clone();
        let after = wait_stopped(cluster, "lazy").await?;
        ensure!(started(&before).is_some() && started(&before) == started(&after));
        let uid = after.metadata.uid.context("its UID")?;
        cluster
            .plane
            .kubectl_text(&["delete", "sbx", "lazy", "told"])
            .await?;
        let record = cluster.agents[0].state().join("sandboxes").join(uid);
        ensure!(!record.exists(), "its record is left");
        Ok(())
    })
    .await
    .unwrap();
}
