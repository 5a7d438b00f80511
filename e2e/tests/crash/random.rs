//! Kills at no particular point, while sandboxes come and go.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_e2e::random::{Random, scaled, seed};
use cloche_e2e::{Agent, trial};
use nix::sys::signal::Signal;

use super::subject::{Images, drop_want, ends, has_ended, stands, stays, want};

/// Longest time from one kill to the next, in microseconds: from the midst of the agent's start to well after it.
const SPAN: u64 = 1_200_000;

/// Whether a sandbox ends by itself.
type Wanted = BTreeMap<String, bool>;

/// One more sandbox, or one less.
fn change(
    agent: &Agent,
    random: &mut Random,
    wanted: &mut Wanted,
    made: &mut usize,
    all: usize,
) -> Result<()> {
    let more = *made < all && (wanted.len() < 4 || random.below(3) > 0);
    if more {
        let name = format!("random-{made}");
        let by_itself = random.below(3) == 0;
        want(agent, &name, &if by_itself { ends() } else { stays() })?;
        wanted.insert(name, by_itself);
        *made += 1;
    } else if let Some(name) = wanted
        .keys()
        .nth(random.below(wanted.len().max(1)))
        .cloned()
    {
        drop_want(agent, &name)?;
        wanted.remove(&name);
    }
    Ok(())
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
    trial::run(options, async |agent| {
        let mut random = Random::new(seed);
        let (mut wanted, mut made) = (Wanted::new(), 0);
        for number in 0..kills {
            while made * kills < all * (number + 1) {
                change(agent, &mut random, &mut wanted, &mut made, all)?;
            }
            let pause = Duration::from_micros(random.number() % SPAN);
            // The time of a kill is what is random here.
            tokio::time::sleep(pause).await;
            if let Some(status) = agent.exited()? {
                anyhow::bail!("the agent ended by itself: {status}");
            }
            // One that is told to stop may be so before it can be told.
            let (signal, stops) = if random.below(5) == 0 {
                (Signal::SIGTERM, true)
            } else {
                (Signal::SIGKILL, false)
            };
            agent.signal(signal)?;
            let status = agent.wait().await?;
            ensure!(
                status.signal() == Some(signal as i32) || stops && status.success(),
                "the agent ended by {status} after {signal}"
            );
            agent.restart_with_fault(None)?;
        }
        agent.serves().await?;
        for (name, by_itself) in &wanted {
            let judged = async {
                if *by_itself {
                    has_ended(agent, name).await
                } else {
                    stands(agent, name).await
                }
            };
            judged
                .await
                .with_context(|| format!("{name}, with the seed {seed}"))?;
        }
        let mut client = agent.client().await?;
        let there = client.list().await?.len();
        println!(
            "{made} made, {} wanted at the end, {there} there",
            wanted.len()
        );
        Ok(())
    })
    .await
    .with_context(|| format!("with CLOCHE_SEED={seed}"))
    .unwrap();
}
