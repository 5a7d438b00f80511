//! Every way to end that an agent alone can tell, all at once: by reason, domain, phase, exit code and signal, times and peak. And the same where
//! the agent is killed twice: while they start, and before what ends them.

mod rows;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_e2e::audit::World;
use cloche_e2e::registry::Registry;
use cloche_e2e::{Agent, Options, process, trial};
use futures::future::{join, join_all};
use jiff::Timestamp;
use nix::sys::signal::{Signal, kill};

use self::rows::{BUDGET, End, Row, commands, greedy, others, starts};
use crate::ends::sentry;
use crate::registries::{Answer, Server};
use crate::scene::{self, LIMIT, images, options};

/// How long after the kill of the agent things happen, and how long it is away, in seconds.
const AFTER: u64 = 2;
const AWAY: Duration = Duration::from_secs(AFTER + 1);

#[tokio::test]
async fn every_end_is_told() {
    table(false).await.unwrap();
}

#[tokio::test]
async fn every_end_is_told_where_the_agent_is_killed() {
    table(true).await.unwrap();
}

async fn table(killed: bool) -> Result<()> {
    let folder = images()?;
    let silent = Server::start(Answer::Nothing).await?;
    let private = Registry::start_private().await?;
    let mut rows = commands();
    rows.extend(others());
    rows.extend(starts(&folder, &silent.address, private.address())?);
    let all = Options {
        insecure_registries: vec![silent.address.clone(), private.address().to_owned()],
        ..options(&folder)
    };
    let greedy = [greedy()];
    let alone = Options {
        memory_budget: Some(format!("{BUDGET}Mi")),
        ..options(&folder)
    };
    let (of_all, of_greedy) = join(end(all, &rows, killed), end(alone, &greedy, killed)).await;
    let wrong = [of_all?, of_greedy?].concat();
    let all = rows.len() + greedy.len();
    let summary = format!("{} of {all}", all - wrong.len());
    println!("{summary}");
    ensure!(wrong.is_empty(), "{summary}\n{}", wrong.join("\n"));
    Ok(())
}

/// Runs these on an agent of their own to their ends; what is wrong, a line for each.
async fn end(options: Options, rows: &[Row], killed: bool) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    trial::run(options, async |agent| {
        let begin = Timestamp::now();
        let mut client = agent.client().await?;
        for row in rows {
            client.apply(&row.manifest()).await?;
        }
        if killed {
            agent.kill().await?;
            agent.restart().await?;
        }
        for row in rows.iter().filter(|row| row.stays()) {
            agent.wait_running(row.name, LIMIT).await?;
            if row.end == End::Deletion {
                let ready = "until [ -e /ready ]; do sleep 0.05; done";
                scene::output(agent, row.name, ready).await?;
            }
        }
        if killed {
            away(agent, rows).await?;
            wrong = judge(agent, rows, begin).await;
            return Ok(());
        }
        let (lost, others): (Vec<&Row>, Vec<&Row>) =
            rows.iter().partition(|row| row.end == End::Reboot);
        let (told, ended) = join(judge(agent, others, begin), at_once(agent, rows)).await;
        ended?;
        agent.kill().await?;
        reboot(agent, rows)?;
        agent.restart().await?;
        wrong = told;
        wrong.extend(judge(agent, lost, begin).await);
        Ok(())
    })
    .await?;
    Ok(wrong)
}

/// Has everything ended that does not end by itself, but for what a reboot ends.
async fn at_once(agent: &Agent, rows: &[Row]) -> Result<()> {
    for row in rows {
        match row.end {
            End::Start | End::Time | End::Reboot => {}
            End::Inside(line) => row.inside(agent, line, 0).await?,
            End::Kill => kill(sentry(agent, row.name)?, Signal::SIGKILL)?,
            End::Panic => {
                row.inside(agent, "touch /go", 1).await?;
                forbid_processes(agent, row.name).await?;
            }
            End::Deletion => agent.client().await?.delete(row.name).await?,
        }
    }
    Ok(())
}

/// The same while no agent is there, and what a reboot ends too.
async fn away(agent: &mut Agent, rows: &[Row]) -> Result<()> {
    for row in rows {
        match row.end {
            End::Inside(line) => row.inside(agent, line, AFTER).await?,
            End::Panic => row.inside(agent, "touch /go", AFTER).await?,
            End::Start | End::Time | End::Kill | End::Deletion | End::Reboot => {}
        }
    }
    agent.kill().await?;
    for row in rows {
        match row.end {
            End::Start | End::Time | End::Inside(_) | End::Reboot => {}
            End::Kill => kill(sentry(agent, row.name)?, Signal::SIGKILL)?,
            End::Panic => forbid_processes(agent, row.name).await?,
            End::Deletion => {
                let manifest = agent.manifests().join(format!("{}.yaml", row.name));
                std::fs::remove_file(manifest).context("remove a manifest")?;
            }
        }
    }
    reboot(agent, rows)?;
    // Nobody is there to tell that all has happened.
    tokio::time::sleep(AWAY).await;
    agent.restart().await
}

/// Every process of a guest is one of the host's, too: a sentry that cannot make one gives up.
async fn forbid_processes(agent: &Agent, name: &str) -> Result<()> {
    let instance = scene::instance(agent, name)?;
    let processes = World::see(agent)?.processes;
    let of_it = processes
        .iter()
        .filter(|process| process.group.as_deref() == Some(&instance));
    for process in of_it {
        let status = process::command("prlimit")
            .args(["--nproc=1", "--pid", &process.pid.to_string()])
            .status()
            .await
            .context("run prlimit")?;
        // One of its processes may end meanwhile.
        ensure!(
            status.code().is_some_and(|code| code <= 1),
            "prlimit: {status}"
        );
    }
    Ok(())
}

fn reboot(agent: &Agent, rows: &[Row]) -> Result<()> {
    for row in rows.iter().filter(|row| row.end == End::Reboot) {
        kill(sentry(agent, row.name)?, Signal::SIGKILL)?;
        agent.age(row.name)?;
    }
    Ok(())
}

/// What is wrong, a line for each row.
async fn judge(
    agent: &Agent,
    rows: impl IntoIterator<Item = &Row>,
    begin: Timestamp,
) -> Vec<String> {
    let checks = rows.into_iter().map(async |row| {
        let wrong = row.check(agent, begin).await.err()?;
        Some(format!("{}: {wrong:#}", row.name))
    });
    join_all(checks).await.into_iter().flatten().collect()
}
