//! Limits that the node cannot set: what asks for them does not run. The test stands for whoever else administers the machine,
//! and changes the group that all sandboxes of its own agent are in.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::Reason;
use cloche_e2e::audit::Ledger;
use cloche_e2e::deadline::until;
use cloche_e2e::{Agent, trial};
use serde_json::{Value, json};

use crate::scene::{self, BUSYBOX, LIMIT, group_files, images, manifest, options};
use crate::verdict::Verdict;

/// A file of the agent's own group, in the one hierarchy that has it.
fn knob(agent: &Agent, name: &str) -> Result<Option<PathBuf>> {
    let mut files = group_files(agent, "", name)?;
    ensure!(files.len() <= 1, "{files:?}");
    Ok(files.pop())
}

fn set(knob: &PathBuf, value: &str) -> Result<()> {
    std::fs::write(knob, value).with_context(|| format!("write {value} to {}", knob.display()))
}

/// It says that it ran, and stays.
fn speaks(cpu: &str) -> Value {
    let mut spec = scene::line("echo ran; sleep 1000");
    spec["resources"]["limits"] = json!({"cpu": cpu, "memory": "64Mi"});
    spec
}

/// Applies a sandbox that must not run, and waits until it has not; its command has printed nothing.
async fn does_not_run(agent: &Agent, name: &str, spec: Value, says: &[&str]) -> Result<()> {
    let mut client = agent.client().await?;
    client.apply(&manifest(name, BUSYBOX, spec)).await?;
    let verdict = Verdict::new(Reason::CannotEnforce).never_ran();
    let verdict = says
        .iter()
        .fold(verdict, |verdict, words| verdict.says(words));
    verdict.wait(agent, name).await?;
    let log = agent.kubectl(&["log", name]).await?;
    ensure!(log.stdout.is_empty(), "it ran: {log:?}");
    client.delete(name).await?;
    agent.wait_gone(name, LIMIT).await
}

#[tokio::test]
async fn without_a_group_nothing_runs() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        scene::run(agent, "before", json!({})).await?;
        let descendants = knob(agent, "cgroup.max.descendants")?;
        let descendants = descendants.context("no hierarchy of version 2")?;
        set(&descendants, "1")?;
        let group = format!("{}/i-", agent.group());
        let says = ["make", &group, "temporarily unavailable"];
        does_not_run(agent, "one-more", speaks("1"), &says).await?;
        ensure!(scene::output(agent, "before", "echo fine").await? == "fine");
        set(&descendants, "max")?;
        scene::run(agent, "one-more", speaks("1")).await
    })
    .await
    .unwrap();
}

/// The machine's version 1 refuses a quota above that of the group around it; version 2 takes it, and the smaller one holds.
#[tokio::test]
async fn a_quota_that_the_kernel_refuses_is_not_run_without() {
    let folder = images().unwrap();
    let options = options(&folder).pool("cpu=2,memory=64Mi,created=0,started=1");
    trial::run(options, async |agent| {
        let pooled = until(LIMIT, "the pool is full", async || {
            Ok(Ledger::read(&agent.state())?.made.pop_first())
        })
        .await?;
        let Some(whole) = knob(agent, "cpu.cfs_quota_us")? else {
            let at_most = knob(agent, "cpu.max")?.context("no cpu controller")?;
            set(&at_most, "50000 100000")?;
            return scene::run(agent, "bounded", speaks("1")).await;
        };
        // No group below may have more than the one that is to be limited.
        for quota in group_files(agent, &pooled, "cpu.cfs_quota_us")? {
            set(&quota, "-1")?;
        }
        set(&whole, "50000")?;
        let refused = [
            "write \"100000\" to",
            "cpu.cfs_quota_us",
            "Invalid argument",
        ];
        does_not_run(agent, "made-for-it", speaks("1"), &refused).await?;
        scene::run(agent, "within", speaks("500m")).await?;
        let within = scene::instance(agent, "within")?;
        let quota = scene::group_value(agent, &within, "cpu.cfs_quota_us")?;
        ensure!(quota.as_deref() == Some("50000"), "{quota:?}");

        // The limits of one from the pool are set when it is claimed.
        let ledger = Ledger::read(&agent.state())?;
        ensure!(ledger.made.contains(&pooled), "{pooled} of {ledger:?}");
        let refused = ["write \"200000\" to", &pooled, "Invalid argument"];
        does_not_run(agent, "claimed", speaks("2"), &refused).await?;
        let ledger = Ledger::read(&agent.state())?;
        ensure!(!ledger.instances.contains(&pooled), "{pooled} is kept");
        set(&whole, "-1")?;
        scene::run(agent, "claimed", speaks("2")).await
    })
    .await
    .unwrap();
}
