//! Small sandboxes that say once that they ran, seen through the apiserver.

use anyhow::{Context as _, Result, ensure};
use cloche_crds::{Reason, Sandbox};
use cloche_e2e::cluster::{Cluster, condition};
use cloche_e2e::subject::{manifest, mark};
use kube::api::{DeleteParams, PostParams};
use serde_json::Value;

use crate::scene::{LIMIT, first_words, printed};

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

/// The sandbox runs, takes commands, and its own command has run exactly once.
pub(crate) async fn stands(cluster: &Cluster, name: &str) -> Result<()> {
    let is_ready = |object: &Sandbox| condition(object, "Ready") == Some("True");
    cluster.wait(name, LIMIT, "it is Ready", is_ready).await?;
    let text = first_words(cluster, name).await?;
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
