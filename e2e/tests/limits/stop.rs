//! Sandboxes that are stopped: their files are kept, all else of them goes, and they are brought back.

use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::Reason;
use cloche_e2e::deadline::until;
use cloche_e2e::level::{Look, Seen};
use cloche_e2e::session::{Session, shell};
use cloche_e2e::{Agent, trial};
use cloche_proto::agent::v1alpha1::Open;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::scene::{
    BUSYBOX, LIMIT, group_value, images, instance, line, manifest, options, output, run,
};
use crate::verdict::Verdict;

/// Longer than a sandbox is idle in these tests before that counts.
const IDLE: Duration = Duration::from_secs(1);

/// Has the sandbox be in that state, and everything else as in `spec`.
async fn set(agent: &Agent, name: &str, spec: &Value, desired: &str) -> Result<()> {
    let mut spec = spec.clone();
    spec["lifecycle"]["desiredState"] = json!(desired);
    let mut client = agent.client().await?;
    client.replace(&manifest(name, BUSYBOX, spec)).await
}

/// Waits until it has that phase, and `Ready` is `False` for that reason; what `Ready` says.
async fn waits(agent: &Agent, name: &str, phase: &str, reason: &str) -> Result<String> {
    let what = format!("{name} is {phase}, {reason}");
    agent
        .wait_for(name, &what, LIMIT, |seen| {
            let Some(seen) = seen else {
                return Look::NotYet;
            };
            let ready = condition(seen, "Ready");
            if seen.phase() == phase && ready["reason"] == reason && ready["status"] == "False" {
                let said = ready["message"].as_str().unwrap_or_default();
                return Look::Reached(said.to_owned());
            }
            if seen.is_finished() {
                return Look::Never(seen.message().to_owned());
            }
            Look::NotYet
        })
        .await
}

fn condition(seen: &Seen, kind: &str) -> Value {
    let conditions = seen.0["status"]["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|one| one["type"] == kind));
    found.cloned().unwrap_or_default()
}

async fn stop(agent: &Agent, name: &str, spec: &Value) -> Result<()> {
    set(agent, name, spec, "Stopped").await?;
    waits(agent, name, "Stopped", "Stopped").await.map(drop)
}

async fn start(agent: &Agent, name: &str, spec: &Value) -> Result<()> {
    set(agent, name, spec, "Running").await?;
    // Until its files are kept its phase is Running, too.
    agent
        .wait_for(name, "ready", LIMIT, |seen| match seen {
            Some(seen) if condition(seen, "Ready")["status"] == "True" => Look::Reached(()),
            Some(seen) if seen.is_finished() => Look::Never(seen.message().to_owned()),
            _ => Look::NotYet,
        })
        .await
}

/// Folders of instances that there are.
fn instances(agent: &Agent) -> Result<usize> {
    let folder = agent.run().join("i");
    Ok(std::fs::read_dir(folder).context("list instances")?.count())
}

/// The folders of kept files.
fn saved(agent: &Agent) -> Result<Vec<std::path::PathBuf>> {
    let folder = agent.state().join("snapshots");
    let all = std::fs::read_dir(folder).context("list kept files")?;
    let all = all.map(|entry| Ok(entry?.path()));
    all.filter(|path| !path.as_ref().is_ok_and(|path| path.ends_with("tmp")))
        .collect()
}

/// What is written: much more than the sandbox has memory, holes, and everything that a file system can hold.
const WRITE: &str = "
    mkdir -p /d/e; head -c 200000000 /dev/urandom >/d/large; truncate -s 100G /d/hole
    echo text >/d/f; ln /d/f /d/hard; ln -s f /d/soft; mkfifo /d/pipe; mknod /d/zero c 1 5
    chown 12:34 /d/f; chmod 4751 /d/f; touch -d '2001-02-03 04:05:06' /d/e
    printf x >\"/d/$(printf 'a b\\n\\377')\"; rm /etc/passwd; rm -r /usr/share/old; mkdir /usr/share/old; echo n >/usr/share/old/new
    : >/d/empty; echo t >/tmp/t; mkdir -m 1777 /d/sticky";

/// All of it, by what can be seen of it. Times are kept to the nearest second: of those only one that is a whole one.
const SHOW: &str = "
    find /d /tmp /usr/share -exec stat -c '%n %F %s %h %u:%g %a' {} \\; | tr '\\377' '?' | sort; md5sum /d/large /d/f /d/hard
    readlink /d/soft; stat -c '%t,%T' /d/zero; stat -c %Y /d/e; ls /etc; df -k / | tail -1 | awk '{print $3}'";

#[tokio::test]
async fn files_are_kept_and_nothing_else() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        let own = "trap 'echo told; exit 5' TERM; echo run >>/runs; echo run $(wc -l </runs); sleep 1000 & wait";
        let mut spec = line(own);
        spec["resources"]["limits"] = json!({"cpu": "1", "memory": "64Mi", "ephemeral-storage": "1Gi"});
        run(agent, "s", spec.clone()).await?;
        let made = output(agent, "s", &format!("mkdir -p /usr/share/old; touch /usr/share/old/gone; {WRITE} 2>&1")).await?;
        ensure!(made.is_empty(), "{made}");
        let before = output(agent, "s", SHOW).await?;
        let open = Open {
            command_id: "c".to_owned(),
            command: Some(shell("echo begun; sleep 1000")),
            ..Open::default()
        };
        let mut attached = Session::open(agent, "s", open).await??;
        attached
            .until("it has begun", LIMIT, |session| session.stdout == b"begun\n")
            .await?;

        stop(agent, "s", &spec).await?;
        let exit = attached.end(LIMIT).await?;
        ensure!(exit.sandbox_reason == "Stopped", "{exit:?}");
        ensure!(instances(agent)? == 0, "it holds an instance");
        let log = agent.kubectl(&["log", "s"]).await?;
        ensure!(log.stdout == b"run 1\ntold\n", "{log:?}");
        let command = Some(shell("true"));
        let refused = Session::open(agent, "s", Open { command, ..Open::default() }).await?;
        let refused = refused.err().context("a stopped sandbox ran a command")?;
        ensure!(refused.code() == tonic::Code::FailedPrecondition, "{refused}");
        ensure!(refused.message().contains("kubectl sandbox start"), "{refused}");

        // Over the end of the agent.
        agent.kill().await?;
        agent.restart().await?;
        waits(agent, "s", "Stopped", "Stopped").await?;
        ensure!(instances(agent)? == 0, "it holds an instance");

        for runs in 2..=3 {
            start(agent, "s", &spec).await?;
            let after = output(agent, "s", SHOW).await?;
            ensure!(after == before, "before:\n{before}\nafter:\n{after}");
            until(LIMIT, "its command runs anew", async || {
                let log = agent.kubectl(&["log", "s"]).await?.stdout;
                Ok((log == format!("run {runs}\n").as_bytes()).then_some(()))
            })
            .await?;
            let previous = agent.kubectl(&["log", "s", "--previous"]).await?;
            let told = format!("run {}\ntold\n", runs - 1);
            ensure!(previous.stdout == told.as_bytes(), "{previous:?}");
            until(LIMIT, "what it came from goes", async || {
                Ok(saved(agent)?.is_empty().then_some(()))
            })
            .await?;
            stop(agent, "s", &spec).await?;
        }
        let seen = agent.client().await?.get("s").await?.context("the sandbox")?;
        ensure!(seen["status"]["startedAt"].is_string(), "{seen:#}");
        Ok(())
    })
    .await
    .unwrap();
}

/// The sentry takes memory for their names when they are kept, and afterwards: not the guest's.
#[tokio::test]
async fn many_names_fit_into_the_memory_that_they_had() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        let spec = json!({"resources": {"limits": {"memory": "128Mi"}}});
        run(agent, "s", spec.clone()).await?;
        let make = "
            mkdir /d; cd /d; n=x; while [ ${#n} -lt 60 ]; do n=${n}x; done
            i=0; while [ $i -lt 20000 ]; do : >$n$i; i=$((i + 1)); done";
        output(agent, "s", make).await?;
        for _ in 0..2 {
            stop(agent, "s", &spec).await?;
            start(agent, "s", &spec).await?;
            let count = output(agent, "s", "find /d -type f | wc -l").await?;
            ensure!(count.trim() == "20000", "{count}");
        }
        Ok(())
    })
    .await
    .unwrap();
}

/// The memory limit of its group, in MiB.
fn memory_limit(agent: &Agent, name: &str) -> Result<u64> {
    let group = instance(agent, name)?;
    let v1 = group_value(agent, &group, "memory.limit_in_bytes")?;
    let limit = match v1 {
        Some(limit) => limit,
        None => group_value(agent, &group, "memory.max")?.context("no memory limit")?,
    };
    Ok(limit.trim().parse::<u64>()? >> 20)
}

/// Its own limits hold again before anything of it runs, and nothing of what was kept is left.
#[tokio::test]
async fn a_stop_that_is_given_up_changes_nothing() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        let spec = json!({"resources": {"limits": {"memory": "64Mi"}}});
        run(agent, "s", spec.clone()).await?;
        let sum = output(
            agent,
            "s",
            "head -c 200000000 /dev/urandom >/large; md5sum /large",
        )
        .await?;
        let before = memory_limit(agent, "s")?;
        let mut given_up = 0;
        for _ in 0..5 {
            set(agent, "s", &spec, "Stopped").await?;
            until(LIMIT, "its files are being kept", async || {
                let staged = std::fs::read_dir(agent.state().join("snapshots/tmp"))?;
                Ok((staged.count() > 0 || !saved(agent)?.is_empty()).then_some(()))
            })
            .await?;
            // Perhaps too late.
            given_up += usize::from(saved(agent)?.is_empty());
            start(agent, "s", &spec).await?;
            ensure!(
                memory_limit(agent, "s")? == before,
                "{}",
                memory_limit(agent, "s")?
            );
            ensure!(output(agent, "s", "md5sum /large").await? == sum);
            until(LIMIT, "nothing is kept", async || {
                Ok(saved(agent)?.is_empty().then_some(()))
            })
            .await?;
        }
        ensure!(
            given_up > 0,
            "each stop was over before it could be given up"
        );
        Ok(())
    })
    .await
    .unwrap();
}

/// Whatever becomes of it in the middle, nothing of it is left (the trial looks).
#[tokio::test]
async fn one_that_is_deleted_while_its_files_are_kept_leaves_none() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        for turn in 0..3 {
            run(agent, "s", json!({})).await?;
            output(agent, "s", "head -c 200000000 /dev/urandom >/large").await?;
            set(agent, "s", &json!({}), "Stopped").await?;
            let staged = agent.state().join("snapshots/tmp");
            until(LIMIT, "its files are being written", async || {
                let mut all = std::fs::read_dir(&staged)?;
                let pages = all
                    .next()
                    .transpose()?
                    .map(|one| one.path().join("pages.img"));
                let length = pages
                    .and_then(|path| path.metadata().ok())
                    .map_or(0, |file| file.len());
                let is_far = length >= [1, 100_000_000, 200_000_000][turn];
                // It may be over between two looks.
                Ok((is_far || !saved(agent)?.is_empty()).then_some(()))
            })
            .await?;
            agent.client().await?.delete("s").await?;
            agent.wait_gone("s", LIMIT).await?;
        }
        until(LIMIT, "nothing is kept", async || {
            Ok(saved(agent)?.is_empty().then_some(()))
        })
        .await
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn idleness_stops_and_use_brings_back() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        let spec = json!({"lifecycle": {"idleTimeoutSeconds": IDLE.as_secs()}});
        run(agent, "s", spec.clone()).await?;
        for turn in 1..=3 {
            let count = output(agent, "s", "echo x >>/n; wc -l </n").await?;
            ensure!(count.trim() == turn.to_string(), "{count}");
            let said = waits(agent, "s", "Stopped", "Idle").await?;
            ensure!(said.contains("the next session"), "{said}");
            ensure!(instances(agent)? == 0, "it holds an instance");
        }
        // Several at once have it run once.
        let all = (0..8).map(|_| output(agent, "s", "cat /n | wc -l"));
        for count in futures::future::try_join_all(all).await? {
            ensure!(count.trim() == "3", "{count}");
        }
        waits(agent, "s", "Stopped", "Idle").await?;
        // Deleted as it is, nothing of it is left.
        agent.client().await?.delete("s").await?;
        agent.wait_gone("s", LIMIT).await
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_stopped_sandbox_gives_its_room_away_and_waits_for_it() {
    let folder = images().unwrap();
    // With their overhead of 32Mi one of 64Mi and one of 32Mi fit, and not two of 64Mi.
    let one = cloche_e2e::Options {
        memory_budget: Some("168Mi".to_owned()),
        ..options(&folder)
    };
    trial::run(one, async |agent| {
        let spec = json!({"resources": {"limits": {"memory": "64Mi"}}});
        run(agent, "first", spec.clone()).await?;
        output(agent, "first", "echo mine >/f").await?;
        stop(agent, "first", &spec).await?;
        run(agent, "second", spec.clone()).await?;
        set(agent, "first", &spec, "Running").await?;
        until(LIMIT, "it waits for room", async || {
            let said = waits(agent, "first", "Stopped", "WakePending").await?;
            Ok(said.contains("waits for room").then_some(()))
        })
        .await?;
        agent.kill().await?;
        agent.restart().await?;
        waits(agent, "first", "Stopped", "WakePending").await?;
        ensure!(output(agent, "second", "echo works").await? == "works");
        // What is new and fits is not kept waiting by one that needs more.
        let small =
            json!({"resources": {"requests": {"memory": "32Mi"}, "limits": {"memory": "32Mi"}}});
        run(agent, "third", small).await?;
        agent.client().await?.delete("third").await?;
        agent.wait_gone("third", LIMIT).await?;
        waits(agent, "first", "Stopped", "WakePending").await?;
        stop(agent, "second", &spec).await?;
        agent.wait_running("first", LIMIT).await?;
        ensure!(output(agent, "first", "cat /f").await? == "mine");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn files_that_cannot_be_kept_or_had_are_told() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        let spec = json!({});
        run(agent, "s", spec.clone()).await?;
        run(agent, "lost", spec.clone()).await?;
        output(agent, "s", "echo mine >/f").await?;
        // The store takes nothing.
        let staging = agent.state().join("snapshots/tmp");
        std::fs::remove_dir(&staging)?;
        std::fs::write(&staging, "in its place")?;
        set(agent, "s", &spec, "Stopped").await?;
        until(LIMIT, "it is told", async || {
            let said = waits(agent, "s", "Running", "Stopping").await?;
            Ok(said.contains("snapshots/tmp").then_some(()))
        })
        .await?;
        // Nothing was told to end: it can go on.
        start(agent, "s", &spec).await?;
        ensure!(output(agent, "s", "cat /f").await? == "mine");
        set(agent, "s", &spec, "Stopped").await?;
        waits(agent, "s", "Running", "Stopping").await?;
        std::fs::remove_file(&staging)?;
        waits(agent, "s", "Stopped", "Stopped").await?;
        start(agent, "s", &spec).await?;
        ensure!(output(agent, "s", "cat /f").await? == "mine");

        stop(agent, "lost", &spec).await?;
        let all = saved(agent)?;
        let [folder] = all.as_slice() else {
            anyhow::bail!("kept are {all:?}")
        };
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).open(folder.join("multitar.img"))?;
        file.write_at(b"!", 5)?;
        set(agent, "lost", &spec, "Running").await?;
        Verdict::new(Reason::SnapshotCorrupt)
            .says("its files are lost")
            .wait(agent, "lost")
            .await?;
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn time_goes_on_for_a_stopped_sandbox_and_one_that_never_ran_does_not_begin() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        let mut client = agent.client().await?;
        let never = json!({"command": ["sh", "-c", "echo ran"]});
        let mut stopped = never.clone();
        stopped["lifecycle"] = json!({"desiredState": "Stopped"});
        client.apply(&manifest("never", BUSYBOX, stopped)).await?;
        waits(agent, "never", "Stopped", "Stopped").await?;

        let spec = json!({"lifecycle": {"ttlSeconds": 3}});
        run(agent, "over", spec.clone()).await?;
        stop(agent, "over", &spec).await?;
        let verdict = Verdict::new(Reason::DeadlineExceeded).says("ttlSeconds");
        let status = verdict.wait(agent, "over").await?;
        let [from, to] = [
            &status.started_at,
            &status.termination.as_ref().context("its end")?.finished_at,
        ];
        let lived = to
            .as_ref()
            .context("its end")?
            .0
            .duration_since(from.as_ref().context("its start")?.0);
        ensure!((3..=5).contains(&lived.as_secs()), "{lived}");

        sleep(IDLE).await;
        let log = agent.kubectl(&["log", "never"]).await?;
        ensure!(log.stdout.is_empty(), "{log:?}");
        set(agent, "never", &never, "Running").await?;
        Verdict::new(Reason::Completed).wait(agent, "never").await?;
        let log = agent.kubectl(&["log", "never"]).await?;
        ensure!(log.stdout == b"ran\n", "{log:?}");
        Ok(())
    })
    .await
    .unwrap();
}
