//! What idle sandboxes cost: memory of each, beside a raw one, and memory and processor time of the agent with many.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_agent::cgroup::{Cgroups as _, Groups};
use cloche_e2e::{Agent, trial};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use tokio::time::sleep;

use crate::clock::Stopwatch;
use crate::figure::{Figure, Goal, Samples};
use crate::scene::{MIB, Scene, images, options};

/// Sandboxes whose memory is looked at, of each kind.
const PAIRS: u32 = 10;
/// Sandboxes that the agent has when it is looked at.
const MANY: u32 = 100;
/// The sandboxes' limit, in mebibytes.
const MEMORY: u64 = 64;
/// A look at the agent lasts as long as its own rounds over all sandboxes are apart; so many make the figure.
const LOOK: Duration = Duration::from_secs(5);
const LOOKS: usize = 7;
/// Memory counts as calm when it has changed by less than this share between two looks.
const CALM: f64 = 0.005;
const CALM_AFTER: Duration = Duration::from_secs(2);
const CALM_LIMIT: f64 = 60_000.0;

pub(crate) async fn measure() -> Result<Vec<Figure>> {
    let images = images()?;
    let mut figures = Vec::new();
    trial::run(options(&images), async |agent| {
        figures = idle(agent).await?;
        Ok(())
    })
    .await
    .context("measure idle sandboxes")?;
    Ok(figures)
}

async fn idle(agent: &Agent) -> Result<Vec<Figure>> {
    let (mut scene, raw) = Scene::open(agent).await?;
    let groups = Groups::open(agent.group())?;
    let agent_pid = agent.pid()?;
    calm(|| rollup(agent_pid.as_raw(), "Pss")).await?;
    let alone = rollup(agent_pid.as_raw(), "Pss")?;

    let (mut names, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        names.push(scene.start(MEMORY).await?.name);
        let instance = raw.prepare(MEMORY * MIB)?;
        raw.create(&instance).await?;
        raw.start_root(&instance).await?;
        let channel = raw.claim_asleep(&instance).await?;
        bare.push((instance, channel));
    }
    let bare_ids: Vec<String> = bare.iter().map(|one| one.0.id().to_owned()).collect();
    let ids: Vec<String> = groups
        .list()?
        .into_iter()
        .filter(|id| !bare_ids.contains(id))
        .collect();
    ensure!(
        ids.len() == names.len(),
        "{} groups of {} sandboxes",
        ids.len(),
        names.len()
    );
    let of = |ids: &[String]| {
        ids.iter()
            .map(|id| of_group(&groups, id))
            .collect::<Result<Vec<f64>>>()
    };
    calm(|| Ok(of(&ids)?.iter().chain(&of(&bare_ids)?).sum())).await?;
    let (with_us, without) = (of(&ids)?, of(&bare_ids)?);
    for (instance, channel) in bare {
        drop(channel);
        raw.destroy(instance).await?;
    }

    names.extend(scene.start_all(MANY - PAIRS, MEMORY).await?.0);
    calm(|| rollup(agent_pid.as_raw(), "Pss")).await?;
    let (mut resident, mut busy) = (Vec::new(), Vec::new());
    for _ in 0..LOOKS {
        let (before, watch) = (processor_time(agent_pid)?, Stopwatch::start());
        sleep(LOOK).await;
        let used = processor_time(agent_pid)?.saturating_sub(before);
        busy.push(used.as_secs_f64() * 1000.0 / watch.millis() * 100.0);
        resident.push(rollup(agent_pid.as_raw(), "Rss")?);
    }
    let share = (rollup(agent_pid.as_raw(), "Pss")? - alone) / f64::from(MANY);
    scene.remove(&names).await?;
    println!(
        "memory: the agent itself grows by {share:.3} MiB per sandbox, which is counted below"
    );

    Ok(vec![
        Figure {
            name: "memory.sandbox.pss",
            unit: "MiB",
            measured: Samples::new(with_us.iter().map(|own| own + share).collect())?,
            raw: Some(Samples::new(without)?),
            goal: Goal::AboveRaw(3.0),
        },
        Figure {
            name: "memory.agent-100.rss",
            unit: "MiB",
            measured: Samples::new(resident)?,
            raw: None,
            goal: Goal::AtMost(40.0),
        },
        Figure {
            name: "memory.agent-100.cpu",
            unit: "% core",
            measured: Samples::new(busy)?,
            raw: None,
            goal: Goal::AtMost(1.0),
        },
    ])
}

/// PSS of all processes of an instance, in MiB.
pub(crate) fn of_group(groups: &Groups, id: &str) -> Result<f64> {
    let pids = groups.processes(id)?;
    ensure!(!pids.is_empty(), "instance {id} has no process");
    pids.into_iter().map(|pid| rollup(pid, "Pss")).sum()
}

/// A line of `/proc/PID/smaps_rollup` (`proc_pid_smaps(5)`), in MiB.
pub(crate) fn rollup(pid: i32, key: &str) -> Result<f64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    kibibytes(&text, key)
        .map(|kibibytes| kibibytes / 1024.0)
        .with_context(|| format!("{path} has no {key}"))
}

fn kibibytes(rollup: &str, key: &str) -> Option<f64> {
    rollup.lines().find_map(|line| {
        let value = line.strip_prefix(key)?.strip_prefix(':')?;
        value.trim().strip_suffix(" kB")?.trim().parse().ok()
    })
}

/// Processor time that a process has used.
pub(crate) fn processor_time(pid: Pid) -> Result<Duration> {
    let clock = clock_getcpuclockid(pid).context("find the agent's processor clock")?;
    Ok(clock_gettime(clock)
        .context("read the agent's processor clock")?
        .into())
}

/// Waits until what `look` tells no longer changes: garbage of the start is given back by and by.
pub(crate) async fn calm(look: impl Fn() -> Result<f64>) -> Result<()> {
    let watch = Stopwatch::start();
    let mut last = look()?;
    while watch.millis() < CALM_LIMIT {
        sleep(CALM_AFTER).await;
        let now = look()?;
        if (now - last).abs() <= last * CALM {
            return Ok(());
        }
        last = now;
    }
    anyhow::bail!("memory does not come to rest: {last:.1} MiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_by_their_whole_name() {
        let text =
            "00400000-7fff [rollup]\nRss:  2048 kB\nPss_Anon: 9 kB\nPss:    1536 kB\nBad: x kB\n";
        assert_eq!(kibibytes(text, "Pss"), Some(1536.0));
        assert_eq!(kibibytes(text, "Rss"), Some(2048.0));
        assert_eq!(kibibytes(text, "Bad"), None);
        assert_eq!(kibibytes(text, "Ps"), None);
    }
}
