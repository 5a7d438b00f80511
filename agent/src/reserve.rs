//! `cloche-agent reserve`: the pod that holds a node's budget for sandboxes. What it requests, the scheduler of Kubernetes gives to nobody
//! else; it uses nothing of it.

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

/// Does nothing until SIGTERM or SIGINT. The first process of a pod is not ended by them unless it listens.
pub async fn run() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("handle SIGINT")?;
    tokio::select! {
        // Cancel safe: each only waits.
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
