//! Small sandboxes that say once that they ran, seen through the apiserver.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::{Reason, Sandbox};
use cloche_e2e::cluster::{Cluster, condition};
use cloche_e2e::deadline::until;
use cloche_e2e::subject::{manifest, mark};
use kube::api::{DeleteParams, PostParams};
use serde_json::Value;

/// How long anything of one sandbox may take while parts are killed.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

/// Creates one.
pub(crate) async fn want(cluster: &Cluster, name: &str, spec: &Value) -> Result<()> {
    let object: Sandbox = serde_json::from_str(&manifest(name, spec)).context("a manifest")?;
    let created = cluster.sandboxes().await?;
    let created = created.create(&PostParams::default(), &object).await;
    created.with_context(|| format!("create {name}")).map(drop)
}

/// Deletes one, and does not wait until it is gone.
pub(crate) async fn drop_want(cluster: &Cluster, name: &str) -> Result<()> {
    let deleted = cluster.sandboxes().await?;
    let deleted = deleted.delete(name, &DeleteParams::default()).await;
    deleted.with_context(|| format!("delete {name}")).map(drop)
}

/// What one printed.
async fn printed(cluster: &Cluster, name: &str) -> Result<String> {
    let output = cluster.sandbox(&["log", name]).await?;
    ensure!(
        output.status.success(),
        "read the log of {name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).context("read a log as text")
}

/// The sandbox runs, takes commands, and its own command has run exactly once.
pub(crate) async fn stands(cluster: &Cluster, name: &str) -> Result<()> {
    let is_ready = |object: &Sandbox| condition(object, "Ready") == Some("True");
    cluster.wait(name, LIMIT, "it is Ready", is_ready).await?;
    // It is Ready from its command's start on, which says so a little later.
    let text = until(LIMIT, "it says that it ran", async || {
        let text = printed(cluster, name).await?;
        Ok(text.contains('\n').then_some(text))
    })
    .await?;
    let mark = mark(&text, "").with_context(|| format!("what {name} printed"))?;
    let output = cluster
        .sandbox(&["exec", name, "--", "cat", "/ran"])
        .await?;
    ensure!(
        output.status.success() && output.stdout == format!("{mark}\n").as_bytes(),
        "{name} printed {mark:?} and wrote {output:?}"
    );
    Ok(())
}

/// The sandbox has ended as its command did, with 7, which has run exactly once.
pub(crate) async fn has_ended(cluster: &Cluster, name: &str) -> Result<()> {
    let has_ended = |object: &Sandbox| condition(object, "Finished") == Some("True");
    let object = cluster.wait(name, LIMIT, "it ends", has_ended).await?;
    let status = object.status.context("its status")?;
    let end = status.termination.context("its end")?;
    ensure!(
        end.reason == Reason::Error && end.exit_code == Some(7),
        "it should have ended by itself with 7: {end:?}"
    );
    let text = printed(cluster, name).await?;
    mark(&text, "")
        .with_context(|| format!("what {name} printed"))
        .map(drop)
}
