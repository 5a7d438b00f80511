//! Ends that nobody asked for, and those that come while no agent is there to see them.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_e2e::deadline::until;
use cloche_e2e::level::{Look, Seen};
use cloche_e2e::session::{Session, command};
use cloche_e2e::trial;
use cloche_proto::agent::v1alpha1::Open;
use jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use serde_json::json;
use tokio::time::Instant;

use super::subject::{
    Images, LIMIT, ended_as, kept, numbers, once, ran_once, sentries, stands, stays, want,
};

/// Kills the only sentry.
fn kill_sentry(agent: &cloche_e2e::Agent) -> Result<()> {
    let sentries = sentries(agent)?;
    ensure!(sentries.len() == 1, "{sentries:?}");
    kill(sentries[0], Signal::SIGKILL).context("kill the sentry")
}

#[tokio::test]
async fn a_killed_sentry_is_told_within_a_second() {
    let images = Images::busybox().unwrap();
    trial::run(images.options(), async |agent| {
        want(agent, "victim", &stays())?;
        stands(agent, "victim").await?;
        let open = Open {
            command: Some(command(["sleep", "1000"])),
            ..Open::default()
        };
        let mut session = Session::open(agent, "victim", open).await??;
        // The watch is there before the kill, so that its own time does not count.
        let told = agent.wait_for("victim", "told to have ended", LIMIT, |seen| match seen {
            Some(seen) if !seen.reason().is_empty() => {
                Look::Reached((seen.clone(), Instant::now()))
            }
            _ => Look::NotYet,
        });
        let killed = async {
            kill_sentry(agent)?;
            Ok(Instant::now())
        };
        let ((seen, told), killed) = futures::try_join!(told, killed)?;
        let after = told.saturating_duration_since(killed);
        println!("RuntimeCrashed {after:?} after the kill");
        ended_as(&seen, "RuntimeCrashed", None)?;
        ensure!(after < Duration::from_secs(1), "told only after {after:?}");
        let exit = session.end(LIMIT).await?;
        ensure!(exit.sandbox_reason == "RuntimeCrashed", "{exit:?}");
        let seen = agent.wait_finished("victim", LIMIT).await?;
        ended_as(&seen, "RuntimeCrashed", None)?;
        ran_once(agent, "victim", "").await.map(drop)
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_sentry_that_is_silent_at_the_start_is_waited_for_and_holds_nobody_up() {
    let images = Images::busybox().unwrap();
    trial::run(images.options(), async |agent| {
        want(agent, "silent", &stays())?;
        stands(agent, "silent").await?;
        let sentry = sentries(agent)?[0];
        want(agent, "other", &stays())?;
        stands(agent, "other").await?;
        kill(sentry, Signal::SIGSTOP).context("stop a sentry")?;
        agent.kill().await?;
        let begun = Instant::now();
        agent.restart().await?;
        let took = begun.elapsed();
        println!("serves {took:?} after its start");
        ensure!(took < Duration::from_secs(15), "serves only after {took:?}");
        stands(agent, "other").await?;
        agent
            .wait_for(
                "silent",
                "told to be out of reach",
                LIMIT,
                |seen| match seen {
                    Some(seen) if seen.0.to_string().contains("SessionsUnavailable") => {
                        Look::Reached(())
                    }
                    Some(seen) if seen.is_finished() => Look::Never(seen.message().to_owned()),
                    _ => Look::NotYet,
                },
            )
            .await?;
        kill(sentry, Signal::SIGCONT).context("let a sentry go on")?;
        until(LIMIT, "it can be reached again", async || {
            let seen = agent.client().await?.get("silent").await?;
            let text = seen.context("the sandbox")?.to_string();
            Ok((!text.contains("SessionsUnavailable")).then_some(()))
        })
        .await?;
        stands(agent, "silent").await
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn what_ends_while_no_agent_runs_ends_as_it_did() {
    let images = Images::busybox().unwrap();
    trial::run(images.options(), async |agent| {
        want(agent, "victim", &stays())?;
        stands(agent, "victim").await?;
        let sentries = sentries(agent)?;
        want(agent, "ends", &once("sleep 1; echo over; exit 7"))?;
        let mut in_time = once("sleep 1; exit 5");
        in_time["lifecycle"] = json!({"ttlSeconds": 2});
        want(agent, "in-time", &in_time)?;
        let mut over = stays();
        over["lifecycle"] = json!({"ttlSeconds": 2, "terminationGracePeriodSeconds": 600});
        want(agent, "over", &over)?;
        agent.wait_running("over", LIMIT).await?;
        agent.wait_running("in-time", LIMIT).await?;
        agent.wait_running("ends", LIMIT).await?;
        agent.kill().await?;

        kill(sentries[0], Signal::SIGKILL).context("kill the sentry")?;
        // Nobody is there to tell that the time is over.
        tokio::time::sleep(Duration::from_secs(3)).await;
        agent.restart().await?;

        let seen = agent.wait_finished("victim", LIMIT).await?;
        ended_as(&seen, "RuntimeCrashed", None)?;
        ran_once(agent, "victim", "").await?;
        let seen = agent.wait_finished("ends", LIMIT).await?;
        ended_as(&seen, "Error", Some(7))?;
        lasted(&seen, 1..=2)?;
        ran_once(agent, "ends", "over\n").await?;
        let seen = agent.wait_finished("in-time", LIMIT).await?;
        ended_as(&seen, "Error", Some(5))?;
        lasted(&seen, 1..=2)?;
        ran_once(agent, "in-time", "").await?;
        let seen = agent.wait_finished("over", LIMIT).await?;
        ended_as(&seen, "DeadlineExceeded", Some(0))?;
        ran_once(agent, "over", "told to end\n").await?;
        Ok(())
    })
    .await
    .unwrap();
}

/// From start to end it took so many seconds, by its status.
fn lasted(seen: &Seen, seconds: RangeInclusive<i64>) -> Result<()> {
    let end = &seen.0["status"]["termination"];
    let at = |field: &str| -> Result<Timestamp> {
        let text = end[field]
            .as_str()
            .with_context(|| format!("no {field}: {end}"))?;
        text.parse().with_context(|| format!("{field} in {end}"))
    };
    let took = at("finishedAt")?.as_second() - at("startedAt")?.as_second();
    ensure!(seconds.contains(&took), "{took} s: {end}");
    Ok(())
}

#[tokio::test]
async fn what_began_in_time_is_adopted_after_its_start_timeout() {
    let images = Images::busybox().unwrap();
    trial::run(images.options(), async |agent| {
        agent.stop().await?;
        agent.restart_with_fault(Some("main.started"))?;
        let mut spec = stays();
        spec["lifecycle"] = json!({"startTimeoutSeconds": 3, "terminationGracePeriodSeconds": 30});
        want(agent, "begins", &spec)?;
        agent.wait_for_fault().await?;
        // It runs, and no record says so yet.
        tokio::time::sleep(Duration::from_secs(3)).await;
        agent.restart().await?;
        stands(agent, "begins").await
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_mistake_in_a_manifest_disturbs_nothing_over_a_restart() {
    let images = Images::busybox().unwrap();
    trial::run(images.options(), async |agent| {
        want(agent, "stays", &stays())?;
        stands(agent, "stays").await?;
        let manifest = agent.manifests().join("stays.yaml");
        let whole = std::fs::read(&manifest)?;
        agent.kill().await?;
        std::fs::write(&manifest, "spec: {image")?;
        agent.restart().await?;
        let accepted = |seen: &Seen| {
            let conditions = seen.0["status"]["conditions"].as_array().cloned();
            let mut conditions = conditions.unwrap_or_default().into_iter();
            conditions.find(|condition| condition["type"] == "Accepted")
        };
        stands(agent, "stays").await?;
        until(LIMIT, "its status file tells the mistake", async || {
            let status = std::fs::read_to_string(agent.manifests().join("stays.status.yaml"))?;
            Ok(status.contains("not YAML").then_some(()))
        })
        .await?;
        std::fs::write(&manifest, whole)?;
        agent
            .wait_for("stays", "accepted again", LIMIT, |seen| match seen {
                Some(seen) if accepted(seen).is_none() => Look::Reached(()),
                _ => Look::NotYet,
            })
            .await?;
        stands(agent, "stays").await?;

        // A directory that is not mounted is not one without manifests.
        agent.stop().await?;
        let away = agent.scratch().join("away");
        std::fs::rename(agent.manifests(), &away)?;
        agent.restart_with_fault(None)?;
        let status = agent.wait().await?;
        ensure!(!status.success(), "it started without its manifests");
        ensure!(
            agent.log()?.contains("is not there"),
            "{}",
            agent.log_tail()
        );
        std::fs::rename(&away, agent.manifests())?;
        agent.restart().await?;
        stands(agent, "stays").await
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_stopped_agent_leaves_its_sandboxes_running() {
    let images = Images::busybox().unwrap();
    trial::run(images.options(), async |agent| {
        want(agent, "stays", &stays())?;
        stands(agent, "stays").await?;
        let before = sentries(agent)?;
        let open = |stdout: &[u8]| Open {
            command_id: "counts".to_owned(),
            command: Some(command([
                "sh",
                "-c",
                "i=0; while [ ! -e /enough ]; do i=$((i+1)); echo $i; sleep 0.02; done; exit 9",
            ])),
            stdout_offset: stdout.len() as u64,
            ..Open::default()
        };
        let mut session = Session::open(agent, "stays", open(b"")).await??;
        session
            .until("it counts", LIMIT, |session| session.stdout.len() > 20)
            .await?;
        let status = agent.stop().await?;
        ensure!(status.success(), "{status}");
        ensure!(
            session.end(LIMIT).await.is_err(),
            "the stream goes on without an agent"
        );
        for sentry in &before {
            kill(*sentry, None).context("look for the sentry")?;
        }
        let mut stdout = session.stdout;
        agent.restart().await?;
        stands(agent, "stays").await?;
        ensure!(sentries(agent)? == before, "it was not adopted");
        let mut session = Session::open(agent, "stays", open(&stdout)).await??;
        ensure!(!session.opened.created, "the command was run again");
        session
            .until("it counts on", LIMIT, |session| session.stdout.len() > 20)
            .await?;
        agent
            .output("stays", command(["touch", "/enough"]), LIMIT)
            .await?;
        let exit = session.end(LIMIT).await?;
        ensure!(exit.code == 9, "{exit:?}");
        stdout.append(&mut session.stdout);
        let lines = stdout.split(|byte| *byte == b'\n').count() - 1;
        let wanted = numbers(lines, "\n");
        ensure!(
            stdout == wanted.as_bytes(),
            "{:?}",
            String::from_utf8_lossy(&stdout)
        );
        let (whole, _) = kept(agent, "stays", "counts").await?;
        ensure!(whole == stdout, "the log holds something else");
        Ok(())
    })
    .await
    .unwrap();
}
