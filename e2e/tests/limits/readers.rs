//! Readers that do not read: the agent holds little for each, and has no room for too many.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_e2e::client::key;
use cloche_e2e::deadline::until;
use cloche_e2e::{Agent, trial};
use cloche_proto::agent::v1alpha1::{LogRequest, SessionResponse};
use serde_json::json;
use tonic::{Code, Status, Streaming};

use crate::scene::{self, LIMIT, images, options, output};

/// As many as a sandbox may have open.
const MOST: usize = 320;
/// What the agent may take for one.
const EACH: usize = 768 << 10;

async fn follow(agent: &Agent) -> Result<Result<Streaming<SessionResponse>, Status>> {
    let request = LogRequest {
        key: Some(key("loud")),
        follow: true,
        ..LogRequest::default()
    };
    let mut client = agent.client().await?;
    let answer = client.grpc().log(request).await;
    Ok(answer.map(tonic::Response::into_inner))
}

/// Of the agent's process, in bytes.
fn resident(agent: &Agent) -> Result<usize> {
    let path = format!("/proc/{}/statm", agent.pid()?);
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let pages = text.split(' ').nth(1).context("a second number")?;
    Ok(pages.parse::<usize>().context("read a number of pages")? * 4096)
}

#[tokio::test]
async fn readers_that_do_not_read_cost_little() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        let spec = scene::line(
            "dd if=/dev/zero bs=1M count=16; dd if=/dev/zero bs=1M count=16 >&2; exec sleep 1008",
        );
        scene::run(agent, "loud", spec).await?;
        scene::run(agent, "quiet", json!({})).await?;
        let log = agent.state().join("sandboxes");
        until(LIMIT, "all is printed", async || {
            Ok(kept(&log)?.then_some(()))
        })
        .await?;

        let before = resident(agent)?;
        let mut readers = Vec::new();
        for _ in 0..MOST {
            readers.push(follow(agent).await?.context("a reader was refused")?);
        }
        let refused = follow(agent).await?.err().context("one more was let in")?;
        ensure!(refused.code() == Code::ResourceExhausted, "{refused:?}");
        ensure!(
            refused.message().contains("this sandbox has 320"),
            "{refused:?}"
        );
        // Grown by what they make it hold, and no more.
        let mut last = 0;
        let grown = until(LIMIT, "the agent grows no more", async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = resident(agent)?;
            let stands = now <= last;
            last = now;
            Ok(stands.then_some(now.saturating_sub(before)))
        })
        .await?;
        println!("{MOST} readers: {} KiB each", grown / MOST / 1024);
        ensure!(grown < MOST * EACH, "grown by {grown} bytes");
        ensure!(output(agent, "quiet", "echo here").await? == "here");
        drop(readers);
        until(LIMIT, "there is room again", async || {
            Ok(follow(agent).await?.ok())
        })
        .await
        .map(drop)
    })
    .await
    .unwrap();
}

/// Whether all that was printed is in the log of any sandbox below `folder`.
fn kept(folder: &std::path::Path) -> Result<bool> {
    for entry in std::fs::read_dir(folder).context("list the records")? {
        let path = entry.context("list the records")?.path();
        let log = path.join("sessions/main/stderr");
        // What stands on stderr beside it says so first.
        if std::fs::metadata(log).is_ok_and(|log| log.len() > 16 << 20) {
            return Ok(true);
        }
    }
    Ok(false)
}
