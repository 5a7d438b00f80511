//! The leak audit: what is left on the machine against what the ledger names.

mod ledger;
mod owner;
mod verdict;
pub mod world;

use std::time::Duration;

use anyhow::{Result, bail};

use crate::agent::Agent;
use crate::deadline::until;

pub use ledger::Ledger;
pub use owner::Owner;
pub use verdict::{Leak, judge_idle, judge_stopped};
pub use world::World;

/// How long a teardown may still be under way.
const SETTLE: Duration = Duration::from_secs(20);

/// With the agent running and every sandbox deleted: nothing is left but instances that the ledger names (the pool), each with
/// its group, processes and folder.
pub async fn idle(agent: &Agent) -> Result<()> {
    idle_of(&Owner::from(agent)).await
}

/// The same of any owner.
pub async fn idle_of(owner: &Owner) -> Result<()> {
    settle(owner, judge_idle).await
}

/// With the agent stopped and no sandbox: nothing is left at all but images and profiles.
pub async fn stopped(agent: &Agent) -> Result<()> {
    stopped_of(&Owner::from(agent)).await
}

/// The same of any owner.
pub async fn stopped_of(owner: &Owner) -> Result<()> {
    settle(owner, judge_stopped).await
}

/// Looks until there is no leak; those of the last look are the error.
async fn settle(owner: &Owner, judge: impl Fn(&World, &Ledger) -> Vec<Leak>) -> Result<()> {
    let mut last = Vec::new();
    let settled = until(SETTLE, "nothing is leaked", async || {
        // The ledger after the world: an instance that is made meanwhile is then named by it, and no leak.
        let world = World::of(owner)?;
        let ledger = Ledger::read(&owner.state)?;
        last = judge(&world, &ledger);
        Ok(last.is_empty().then_some(()))
    })
    .await;
    match settled {
        Err(_) if !last.is_empty() => {
            let leaks: Vec<String> = last.iter().map(|leak| format!("  {leak}")).collect();
            bail!("leaked:\n{}", leaks.join("\n"));
        }
        outcome => outcome,
    }
}
