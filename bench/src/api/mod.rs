//! A whole Cloche in a cluster, beside ordinary pods of the same cluster: one with runc, one with the `RuntimeClass` gvisor.
//!
//! The cluster is a rig with one node that `cargo xtask bench` has started. All is seen from outside, as a client of the apiserver sees
//! it; only what tells the steps of a start, and the memory of the operator, is looked at on the machine.

mod client;
mod exec;
mod memory;
mod object;
mod process;
mod scene;
mod session;
mod start;
mod watched;

use anyhow::{Context as _, Result};

use crate::figure::Figure;
use scene::Scene;

/// Adds to `figures`; what was measured before a failure stays.
pub(crate) async fn measure(figures: &mut Vec<Figure>) -> Result<()> {
    let mut scene = Scene::open().await.context("find the cluster")?;
    let starts = start::one_by_one(&mut scene).await;
    figures.extend(starts.context("measure starts in a cluster")?);
    let commands = exec::measure(&mut scene).await;
    figures.extend(commands.context("measure commands in a cluster")?);
    let many = start::at_once(&mut scene).await;
    figures.extend(many.context("measure many starts at once in a cluster")?);
    let operator = memory::measure(&mut scene).await;
    figures.extend(operator.context("measure the operator")?);
    Ok(())
}
