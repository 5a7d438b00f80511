//! Cloche taken out of a cluster, and put in again.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::cluster::NAMESPACE;
use cloche_e2e::deadline::until;
use cloche_e2e::helm::{self, Release};

use crate::scene;

/// Sandboxes that are left when it is uninstalled.
const LEFT: usize = 10;
/// How long pods may take to leave: a gateway's has 45 s.
const LEAVE: Duration = Duration::from_mins(1);
/// What the charts make that is in no namespace, but for CRDs and the `APIService`.
const CLUSTER_WIDE: &str = "clusterroles,clusterrolebindings,validatingadmissionpolicies,\
    validatingadmissionpolicybindings,flowschemas,prioritylevelconfigurations,apiservices";

#[tokio::test]
async fn an_uninstall_leaves_nothing_and_can_be_undone() {
    helm::run(async |release| {
        let names: Vec<String> = (0..LEFT).map(|number| format!("left-{number}")).collect();
        let manifests: Vec<String> = names.iter().map(|name| scene::manifest(name)).collect();
        release.apply(&manifests.join("\n---\n")).await?;
        for name in &names {
            release.wait_ready(name).await?;
        }
        release.helm("uninstall", &[]).await?;
        nothing(release).await?;
        release.helm_text(&["uninstall", "cloche-crds"]).await?;

        release.install().await?;
        scene::start(release, "again").await?;
        let told = release.exec_text("again", &["echo", "here"]).await?;
        ensure!(told == "here\n", "{told:?}");
        Ok(())
    })
    .await
    .unwrap();
}

/// No object of ours, no process, no namespace that cannot go.
async fn nothing(release: &Release) -> Result<()> {
    let objects = release
        .kubectl_text(&["get", "sandboxes,sandboxnodes", "-A", "-o", "name"])
        .await?;
    ensure!(objects.is_empty(), "left: {objects}");
    let labelled = ["-l", "app.kubernetes.io/name=cloche", "-o", "name"];
    let wide = [["get", CLUSTER_WIDE].as_slice(), &labelled].concat();
    let wide = release.kubectl_text(&wide).await?;
    ensure!(wide.is_empty(), "left: {wide}");
    // A gateway that is told to stop serves for a while.
    let last = RefCell::new(String::new());
    let gone = until(LEAVE, "nothing of its own is left", async || {
        let own = ["get", "leases,pods,jobs,secrets", "-o", "name"];
        last.replace(release.own(&own).await?);
        Ok(last.borrow().is_empty().then_some(()))
    });
    gone.await
        .with_context(|| format!("left: {}", last.borrow()))?;
    let services = release
        .kubectl_text(&["get", "apiservices", "-o", "name"])
        .await?;
    ensure!(!services.contains("subresources.cloche.dev"), "{services}");
    release.gone().await?;
    // An APIService without a server would keep every namespace.
    release
        .kubectl_text(&["delete", "namespace", NAMESPACE, "--timeout=60s"])
        .await
        .map(drop)
}
