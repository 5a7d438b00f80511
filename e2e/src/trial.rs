//! One test: an agent, a body, and what must hold after every body.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use futures::FutureExt as _;

use crate::agent::{Agent, Options};
use crate::{audit, dump};

/// How long sandboxes may take to be gone after the body.
const REMOVAL: Duration = Duration::from_mins(1);

/// Runs `body` with an agent that serves. After a body that succeeded every sandbox is deleted and the audit must find nothing
/// but the pool, and nothing at all once the agent is stopped. After one that failed, or panicked, everything is dumped on
/// standard error. In every case all is taken down.
pub async fn run(options: Options, body: impl AsyncFnOnce(&mut Agent) -> Result<()>) -> Result<()> {
    let mut agent = Agent::new(options)?;
    let outcome = AssertUnwindSafe(whole(&mut agent, body))
        .catch_unwind()
        .await
        .unwrap_or_else(|panic| Err(anyhow!("the test panicked: {}", words(panic.as_ref()))));
    if let Err(problem) = &outcome {
        dump::dump(&agent, problem).await;
    }
    let down = agent.take_down().await.context("take the test down");
    outcome.and(down)
}

async fn whole(agent: &mut Agent, body: impl AsyncFnOnce(&mut Agent) -> Result<()>) -> Result<()> {
    agent.restart().await?;
    body(agent).await?;
    if !agent.is_started() {
        agent
            .restart()
            .await
            .context("start the agent again for the audit")?;
    }
    let mut client = agent.client().await?;
    let mut names = Vec::new();
    for object in client.list().await? {
        let Some(name) = object["metadata"]["name"].as_str() else {
            bail!("an object without a name: {object}");
        };
        names.push(name.to_owned());
    }
    for name in &names {
        client.delete(name).await?;
    }
    for name in &names {
        agent.wait_gone(name, REMOVAL).await?;
    }
    audit::idle(agent)
        .await
        .context("after every sandbox was deleted")?;
    let status = agent.stop().await?;
    if !status.success() {
        bail!("the agent stopped with {status}:\n{}", agent.log_tail());
    }
    audit::stopped(agent)
        .await
        .context("after the agent was stopped")
}

pub(crate) fn words(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without words")
}
