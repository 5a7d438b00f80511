//! Agents, operator and gateway killed at no particular point, while sandboxes come and go and a command talks.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cloche_e2e::cluster::{self, Cluster};
use cloche_e2e::deadline::{until, within};
use cloche_e2e::random::{Random, scaled, seed};
use cloche_e2e::subject::{Images, ends, stays};
use cloche_e2e::talk;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::marked::{drop_want, has_ended, stands, want};
use crate::scene::LIMIT;

/// Longest time from one kill to the next, in microseconds: from the midst of a part's start to well after it.
const SPAN: u64 = 1_500_000;
const NODES: u8 = 2;

/// Whether a sandbox ends by itself.
type Wanted = BTreeMap<String, bool>;

/// One more sandbox, or one less.
async fn change(
    cluster: &Cluster,
    random: &mut Random,
    wanted: &mut Wanted,
    made: &mut usize,
    all: usize,
) -> Result<()> {
    let more = *made < all && (wanted.len() < 4 || random.below(3) > 0);
    if more {
        let name = format!("random-{made}");
        let by_itself = random.below(3) == 0;
        want(cluster, &name, &if by_itself { ends() } else { stays() }).await?;
        wanted.insert(name, by_itself);
        *made += 1;
    } else if let Some(name) = wanted
        .keys()
        .nth(random.below(wanted.len().max(1)))
        .cloned()
    {
        drop_want(cluster, &name).await?;
        wanted.remove(&name);
    }
    Ok(())
}

/// Kills one part and starts it again, without waiting until it serves. Agents are killed most often.
async fn kill_one(cluster: &mut Cluster, random: &mut Random) -> Result<()> {
    match random.below(6) {
        0 => {
            cluster.operator.check()?;
            cluster.operator.kill().await?;
            cluster.operator.start()
        }
        1 => {
            cluster.gateway.check()?;
            cluster.gateway.kill().await?;
            cluster.gateway.start()
        }
        _ => {
            let agent = &mut cluster.agents[random.below(usize::from(NODES))];
            if let Some(status) = agent.exited()? {
                bail!("an agent ended by itself: {status}");
            }
            let signal = if random.below(5) == 0 {
                Signal::SIGTERM
            } else {
                Signal::SIGKILL
            };
            agent.signal(signal)?;
            agent.wait().await?;
            agent.restart_with_fault(None)
        }
    }
}

#[tokio::test]
async fn random_kills() {
    let (kills, all) = (scaled(100, 10).unwrap(), scaled(50, 8).unwrap());
    let seed = seed().unwrap();
    println!("CLOCHE_SEED={seed}: {kills} kills, {all} sandboxes");
    let images = Images::busybox().unwrap();
    let options = images
        .options()
        .pool("cpu=1,memory=64Mi,created=1,started=1");
    let whole = cluster::run(NODES, options, async |cluster| {
        want(cluster, "talks", &json!({})).await?;
        cluster.wait_ready("talks").await?;
        let client = cluster.spawn_sandbox(&["exec", "talks", "--", "sh", "-c", talk::COMMAND])?;
        let mut random = Random::new(seed);
        let (mut wanted, mut made) = (Wanted::new(), 0);
        for number in 0..kills {
            while made * kills < all * (number + 1) {
                change(cluster, &mut random, &mut wanted, &mut made, all).await?;
            }
            // The time of a kill is what is random here.
            tokio::time::sleep(Duration::from_micros(random.number() % SPAN)).await;
            kill_one(cluster, &mut random).await?;
        }
        cluster.ready().await?;
        for (name, by_itself) in &wanted {
            if *by_itself {
                has_ended(cluster, name).await?;
            } else {
                stands(cluster, name).await?;
            }
        }
        let told = until(LIMIT, "the talking command is told to stop", async || {
            let told = cluster
                .sandbox(&["exec", "talks", "--", "touch", talk::STOP])
                .await?;
            Ok(told.status.success().then_some(()))
        });
        told.await?;
        let ended = within(LIMIT, "the talking command's client ends", async {
            client.wait_with_output().await.context("wait for a client")
        });
        talk::whole(&ended.await?)?;
        println!("{made} made, {} wanted at the end", wanted.len());
        Ok(())
    });
    Box::pin(whole)
        .await
        .with_context(|| format!("with CLOCHE_SEED={seed}"))
        .unwrap();
}
