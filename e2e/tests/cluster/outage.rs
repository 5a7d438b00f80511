//! The apiserver is away: what happens meanwhile is told afterwards, with the times at which it happened.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::Reason;
use cloche_crds::sandbox::Termination;
use cloche_e2e::cluster::{self, Cluster, condition};
use jiff::Timestamp;
use serde_json::json;

use crate::scene;

const LIMIT: Duration = Duration::from_mins(2);
/// How long it is away, times `CLOCHE_SCALE`, and no less than 6 s.
const AWAY: f64 = 60.0;
const TTL: i64 = 5;

#[tokio::test]
async fn limits_hold_and_ends_are_dated_without_an_apiserver() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        let short = json!({"lifecycle": {"ttlSeconds": TTL, "terminationGracePeriodSeconds": 1}});
        scene::start(cluster, "hungry", &json!({})).await?;
        scene::start(cluster, "short", &short).await?;
        let away = Timestamp::now();
        cluster.plane.kill("kube-apiserver").await?;

        let agent = &cluster.agents[0];
        let eat = ["exec", "hungry", "--", "python3", "-c", "b'x' * 10**9"];
        agent.kubectl(&eat).await?;
        agent.wait_finished("hungry", LIMIT).await?;
        agent.wait_finished("short", LIMIT).await?;
        let scale = cloche_e2e::random::scale()?;
        let patience = Duration::from_secs_f64((AWAY * scale).max(6.0));
        // The outage is what is tested: its length is no condition that could be awaited.
        let gone = Duration::try_from(Timestamp::now().duration_since(away))?;
        tokio::time::sleep(patience.saturating_sub(gone)).await;
        let back = Timestamp::now();
        cluster.plane.restore().await?;
        cluster.operator.revive()?;

        let oom = end(cluster, "hungry").await?;
        ensure!(oom.reason == Reason::OOMKilled, "{oom:?}");
        let expired = end(cluster, "short").await?;
        ensure!(expired.reason == Reason::DeadlineExceeded, "{expired:?}");
        for termination in [&oom, &expired] {
            let at = termination.finished_at.as_ref().context("a time")?.0;
            // It is told to the second.
            ensure!(
                away.as_second() <= at.as_second() && at < back,
                "{at} is not between {away} and {back}"
            );
        }
        let (from, to) = (&expired.started_at, &expired.finished_at);
        let (from, to) = (
            from.as_ref().context("a start")?.0,
            to.as_ref().context("an end")?.0,
        );
        let lived = to.duration_since(from).as_secs_f64();
        ensure!((5.0..8.0).contains(&lived), "it lived for {lived} s");
        Ok(())
    })
    .await
    .unwrap();
}

async fn end(cluster: &Cluster, name: &str) -> Result<Termination> {
    let ended = cluster
        .wait(name, LIMIT, "its end is told", |object| {
            condition(object, "Finished") == Some("True")
        })
        .await?;
    let status = ended.status.context("its status")?;
    status.termination.context("its end")
}
