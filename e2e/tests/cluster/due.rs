//! What a spec says is to happen after a time: an end for what no node takes, and the deletion of what has ended.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::{FailureDomain, Phase, Reason};
use cloche_e2e::cluster::{self, Cluster, condition};
use cloche_e2e::deadline::until;
use jiff::SignedDuration;
use kube::api::DeleteParams;
use serde_json::json;

use crate::scene;

const LIMIT: Duration = Duration::from_mins(1);

#[tokio::test]
async fn what_waits_too_long_ends_and_what_ended_long_ago_goes() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        unschedulable(cluster).await?;
        finished(cluster).await
    })
    .await
    .unwrap();
}

/// Ended by the operator, which is killed meanwhile, not before its time, with everything that an end tells.
async fn unschedulable(cluster: &mut Cluster) -> Result<()> {
    let nowhere =
        json!({"nodeSelector": {"disk": "none"}, "lifecycle": {"scheduleTimeoutSeconds": 4}});
    cluster
        .apply(&scene::manifest("default", "nowhere", &nowhere))
        .await?;
    cluster
        .wait("nowhere", LIMIT, "it is told why it waits", |object| {
            condition(object, "Scheduled") == Some("False")
        })
        .await?;
    cluster.operator.kill().await?;
    cluster.operator.start()?;
    let ended = cluster
        .wait("nowhere", LIMIT, "it ends", |object| {
            condition(object, "Finished") == Some("True")
        })
        .await?;
    ensure!(
        condition(&ended, "Stalled") == Some("True") && condition(&ended, "Ready") == Some("False")
    );
    let created = ended.metadata.creation_timestamp.context("its creation")?;
    let status = ended.status.context("its status")?;
    let end = status.termination.context("its end")?;
    ensure!(
        status.phase == Phase::Failed && status.node_name.is_none(),
        "{end:?}"
    );
    ensure!(end.reason == Reason::Unschedulable, "{end:?}");
    ensure!(
        end.failure_domain == FailureDomain::Infrastructure,
        "{end:?}"
    );
    ensure!(end.message.contains("1 not selected"), "{end:?}");
    let finished = end.finished_at.clone().context("when it ended")?;
    ensure!(
        finished.0.duration_since(created.0) >= SignedDuration::from_secs(4),
        "{finished:?}"
    );
    ensure!(
        end.started_at.is_none() && end.exit_code.is_none(),
        "{end:?}"
    );
    let told = until(LIMIT, "its end is an event", async || {
        let told = scene::events(cluster, "nowhere").await?;
        Ok((!told.is_empty()).then_some(told))
    })
    .await?;
    ensure!(
        told.len() == 1 && told[0].reason.as_deref() == Some("Unschedulable"),
        "{told:?}"
    );
    delete(cluster, "nowhere").await
}

/// One that ran and one that never did.
async fn finished(cluster: &mut Cluster) -> Result<()> {
    let short = json!({
        "command": ["python3", "-c", "print('done')"],
        "lifecycle": {"ttlSecondsAfterFinished": 3},
    });
    let never = json!({
        "nodeSelector": {"disk": "none"},
        "lifecycle": {"scheduleTimeoutSeconds": 1, "ttlSecondsAfterFinished": 1},
    });
    let kept = json!({"command": ["python3", "-c", "print('kept')"]});
    for (name, spec) in [("short", &short), ("never", &never), ("kept", &kept)] {
        cluster
            .apply(&scene::manifest("default", name, spec))
            .await?;
    }
    let ended = cluster
        .wait("short", LIMIT, "it ends", |object| {
            condition(object, "Finished") == Some("True")
        })
        .await?;
    let end = ended
        .status
        .and_then(|status| status.termination)
        .context("its end")?;
    ensure!(end.reason == Reason::Completed, "{end:?}");
    // Gone on the node, too, as the audit at the end finds.
    cluster.wait_gone("short").await?;
    cluster.wait_gone("never").await?;
    let kept = cluster
        .wait("kept", LIMIT, "it ends", |object| {
            condition(object, "Finished") == Some("True")
        })
        .await?;
    ensure!(kept.metadata.deletion_timestamp.is_none());
    delete(cluster, "kept").await
}

async fn delete(cluster: &Cluster, name: &str) -> Result<()> {
    let sandboxes = cluster.sandboxes().await?;
    sandboxes.delete(name, &DeleteParams::default()).await?;
    cluster.wait_gone(name).await
}
