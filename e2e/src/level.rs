//! Waiting until a sandbox is somehow, by what Watch tells.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cloche_crds::Phase;
use cloche_proto::agent::v1alpha1::ListRequest;
use serde_json::Value;

use crate::agent::Agent;
use crate::deadline::within;

/// A sandbox as a test sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen(pub Value);

impl Seen {
    /// `status.phase`; empty before there is one.
    pub fn phase(&self) -> &str {
        self.0["status"]["phase"].as_str().unwrap_or_default()
    }

    /// `status.termination.reason`; empty before its end.
    pub fn reason(&self) -> &str {
        self.0["status"]["termination"]["reason"]
            .as_str()
            .unwrap_or_default()
    }

    /// `status.termination.message`.
    pub fn message(&self) -> &str {
        self.0["status"]["termination"]["message"]
            .as_str()
            .unwrap_or_default()
    }

    /// `status.termination.exitCode`.
    pub fn exit_code(&self) -> Option<i64> {
        self.0["status"]["termination"]["exitCode"].as_i64()
    }

    /// Whether it serves commands.
    pub fn is_running(&self) -> bool {
        self.phase() == Phase::Running.as_str()
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        Phase::ALL
            .iter()
            .any(|phase| phase.is_terminal() && phase.as_str() == self.phase())
    }
}

/// What a look at the level gives.
#[derive(Clone, Debug, PartialEq)]
pub enum Look<T> {
    /// There.
    Reached(T),
    /// Not yet.
    NotYet,
    /// It can never come: fails at once, with why.
    Never(String),
}

impl Agent {
    /// Waits until `look` has what it wants; it sees each state that Watch sends, `None` where there is no such sandbox. The
    /// error tells the last state.
    pub async fn wait_for<T>(
        &self,
        name: &str,
        what: &str,
        limit: Duration,
        mut look: impl FnMut(Option<&Seen>) -> Look<T>,
    ) -> Result<T> {
        let mut last: Option<Seen> = None;
        let watching = async {
            let mut judge = |seen: Option<&Seen>| match look(seen) {
                Look::Reached(answer) => Ok(Some(answer)),
                Look::NotYet => Ok(None),
                Look::Never(why) => bail!("{name} will never be {what}: {why}"),
            };
            let mut client = self.client().await?;
            // Of all, because an object that is applied shows itself a moment later.
            let request = ListRequest { key: None };
            let mut events = client
                .grpc()
                .watch(request)
                .await
                .context("watch all sandboxes")?
                .into_inner();
            loop {
                let event = events
                    .message()
                    .await
                    .with_context(|| format!("watch for {name}"))?;
                let event = event.with_context(|| format!("the watch for {name} ended"))?;
                if event.synced {
                    // All that is there was told: what was not is not there.
                    if last.is_none()
                        && let Some(answer) = judge(None)?
                    {
                        return Ok(answer);
                    }
                    continue;
                }
                let object: Value =
                    serde_json::from_slice(&event.object).context("read a watched object")?;
                if object["metadata"]["name"] != name {
                    continue;
                }
                last = (!event.deleted).then_some(Seen(object));
                if let Some(answer) = judge(last.as_ref())? {
                    return Ok(answer);
                }
                if event.deleted {
                    bail!("{name} was deleted while waiting until it is {what}");
                }
            }
        };
        within(limit, &format!("{name} is {what}"), watching)
            .await
            .with_context(|| match &last {
                Some(seen) => format!("{name} was last seen so: {:#}", seen.0["status"]),
                None => format!("{name} was not there"),
            })
    }

    /// Waits until it is Running; an end is an error.
    pub async fn wait_running(&self, name: &str, limit: Duration) -> Result<Seen> {
        self.wait_for(name, "Running", limit, |seen| match seen {
            Some(seen) if seen.is_running() => Look::Reached(seen.clone()),
            Some(seen) if seen.is_finished() => {
                Look::Never(format!("it ended: {}: {}", seen.reason(), seen.message()))
            }
            _ => Look::NotYet,
        })
        .await
    }

    /// Waits for its end, however.
    pub async fn wait_finished(&self, name: &str, limit: Duration) -> Result<Seen> {
        self.wait_for(name, "finished", limit, |seen| match seen {
            Some(seen) if seen.is_finished() => Look::Reached(seen.clone()),
            _ => Look::NotYet,
        })
        .await
    }

    /// Waits until there is no such object.
    pub async fn wait_gone(&self, name: &str, limit: Duration) -> Result<()> {
        self.wait_for(name, "gone", limit, |seen| match seen {
            None => Look::Reached(()),
            Some(_) => Look::NotYet,
        })
        .await
    }
}
