//! Agents that are replaced, kept away and broken, while sandboxes run and a command talks.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::Phase;
use cloche_crds::cluster::LEASE_SECONDS;
use cloche_e2e::cluster::condition;
use cloche_e2e::deadline::until;
use cloche_e2e::helm::{self, Release};
use cloche_e2e::random::scale;
use tokio::time::Instant;

use crate::scene::{self, Talk};

const LIMIT: Duration = Duration::from_mins(2);
/// How long agents are away, times `CLOCHE_SCALE`, and no less than [`SHORT`].
const AWAY: f64 = 120.0;
const SHORT: f64 = 15.0;
/// How long after its end a Lease may count.
const MARGIN: Duration = Duration::from_secs(20);
/// A file that a sandbox which was started anew would not have.
const MARK: &str = "/mark";

#[tokio::test]
async fn a_replaced_agent_is_a_pause() {
    helm::run(async |release| {
        scene::start(release, "stays").await?;
        release.exec_text("stays", &["touch", MARK]).await?;
        let talk = Talk::begin(release, "stays").await?;
        let began = Instant::now();
        let before = release.agents(".metadata.uid").await?;
        release
            .own(&[
                "delete",
                "pods",
                "--selector=app.kubernetes.io/component=agent",
            ])
            .await?;
        release.agents_ready().await?;
        let after = release.agents(".metadata.uid").await?;
        ensure!(before != after, "the pod {before} was not replaced");
        talk.end(release, began.elapsed()).await?;
        is_as_before(release).await
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_agent_that_has_no_node_ends_nothing() {
    helm::run(async |release| {
        let pause = async || {
            release.bar_agents().await?;
            release.agent_gone(1).await
        };
        without_agent(release, pause, async || release.let_agents().await).await
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_image_that_does_not_exist_ends_nothing() {
    helm::run(async |release| {
        let pause = async || {
            let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/cloche");
            let tag = "image.tag=none";
            release
                .helm("upgrade", &[chart, "--reuse-values", "--set", tag])
                .await?;
            release.agent_gone(1).await?;
            let waiting = ".status.containerStatuses[*].state.waiting.reason";
            until(LIMIT, "the image is not found", async || {
                let reason = release.agents(waiting).await?;
                Ok((reason == "ImagePullBackOff").then_some(()))
            })
            .await
        };
        without_agent(release, pause, async || {
            release.helm("rollback", &[]).await.map(drop)
        })
        .await
    })
    .await
    .unwrap();
}

/// A sandbox with a talking command, from `pause`, after which there is no agent, to after `resume`.
async fn without_agent(
    release: &Release,
    pause: impl AsyncFnOnce() -> Result<()>,
    resume: impl AsyncFnOnce() -> Result<()>,
) -> Result<()> {
    scene::start(release, "stays").await?;
    release.exec_text("stays", &["touch", MARK]).await?;
    let talk = Talk::begin(release, "stays").await?;
    let began = Instant::now();
    pause().await?;
    let node = release.node(1)?;
    let before = node.instances()?;
    ensure!(!before.is_empty(), "no sandbox is left");
    let away = Duration::from_secs_f64((AWAY * scale()?).max(SHORT));
    let mut silent = false;
    while began.elapsed() < away {
        silent |= goes_on(release).await?;
        // The absence is what is tested: its length is no condition that could be awaited.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let lease = Duration::from_secs(u64::try_from(LEASE_SECONDS)?);
    ensure!(
        silent || began.elapsed() < lease + MARGIN,
        "nobody told that the agent is silent"
    );
    ensure!(node.instances()? == before, "not {before:?} any more");
    resume().await?;
    release.agents_ready().await?;
    release.wait_ready("stays").await?;
    talk.end(release, began.elapsed()).await?;
    is_as_before(release).await
}

/// The sandbox has not ended; whether its agent counts as silent.
async fn goes_on(release: &Release) -> Result<bool> {
    let object = release.sandboxes().await?.get("stays").await?;
    let ready = condition(&object, "Ready").map(str::to_owned);
    let status = object.status.context("its status")?;
    ensure!(status.phase == Phase::Running, "{status:?}");
    ensure!(status.termination.is_none(), "{status:?}");
    ensure!(ready.as_deref() != Some("False"), "{status:?}");
    Ok(ready.as_deref() == Some("Unknown"))
}

/// The sandbox is Ready and was not started anew.
async fn is_as_before(release: &Release) -> Result<()> {
    release.wait_ready("stays").await?;
    let mark = release.exec_text("stays", &["ls", MARK]).await?;
    ensure!(mark.trim() == MARK, "{mark:?}");
    Ok(())
}
