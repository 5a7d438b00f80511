//! How a sandbox must have ended, and everything that then must be told of it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::condition::Condition;
use cloche_crds::{FailureDomain, Phase, Reason, SandboxStatus};
use cloche_e2e::Agent;
use cloche_e2e::deadline::until;
use cloche_e2e::level::Seen;
use serde_json::Value;

use crate::scene::LIMIT;

/// Clocks are read at different moments: by so much two times may seem in the wrong order.
const SLACK: i64 = 1;

/// An end.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    reason: Reason,
    domain: FailureDomain,
    exit: Option<i32>,
    signal: Option<i32>,
    ran: bool,
    says: Vec<String>,
}

impl Verdict {
    /// By this reason, after it has run, without an exit code.
    pub(crate) fn new(reason: Reason) -> Self {
        Self {
            reason,
            domain: reason.default_domain(),
            exit: reason.exit_code().map(i32::from),
            signal: None,
            ran: true,
            says: Vec::new(),
        }
    }

    /// With an exit code.
    pub(crate) fn exit(mut self, code: i32) -> Self {
        self.exit = Some(code);
        self
    }

    /// By a signal.
    pub(crate) fn signal(mut self, signal: i32) -> Self {
        self.exit = Some(128 + signal);
        self.signal = Some(signal);
        self
    }

    /// It never ran.
    pub(crate) fn never_ran(mut self) -> Self {
        self.ran = false;
        self
    }

    /// Its message has these words.
    pub(crate) fn says(mut self, words: &str) -> Self {
        self.says.push(words.to_owned());
        self
    }

    /// Whether it ever was Running.
    pub(crate) fn has_run(&self) -> bool {
        self.ran
    }

    /// Waits for the end and checks all that is told of it.
    pub(crate) async fn wait(&self, agent: &Agent, name: &str) -> Result<SandboxStatus> {
        let seen = agent.wait_finished(name, LIMIT).await?;
        self.check(agent, name, &seen).await
    }

    /// Checks all that is told of an end: the object, and the file beside its manifest.
    pub(crate) async fn check(
        &self,
        agent: &Agent,
        name: &str,
        seen: &Seen,
    ) -> Result<SandboxStatus> {
        let status = self
            .judge(seen)
            .with_context(|| format!("{name} ended so: {:#}", seen.0["status"]))?;
        let path = agent.manifests().join(format!("{name}.status.yaml"));
        // It is written after the object has been told.
        until(LIMIT, "the status file tells the same", async || {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let file: Value = serde_saphyr::from_str(&text).unwrap_or_default();
            Ok((file["status"] == seen.0["status"]).then_some(()))
        })
        .await
        .with_context(|| {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            format!("{name}: {:#}\nbut its file says\n{text}", seen.0["status"])
        })?;
        Ok(status)
    }

    /// The object alone.
    pub(crate) fn judge(&self, seen: &Seen) -> Result<SandboxStatus> {
        let status: SandboxStatus =
            serde_json::from_value(seen.0["status"].clone()).context("read its status")?;
        let end = status.termination.clone().context("it has no end")?;
        ensure!(end.reason == self.reason, "not {}", self.reason);
        ensure!(
            end.failure_domain == self.domain,
            "not of {:?}",
            self.domain
        );
        ensure!(
            status.phase == self.reason.phase(),
            "not {}",
            self.reason.phase()
        );
        ensure!(end.exit_code == self.exit, "not with code {:?}", self.exit);
        ensure!(end.signal == self.signal, "not by signal {:?}", self.signal);
        ensure!(!end.message.is_empty(), "no message");
        for words in &self.says {
            ensure!(
                end.message.contains(words.as_str()),
                "not by the words {words:?}"
            );
        }

        let condition = |kind: &str| {
            let mut all = status.conditions.iter().filter(|one| one.type_ == kind);
            let found = all.next();
            ensure!(all.next().is_none(), "{kind} stands twice");
            anyhow::Ok(found)
        };
        let is = |found: Option<&Condition>, status: &str| {
            found.is_some_and(|one| one.status == status && one.reason == self.reason.as_str())
        };
        ensure!(is(condition("Ready")?, "False"), "Ready is wrong");
        ensure!(is(condition("Finished")?, "True"), "Finished is wrong");
        let stalled = condition("Stalled")?;
        ensure!(
            if status.phase == Phase::Failed {
                is(stalled, "True")
            } else {
                stalled.is_none()
            },
            "Stalled is wrong"
        );
        ensure!(
            condition("Scheduled")?.is_some_and(|one| one.status == "True"),
            "not Scheduled"
        );

        ensure!(
            end.started_at == status.started_at,
            "two times of its start"
        );
        ensure!(end.started_at.is_some() == self.ran, "its start is wrong");
        let now = jiff::Timestamp::now().as_second();
        let finished = end.finished_at.context("no time of its end")?.0.as_second();
        ensure!(
            (now - 120..=now + SLACK).contains(&finished),
            "its end is not now"
        );
        if let Some(started) = end.started_at {
            let started = started.0.as_second();
            ensure!(
                (now - 120..=finished).contains(&started),
                "it started after its end"
            );
        }
        ensure!(status.node_name.is_some(), "no node");
        Ok(status)
    }
}

/// How long it ran, by its own times: of whole seconds each, so up to one second too much or too little.
pub(crate) fn span(status: &SandboxStatus) -> Result<Duration> {
    let end = status.termination.as_ref().context("it has no end")?;
    let started = end.started_at.as_ref().context("it never ran")?;
    let finished = end.finished_at.as_ref().context("no time of its end")?;
    Duration::try_from(finished.0.duration_since(started.0)).context("it ended before its start")
}
