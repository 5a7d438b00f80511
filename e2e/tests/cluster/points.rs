//! The agent killed at every named point of its work on objects, and the operator or the gateway with it: all ends up as if nothing had
//! been killed. Of the points a share is drawn ([`scaled`]).

use anyhow::{Context as _, Result};
use cloche_e2e::audit;
use cloche_e2e::cluster::{self, Cluster};
use cloche_e2e::deadline::within;
use cloche_e2e::points::{During, points};
use cloche_e2e::random::{Random, scaled, seed};
use cloche_e2e::subject::{Images, ends, stays};
use kube::api::ListParams;
use tokio::time::Instant;

use crate::marked::{drop_want, has_ended, stands, want};
use crate::scene::LIMIT;

/// Kills at points of `all`, one after the other on the same cluster; `provoke` brings the agent there.
async fn at_points(
    all: &[During],
    provoke: impl AsyncFn(&mut Cluster) -> Result<()>,
    judge: impl AsyncFn(&Cluster) -> Result<()>,
) {
    let seed = seed().unwrap();
    let mut random = Random::new(seed);
    let mut left: Vec<&str> = all.iter().flat_map(|during| points(*during)).collect();
    let count = scaled(left.len(), 3).unwrap();
    println!("CLOCHE_SEED={seed}: {count} of {} points", left.len());
    let images = Images::busybox().unwrap();
    let whole = cluster::run(1, images.options(), async |cluster| {
        for _ in 0..count {
            let point = left.swap_remove(random.below(left.len()));
            let begun = Instant::now();
            let both = if random.below(2) == 0 {
                "operator"
            } else {
                "gateway"
            };
            within(2 * LIMIT, "all recovers", async {
                cluster.agents[0].kill().await?;
                cluster.agents[0].restart_with_fault(Some(point))?;
                provoke(cluster).await?;
                cluster.agents[0].wait_for_fault().await?;
                if both == "operator" {
                    cluster.operator.kill().await?;
                    cluster.operator.start()?;
                } else {
                    cluster.gateway.kill().await?;
                    cluster.gateway.start()?;
                }
                cluster.agents[0].restart().await?;
                judge(cluster).await?;
                for object in cluster
                    .sandboxes()
                    .await?
                    .list(&ListParams::default())
                    .await?
                {
                    let name = object.metadata.name.context("a name")?;
                    drop_want(cluster, &name).await?;
                    cluster.wait_gone(&name).await?;
                }
                audit::idle(&cluster.agents[0]).await
            })
            .await
            .with_context(|| format!("killed at {point}, and the {both}"))?;
            println!("{point}, {both}: {:?}", begun.elapsed());
        }
        Ok(())
    });
    // Large, for its bodies are in it.
    Box::pin(whole)
        .await
        .with_context(|| format!("with CLOCHE_SEED={seed}"))
        .unwrap();
}

#[tokio::test]
async fn killed_during_the_life_of_objects() {
    let provoke = async |cluster: &mut Cluster| {
        want(cluster, "stays", &stays()).await?;
        want(cluster, "ends", &ends()).await
    };
    let judge = async |cluster: &Cluster| {
        stands(cluster, "stays").await?;
        has_ended(cluster, "ends").await
    };
    at_points(&[During::Life, During::Tell], provoke, judge).await;
}

#[tokio::test]
async fn killed_while_an_object_is_deleted() {
    let provoke = async |cluster: &mut Cluster| {
        want(cluster, "stays", &stays()).await?;
        stands(cluster, "stays").await?;
        drop_want(cluster, "stays").await
    };
    let judge = async |cluster: &Cluster| cluster.wait_gone("stays").await;
    at_points(&[During::Delete, During::Release], provoke, judge).await;
}
