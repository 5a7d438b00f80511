//! The machine rebooted under sandboxes in every state: what had begun is lost and told so, what had not begins anew, and what
//! had ended stays as it was told.

use anyhow::{Context as _, Result, ensure};
use cloche_crds::Phase;
use cloche_e2e::Agent;
use cloche_e2e::level::{Look, Seen};
use cloche_e2e::session::{Session, shell};
use cloche_e2e::trial;
use cloche_proto::agent::v1alpha1::Open;
use serde_json::json;

use super::subject::{
    Images, LIMIT, drop_want, ended_as, ends, has_ended, kept, once, ran_once, ran_twice, stands,
    stays, want,
};

/// It was lost with the node, after it had run since `started`.
fn is_lost(seen: &Seen, started: &str) -> Result<()> {
    ended_as(seen, "NodeLost", None)?;
    let status = &seen.0["status"];
    let end = &status["termination"];
    ensure!(
        status["phase"] == "Failed"
            && end["failureDomain"] == "Infrastructure"
            && end["startedAt"] == started
            && seen.message().contains("rebooted"),
        "{status:#}"
    );
    Ok(())
}

/// When a sandbox that runs began to.
async fn started(agent: &Agent, name: &str) -> Result<String> {
    let seen = agent.wait_running(name, LIMIT).await?;
    let started = seen.0["status"]["startedAt"].as_str();
    Ok(started.context("no time of its start")?.to_owned())
}

async fn wait_stopped(agent: &Agent, name: &str) -> Result<Seen> {
    agent
        .wait_for(name, "stopped", LIMIT, |seen| match seen {
            Some(seen) if seen.phase() == Phase::Stopped.as_str() => Look::Reached(seen.clone()),
            _ => Look::NotYet,
        })
        .await
}

#[tokio::test]
async fn a_reboot_loses_what_had_begun_and_nothing_else() {
    let images = Images::busybox().unwrap();
    // The pool, of another shape, is lost too, and is made anew.
    let options = images
        .options()
        .pool("cpu=1,memory=48Mi,created=1,started=1");
    trial::run(options, async |agent| {
        want(agent, "ended", &ends())?;
        has_ended(agent, "ended").await?;
        let before = agent.wait_finished("ended", LIMIT).await?;
        want(agent, "runs", &stays())?;
        stands(agent, "runs").await?;
        want(agent, "idles", &json!({}))?;
        let mut stubborn = once("trap '' TERM; while :; do sleep 0.1; done");
        stubborn["lifecycle"] = json!({"ttlSeconds": 1, "terminationGracePeriodSeconds": 600});
        want(agent, "stops", &stubborn)?;
        let (runs, idles) = (
            started(agent, "runs").await?,
            started(agent, "idles").await?,
        );
        let open = Open {
            command_id: "begun".to_owned(),
            command: Some(shell("echo begun; sleep 1000")),
            ..Open::default()
        };
        let mut session = Session::open(agent, "idles", open).await??;
        session
            .until("it has begun", LIMIT, |session| {
                session.stdout == b"begun\n"
            })
            .await?;
        agent
            .wait_for("stops", "told to end", LIMIT, |seen| match seen {
                Some(seen) if seen.phase() == Phase::Terminating.as_str() => Look::Reached(()),
                _ => Look::NotYet,
            })
            .await?;
        let stopped = |desired: &str| {
            let mut spec = stays();
            spec["lifecycle"] = json!({"desiredState": desired, "ttlSeconds": 3600});
            spec
        };
        want(agent, "keeps", &stopped("Running"))?;
        stands(agent, "keeps").await?;
        want(agent, "keeps", &stopped("Stopped"))?;
        let keeps = wait_stopped(agent, "keeps").await?;
        agent.kill().await?;
        // One that has an instance with nothing in it yet, and one that has none or is as far.
        let mut soon = stays();
        soon["lifecycle"] = json!({"startTimeoutSeconds": 60});
        want(agent, "begins", &soon)?;
        want(agent, "begins-too", &soon)?;
        agent.restart_with_fault(Some("Claimed"))?;
        agent.wait_for_fault().await?;

        agent.reboot().await?;
        agent.restart().await?;

        for (name, started) in [("runs", &runs), ("idles", &idles)] {
            is_lost(&agent.wait_finished(name, LIMIT).await?, started)?;
        }
        ran_once(agent, "runs", "").await?;
        let (output, exit) = kept(agent, "idles", "begun").await?;
        let exit = exit.context("the command has no end")?;
        ensure!(
            output == b"begun\n" && exit.sandbox_reason == "NodeLost",
            "{output:?} {exit:?}"
        );
        let seen = agent.wait_finished("stops", LIMIT).await?;
        ended_as(&seen, "DeadlineExceeded", None)?;
        let after = agent.wait_finished("ended", LIMIT).await?;
        ensure!(
            after.0["status"]["termination"] == before.0["status"]["termination"],
            "{before:?} became {after:?}"
        );
        has_ended(agent, "ended").await?;
        // What is on disk is not lost, and its time goes on.
        let after = wait_stopped(agent, "keeps").await?;
        for field in ["startedAt", "expiresAt"] {
            let [before, after] = [&keeps, &after].map(|seen| &seen.0["status"][field]);
            ensure!(
                before.is_string() && before == after,
                "{before} became {after}"
            );
        }
        want(agent, "keeps", &stopped("Running"))?;
        ran_twice(agent, "keeps").await?;
        stands(agent, "begins").await?;
        stands(agent, "begins-too").await?;

        // Where the reason says that it may be tried again, it can be.
        drop_want(agent, "runs")?;
        agent.wait_gone("runs", LIMIT).await?;
        want(agent, "runs", &stays())?;
        stands(agent, "runs").await
    })
    .await
    .unwrap();
}
