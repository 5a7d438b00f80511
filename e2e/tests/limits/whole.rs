//! What a node must do, once each and no more: short enough for a machine that is emulated, whose kernel has cgroup v2 alone.

use anyhow::{Context as _, Result, ensure};
use cloche_crds::Reason;
use cloche_e2e::session::{Session, command, shell};
use cloche_e2e::{Agent, trial};
use cloche_proto::agent::v1alpha1::{Command, Open};
use serde_json::json;

use crate::scene::{self, LIMIT, group_files, group_value, images, options, output};
use crate::verdict::Verdict;

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 64 * MIB;
/// What an instance may use beside what its guest sees.
const OVERHEAD: u64 = 32 * MIB;
const PIDS: u64 = 20;

#[tokio::test]
async fn sandboxes_run_are_limited_and_end_as_they_should() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        let mut spec = scene::line("echo begun; sleep 100000");
        spec["resources"] = json!({
            "limits": {"cpu": "1", "memory": "64Mi"},
            "requests": {"cpu": "200m"},
            "pids": PIDS,
        });
        scene::run(agent, "one", spec).await?;
        ensure!(output(agent, "one", "echo $((6 * 7))").await? == "42");
        has_limits(agent, "one").await?;
        too_much_memory(agent, "one").await?;

        scene::run(agent, "two", json!({})).await?;
        // The next agent knows it by its groups.
        agent.kill().await?;
        agent.restart().await?;
        agent.wait_running("two", LIMIT).await?;
        ensure!(output(agent, "two", "echo still here").await? == "still here");
        too_many_processes(agent, "two").await?;

        scene::run(agent, "three", json!({})).await?;
        let mut client = agent.client().await?;
        client.delete("three").await?;
        agent.wait_gone("three", LIMIT).await
    })
    .await
    .unwrap();
}

/// By the files of the kernel's hierarchies, and in its guest's eyes.
async fn has_limits(agent: &Agent, name: &str) -> Result<()> {
    let instance = scene::instance(agent, name)?;
    let memory = MEMORY + OVERHEAD;
    let pids = PIDS * 4 + 256;
    let one = [
        ("memory.limit_in_bytes", memory.to_string()),
        ("cpu.cfs_quota_us", "100000".to_owned()),
        ("cpu.shares", "204".to_owned()),
    ];
    let two = [
        ("memory.max", memory.to_string()),
        ("memory.swap.max", "0".to_owned()),
        ("memory.oom.group", "1".to_owned()),
        ("cpu.max", "100000 100000".to_owned()),
        ("cpu.weight", "20".to_owned()),
    ];
    let is_one = group_value(agent, &instance, "cpu.shares")?.is_some();
    let files = if is_one { &one[..] } else { &two[..] };
    for (file, wanted) in files.iter().chain([&("pids.max", pids.to_string())]) {
        let found = group_value(agent, &instance, file)?;
        ensure!(found.as_ref() == Some(wanted), "{file}: {found:?}");
    }
    let seen = output(
        agent,
        name,
        "awk '/^MemTotal/ {print $2}' /proc/meminfo; ulimit -u",
    )
    .await?;
    ensure!(seen == format!("{}\n{PIDS}", MEMORY / 1024), "{seen}");
    Ok(())
}

async fn run_to_the_end(agent: &Agent, name: &str, command: Command, end: &str) -> Result<()> {
    let open = Open {
        command: Some(command),
        ..Open::default()
    };
    let mut session = Session::open(agent, name, open).await??;
    let exit = session.end(LIMIT).await?;
    ensure!(exit.sandbox_reason == end, "{exit:?}");
    Ok(())
}

async fn too_much_memory(agent: &Agent, name: &str) -> Result<()> {
    let hog = command(["dd", "if=/dev/zero", "of=/dev/null", "bs=200M"]);
    run_to_the_end(agent, name, hog, "OOMKilled").await?;
    let status = Verdict::new(Reason::OOMKilled)
        .says(&MEMORY.to_string())
        .says("spec.resources.limits.memory")
        .wait(agent, name)
        .await?;
    let peak = status.termination.and_then(|end| end.peak_memory_bytes);
    let peak = u64::try_from(peak.context("no peak")?).context("a negative peak")?;
    ensure!((MEMORY..=MEMORY + OVERHEAD).contains(&peak), "{peak}");
    Ok(())
}

/// Its group has room for a few more only, for the sake of a machine that takes long to start many.
async fn too_many_processes(agent: &Agent, name: &str) -> Result<()> {
    let instance = scene::instance(agent, name)?;
    let now = group_value(agent, &instance, "pids.current")?.context("no pids controller")?;
    let now: u64 = now.parse().context("a number of processes")?;
    for file in group_files(agent, &instance, "pids.max")? {
        std::fs::write(&file, (now + 6).to_string()).context("lower a limit")?;
    }
    let bomb = shell("while sleep 100 & do :; done");
    run_to_the_end(agent, name, bomb, "PidsExceeded").await?;
    Verdict::new(Reason::PidsExceeded)
        .says("spec.resources.pids")
        .wait(agent, name)
        .await
        .map(drop)
}
