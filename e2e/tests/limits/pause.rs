//! Sandboxes that stand still: by their spec, or since nobody used them.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_e2e::deadline::{until, within};
use cloche_e2e::level::{Look, Seen};
use cloche_e2e::session::{Session, shell};
use cloche_e2e::{Agent, trial};
use cloche_proto::agent::v1alpha1::{Command, Open};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::scene::{
    BUSYBOX, LIMIT, group_value, images, instance, line, manifest, options, output, run,
};

/// Time in which a sandbox that runs would show it.
const A_WHILE: Duration = Duration::from_millis(400);

/// Replaces the manifest of a busybox.
async fn replace(agent: &Agent, name: &str, spec: Value) -> Result<()> {
    let mut client = agent.client().await?;
    client.replace(&manifest(name, BUSYBOX, spec)).await
}

async fn wait_paused(agent: &Agent, name: &str, reason: &str) -> Result<Seen> {
    agent
        .wait_for(name, "Paused", LIMIT, |seen| match seen {
            Some(seen) if seen.phase() == "Paused" => Look::Reached(seen.clone()),
            Some(seen) if seen.is_finished() => Look::Never(seen.message().to_owned()),
            Some(_) | None => Look::NotYet,
        })
        .await
        .and_then(|seen| {
            let ready = seen.0["status"]["conditions"]
                .as_array()
                .and_then(|all| all.iter().find(|one| one["type"] == "Ready"))
                .context("no condition Ready")?;
            ensure!(
                (&ready["status"], &ready["reason"]) == (&json!("False"), &json!(reason)),
                "{ready}"
            );
            Ok(seen)
        })
}

/// CPU time of the sandbox, by the kernel's counters.
fn cpu(agent: &Agent, name: &str) -> Result<Duration> {
    let group = instance(agent, name)?;
    if let Some(nanoseconds) = group_value(agent, &group, "cpuacct.usage")? {
        return Ok(Duration::from_nanos(nanoseconds.parse()?));
    }
    let stat = group_value(agent, &group, "cpu.stat")?.context("no counters of CPU time")?;
    let usage = stat
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "));
    Ok(Duration::from_micros(usage.context("no usage")?.parse()?))
}

/// Nothing of it gets a processor, but the sentry's own timers.
async fn stands_still(agent: &Agent, name: &str) -> Result<()> {
    let before = cpu(agent, name)?;
    sleep(A_WHILE).await;
    let used = cpu(agent, name)?.saturating_sub(before);
    ensure!(used < A_WHILE / 20, "{name} used {used:?} in {A_WHILE:?}");
    Ok(())
}

/// Counts for ever, at full speed.
const BUSY: &str = "n=0; while :; do n=$((n+1)); done";

#[tokio::test]
async fn a_pause_keeps_all_and_is_over_in_a_moment() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        run(agent, "p", line(BUSY)).await?;
        // Its timeout would be over several times while it is paused.
        let timed = Open {
            command_id: "timed".to_owned(),
            command: Some(Command {
                timeout_ms: 2000,
                stdin: true,
                ..shell("echo begun; read line; echo $line")
            }),
            stdin: true,
            kill_on_detach_ms: 2000,
            ..Open::default()
        };
        let mut session = Session::open(agent, "p", timed).await??;
        session
            .until("it has begun", LIMIT, |session| {
                session.stdout == b"begun\n"
            })
            .await?;

        let mut spec = line(BUSY);
        spec["lifecycle"] = json!({"desiredState": "Paused"});
        replace(agent, "p", spec.clone()).await?;
        wait_paused(agent, "p", "Paused").await?;
        stands_still(agent, "p").await?;

        let refused = Session::open(
            agent,
            "p",
            Open {
                command: Some(shell("true")),
                ..Open::default()
            },
        )
        .await?;
        let refused = refused.err().context("a paused sandbox ran a command")?;
        ensure!(
            refused.code() == tonic::Code::FailedPrecondition,
            "{refused}"
        );
        ensure!(refused.message().contains("set it to Running"), "{refused}");

        // Over the end of the agent, and for longer than the command's timeout.
        agent.kill().await?;
        agent.restart().await?;
        wait_paused(agent, "p", "Paused").await?;
        stands_still(agent, "p").await?;
        sleep(Duration::from_millis(2500)).await;

        let begun = Instant::now();
        spec["lifecycle"] = json!({"desiredState": "Running"});
        replace(agent, "p", spec.clone()).await?;
        agent.wait_running("p", LIMIT).await?;
        println!("runs again after {:?}", begun.elapsed());
        let mut again = Session::open(
            agent,
            "p",
            Open {
                command_id: "timed".to_owned(),
                stdin: true,
                ..Open::default()
            },
        )
        .await??;
        again.stdin(0, b"still here\n", true).await?;
        let exit = again.end(LIMIT).await?;
        ensure!(exit.code == 0 && !exit.timed_out, "{exit:?}");
        ensure!(again.stdout == b"begun\nstill here\n", "{:?}", again.stdout);
        ensure!(output(agent, "p", "echo works").await? == "works");
        Ok(())
    })
    .await
    .unwrap();
}

/// One that cannot be stopped at once is asked once only: it goes on when it is let go on.
#[tokio::test]
async fn a_pause_that_takes_long_is_asked_for_once() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        let spec = json!({"resources": {"limits": {"cpu": "100m", "memory": "256Mi"}}});
        run(agent, "slow", spec).await?;
        // Long calls in the sentry, with a tenth of a core: they end before the task can stop.
        let open = Open {
            command: Some(shell("while :; do head -c 100000000 /dev/urandom >/dev/null; done")),
            ..Open::default()
        };
        let busy = Session::open(agent, "slow", open).await??;
        let state = |desired: &str| {
            json!({"resources": {"limits": {"cpu": "100m", "memory": "256Mi"}}, "lifecycle": {"desiredState": desired}})
        };
        for _ in 0..3 {
            replace(agent, "slow", state("Paused")).await?;
            sleep(Duration::from_millis(100)).await;
            agent.kill().await?;
            agent.restart().await?;
            wait_paused(agent, "slow", "Paused").await?;
            replace(agent, "slow", state("Running")).await?;
            agent.wait_running("slow", LIMIT).await?;
            ensure!(output(agent, "slow", "echo goes on").await? == "goes on");
        }
        drop(busy);
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn what_stands_still_is_told_to_end() {
    let folder = images().unwrap();
    let told = "trap 'echo told to end; exit 0' TERM; touch /ready; while :; do sleep 0.1; done";
    trial::run(options(&folder), async |agent| {
        for (name, ttl) in [("deleted", None), ("over", Some(3))] {
            let mut spec = line(told);
            spec["lifecycle"] = json!({"terminationGracePeriodSeconds": 60});
            if let Some(seconds) = ttl {
                spec["lifecycle"]["ttlSeconds"] = json!(seconds);
            }
            run(agent, name, spec.clone()).await?;
            // Before that it would be killed by being told.
            output(agent, name, "until [ -e /ready ]; do sleep 0.05; done").await?;
            spec["lifecycle"]["desiredState"] = json!("Paused");
            replace(agent, name, spec).await?;
            wait_paused(agent, name, "Paused").await?;
        }
        let over = agent.wait_finished("over", LIMIT).await?;
        ensure!(
            (over.reason(), over.exit_code()) == ("DeadlineExceeded", Some(0)),
            "{:#}",
            over.0["status"]
        );
        let mut client = agent.client().await?;
        client.delete("deleted").await?;
        within(
            Duration::from_secs(30),
            "its command was told",
            agent.wait_gone("deleted", LIMIT),
        )
        .await
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn what_nobody_uses_is_paused_until_somebody_does() {
    let folder = images().unwrap();
    let idle = |action: &str| json!({"idleTimeoutSeconds": 1, "idleAction": action});
    trial::run(options(&folder), async |agent| {
        let mut works = line(BUSY);
        works["lifecycle"] = idle("End");
        run(agent, "works", works).await?;
        for (name, action) in [("sleeps", "Pause"), ("ends", "End")] {
            run(agent, name, json!({"lifecycle": idle(action)})).await?;
        }
        let ended = agent.wait_finished("ends", LIMIT).await?;
        ensure!(ended.reason() == "IdleTimeout", "{:#}", ended.0["status"]);

        wait_paused(agent, "sleeps", "Idle").await?;
        stands_still(agent, "sleeps").await?;
        for round in 0..5 {
            let begun = Instant::now();
            ensure!(output(agent, "sleeps", "echo awake").await? == "awake");
            println!("{round}: woken, and done after {:?}", begun.elapsed());
            wait_paused(agent, "sleeps", "Idle").await?;
        }
        // Whoever may change it can have it go on, too, as often as they like.
        for _ in 0..3 {
            let resumed = agent.kubectl(&["resume", "sleeps"]).await?;
            ensure!(resumed.status.success(), "{resumed:?}");
            wait_paused(agent, "sleeps", "Idle").await?;
        }
        // A client that is attached, but does nothing, uses it; the agent's end wakes nobody.
        agent.kill().await?;
        agent.restart().await?;
        wait_paused(agent, "sleeps", "Idle").await?;
        stands_still(agent, "sleeps").await?;
        let open = Open {
            command: Some(Command {
                stdin: true,
                ..shell("echo here; cat")
            }),
            stdin: true,
            ..Open::default()
        };
        let mut session = Session::open(agent, "sleeps", open).await??;
        session
            .until("it is here", LIMIT, |session| session.stdout == b"here\n")
            .await?;
        sleep(Duration::from_secs(3)).await;
        session.stdin(0, b"and there\n", true).await?;
        let exit = session.end(LIMIT).await?;
        ensure!(
            exit.code == 0 && session.stdout == b"here\nand there\n",
            "{exit:?}"
        );
        drop(session);
        // What works in the background is not idle.
        let works = until(LIMIT, "it is seen", async || {
            agent.client().await?.get("works").await
        });
        ensure!(works.await?["status"]["phase"] == "Running");
        Ok(())
    })
    .await
    .unwrap();
}
