//! Phases that sandboxes go through, as a watcher sees them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use cloche_e2e::Agent;
use cloche_e2e::deadline::within;
use cloche_e2e::level::Seen;
use cloche_proto::agent::v1alpha1::{ListRequest, WatchEvent};
use tonic::Streaming;

use crate::scene::LIMIT;

/// The order of phases; nobody goes back.
const ORDER: [&[&str]; 5] = [
    &["Pending"],
    &["Starting"],
    &["Running"],
    &["Terminating"],
    &["Succeeded", "Failed", "Ended"],
];

/// What was seen of one sandbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journey {
    /// Each phase once.
    pub(crate) phases: Vec<String>,
    /// The last state.
    pub(crate) last: Option<Seen>,
    /// Whether it was removed.
    pub(crate) removed: bool,
}

/// An open watch of all sandboxes.
pub(crate) struct Watch {
    events: Streaming<WatchEvent>,
    journeys: BTreeMap<String, Journey>,
}

impl Watch {
    /// Begins.
    pub(crate) async fn begin(agent: &Agent) -> Result<Self> {
        let request = ListRequest { key: None };
        let mut client = agent.client().await?;
        let events = client.grpc().watch(request).await.context("watch all")?;
        Ok(Self {
            events: events.into_inner(),
            journeys: BTreeMap::new(),
        })
    }

    /// Follows until `done` is content with what was seen. A phase that goes back, or an end that changes, is an error.
    pub(crate) async fn until(
        mut self,
        what: &str,
        done: impl Fn(&BTreeMap<String, Journey>) -> bool,
    ) -> Result<BTreeMap<String, Journey>> {
        within(LIMIT, what, async {
            while !done(&self.journeys) {
                let event = self.events.message().await.context("watch all")?;
                self.take(&event.context("the watch ended")?)?;
            }
            Ok(())
        })
        .await
        .with_context(|| format!("seen: {:#?}", self.journeys))?;
        Ok(self.journeys)
    }

    fn take(&mut self, event: &WatchEvent) -> Result<()> {
        if event.synced {
            return Ok(());
        }
        let seen = Seen(serde_json::from_slice(&event.object).context("read a watched object")?);
        let Some(name) = seen.0["metadata"]["name"].as_str() else {
            bail!("an object without a name");
        };
        let journey = self.journeys.entry(name.to_owned()).or_default();
        ensure!(!journey.removed, "{name} came back");
        let phase = seen.phase().to_owned();
        let order = |phase: &str| ORDER.iter().position(|phases| phases.contains(&phase));
        if let Some(before) = journey.phases.last() {
            ensure!(
                order(before) <= order(&phase),
                "{name} went from {before} to {phase}"
            );
        }
        if let Some(before) = &journey.last {
            ensure!(
                before.reason().is_empty() || before.reason() == seen.reason(),
                "{name} ended by {} and then by {}",
                before.reason(),
                seen.reason()
            );
        }
        if journey.phases.last() != Some(&phase) {
            journey.phases.push(phase);
        }
        journey.removed = event.deleted;
        journey.last = Some(seen);
        Ok(())
    }
}
