//! The fixture with a real agent and no sandbox: kills, restarts, faults, and an audit that sees the pool.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_e2e::audit::{self, Ledger, World};
use cloche_e2e::deadline::until;
use cloche_e2e::{Agent, Options, trial};

const LIMIT: Duration = Duration::from_secs(30);

/// Waits until the pool is full, and gives the names of its instances.
async fn pool(agent: &Agent, size: usize) -> Result<Vec<String>> {
    until(LIMIT, "the pool is full", async || {
        let ledger = Ledger::read(&agent.state())?;
        let world = World::see(agent)?;
        let full = ledger.made.len() == size && world.groups.len() == size;
        Ok(full.then(|| ledger.made.into_iter().collect()))
    })
    .await
}

#[tokio::test]
async fn a_killed_agents_pool_is_not_left() {
    let options = Options::default().pool("cpu=1,memory=64Mi,created=1,started=1");
    trial::run(options, async |agent| {
        let first = pool(agent, 2).await?;
        audit::idle(agent).await?;
        agent.kill().await?;
        ensure!(!agent.is_started());
        let left = World::see(agent)?;
        ensure!(!left.processes.is_empty(), "sentries outlive the agent");
        ensure!(
            audit::judge_stopped(&left, &Ledger::read(&agent.state())?).len() > 2,
            "and the audit sees them"
        );
        agent.restart().await?;
        let second = pool(agent, 2).await?;
        // Whether they were adopted or made anew is the agent's affair; the audit after this says that nothing else is left.
        ensure!(second.len() == first.len());
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn the_programs_meet() {
    trial::run(Options::default(), async |agent| {
        let listed = agent.kubectl(&["ls"]).await?;
        ensure!(listed.status.success(), "{listed:?}");
        ensure!(listed.stderr == b"No sandboxes found.\n", "{listed:?}");
        let refused = agent.client().await?.try_apply("{kind: Sandbox}").await;
        let status = refused
            .err()
            .context("a manifest without a name was taken")?;
        ensure!(status.code() == tonic::Code::InvalidArgument, "{status:?}");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_body_that_fails_or_panics_is_an_error_and_is_taken_down() {
    let mut places = Vec::new();
    let failed = trial::run(Options::default(), async |agent| {
        places.push((agent.scratch().to_owned(), agent.run().to_owned()));
        anyhow::bail!("on purpose")
    })
    .await;
    assert_eq!(failed.unwrap_err().to_string(), "on purpose");
    let panicked = trial::run(Options::default(), async |agent| {
        places.push((agent.scratch().to_owned(), agent.run().to_owned()));
        panic!("on purpose")
    })
    .await;
    assert_eq!(
        panicked.unwrap_err().to_string(),
        "the test panicked: on purpose"
    );
    assert!(
        places
            .iter()
            .all(|(root, run)| !root.exists() && !run.exists())
    );
}
