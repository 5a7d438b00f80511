//! Ends by limits: memory, processes, the node's budget. What is beside them goes on.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::Reason;
use cloche_e2e::audit::{Ledger, World};
use cloche_e2e::deadline::{until, within};
use cloche_e2e::level::Look;
use cloche_e2e::session::{Session, command, shell};
use cloche_e2e::{Agent, Options, trial};
use cloche_proto::agent::v1alpha1::{Command, Open};
use serde_json::{Value, json};

use crate::hostile::with_small_disk;
use crate::scene::{self, BUSYBOX, LIMIT, images, manifest, options};
use crate::verdict::Verdict;

const MIB: i64 = 1 << 20;

/// Takes `count` MiB and keeps them, with a rest of `pause` seconds after each ten.
fn eat(count: u32, pause: &str) -> Command {
    let program = format!(
        "BEGIN {{ for (i = 0; i < {count}; i++) {{ s[i] = sprintf(\"%1048576s\", i); \
         if (i % 10 == 9) system(\"sleep {pause}\") }} system(\"echo full; sleep 100\") }}"
    );
    command(["awk", &program])
}

async fn open(agent: &Agent, name: &str, command: Command) -> Result<Session> {
    let open = Open {
        command: Some(command),
        ..Open::default()
    };
    Ok(Session::open(agent, name, open).await??)
}

#[tokio::test]
async fn memory_is_limited_and_told() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        scene::run(agent, "neighbour", json!({})).await?;
        let ticking = shell("while :; do echo tick; sleep 0.05; done");
        let mut neighbour = open(agent, "neighbour", ticking).await?;
        for (name, hog) in [
            ("awk", eat(200, "0")),
            (
                "one-piece",
                command(["dd", "if=/dev/zero", "of=/dev/null", "bs=200M"]),
            ),
            (
                "shm",
                shell("mkdir -p /dev/shm; cat /dev/zero > /dev/shm/x"),
            ),
            // Empty files take no disk, but memory of the guest's kernel.
            (
                "files",
                shell("i=0; while :; do : >/tmp/$i; i=$((i+1)); done"),
            ),
        ] {
            scene::run(agent, name, json!({})).await?;
            let instance = scene::instance(agent, name)?;
            let mut session = open(agent, name, hog).await?;
            until(LIMIT, "the kernel has killed some of it", async || {
                let before = World::see(agent)?.processes;
                Ok((!before
                    .iter()
                    .any(|process| process.group.as_deref() == Some(&instance)))
                .then_some(()))
            })
            .await?;
            let told = within(Duration::from_secs(2), "its end is told", async {
                agent.wait_finished(name, LIMIT).await
            })
            .await?;
            let status = Verdict::new(Reason::OOMKilled)
                .says(&(64 * MIB).to_string())
                .says("spec.resources.limits.memory")
                .check(agent, name, &told)
                .await?;
            let peak = status.termination.and_then(|end| end.peak_memory_bytes);
            let peak = peak.context("no peak")?;
            ensure!((64 * MIB..=96 * MIB).contains(&peak), "{name}: {peak}");
            let exit = session.end(LIMIT).await?;
            ensure!(exit.sandbox_reason == "OOMKilled", "{exit:?}");
        }
        let before = neighbour.stdout.len();
        neighbour
            .until("the neighbour goes on", LIMIT, |session| {
                session.stdout.len() > before + 20
            })
            .await?;
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn processes_are_limited_inside_and_outside() {
    let folder = images().unwrap();
    let bomb = "n=0; while sleep 100 & do n=$((n + 1)); echo $n; done";
    trial::run(options(&folder), async |agent| {
        let spec = json!({"resources": {"pids": 40, "limits": {"memory": "512Mi"}}});
        scene::run(agent, "bomb", spec).await?;
        for user in ["0", "1000"] {
            let bomb = Command {
                user: user.to_owned(),
                ..shell(bomb)
            };
            let done = agent.exec("bomb", bomb, LIMIT).await?;
            let errors = String::from_utf8_lossy(&done.stderr).into_owned();
            ensure!(
                errors.contains("Resource temporarily unavailable"),
                "{done:?}"
            );
            let made = done.text()?.lines().count();
            ensure!((20..=40).contains(&made), "as {user}: {made} processes");
        }
        // As root nobody can start a second process now, and init's own help does not need one.
        let done = agent.exec("bomb", command(["true"]), LIMIT).await?;
        ensure!(done.exit.code == 0, "{done:?}");
        let cleared = Command {
            user: "1000".to_owned(),
            ..shell("kill -9 -1")
        };
        agent.exec("bomb", cleared, LIMIT).await?;
        let again = Command {
            user: "1000".to_owned(),
            ..shell("true | true && echo fine")
        };
        let done = agent.exec("bomb", again, LIMIT).await?;
        ensure!(done.text()? == "fine\n", "{done:?}");

        // Many users together, each within its own limit, meet the node's.
        scene::run(agent, "neighbour", json!({})).await?;
        let told = {
            let finished = agent.wait_finished("bomb", LIMIT);
            let bombs = async {
                for user in 2000..2030 {
                    let bomb = Command {
                        user: user.to_string(),
                        ..shell(bomb)
                    };
                    // The sandbox may end at any moment of it.
                    drop(agent.exec("bomb", bomb, LIMIT).await);
                }
                agent.wait_finished("bomb", LIMIT).await
            };
            tokio::select! {
                told = finished => told?,
                told = bombs => told?,
            }
        };
        Verdict::new(Reason::PidsExceeded)
            .says("spec.resources.pids 40")
            .check(agent, "bomb", &told)
            .await?;
        ensure!(scene::output(agent, "neighbour", "true | true && echo fine").await? == "fine");
        Ok(())
    })
    .await
    .unwrap();
}

/// Memory that it requests and may have, in MiB.
fn memory(request: u32, limit: u32) -> Value {
    json!({"resources": {
        "requests": {"cpu": "100m", "memory": format!("{request}Mi")},
        "limits": {"memory": format!("{limit}Mi")},
    }})
}

#[tokio::test]
async fn who_exceeds_its_request_gives_way() {
    let folder = images().unwrap();
    let options = Options {
        memory_budget: Some("400Mi".to_owned()),
        ..options(&folder)
    };
    trial::run(options, async |agent| {
        let modest = memory(128, 256);
        scene::run(agent, "modest", modest).await?;
        let mut kept = open(agent, "modest", eat(80, "0")).await?;
        kept.until("it has its memory", LIMIT, |session| {
            session.stdout == b"full\n"
        })
        .await?;

        let mut client = agent.client().await?;
        client
            .apply(&manifest("too-much", BUSYBOX, memory(300, 300)))
            .await?;
        Verdict::new(Reason::NodeRejected)
            .never_ran()
            .says("memory")
            .says("spec.resources.requests")
            .wait(agent, "too-much")
            .await?;

        // Slowly: the agent sees it coming. At once: the kernel is first.
        for (name, pause, says) in [("slow", "0.3", "requested"), ("fast", "0", "request")] {
            scene::run(agent, name, memory(32, 390)).await?;
            let mut eater = open(agent, name, eat(380, pause)).await?;
            let exit = eater.end(LIMIT).await?;
            ensure!(exit.sandbox_reason == "Evicted", "{name}: {exit:?}");
            Verdict::new(Reason::Evicted)
                .says(says)
                .wait(agent, name)
                .await?;
        }
        ensure!(scene::output(agent, "modest", "echo fine").await? == "fine");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn requests_are_within_the_budget() {
    let folder = images().unwrap();
    for (flag, budget, resource, first, too_much, rest, words) in [
        (
            "--cpu-budget",
            "1",
            "cpu",
            "600m",
            "401m",
            "400m",
            ["400 ", "401 "],
        ),
        (
            "--disk-budget",
            "1Gi",
            "ephemeral-storage",
            "600Mi",
            "425Mi",
            "424Mi",
            ["444596224 ", "445644800 "],
        ),
    ] {
        let options = Options {
            more: [flag, budget].map(Into::into).to_vec(),
            ..options(&folder)
        };
        trial::run(options, async |agent| {
            let wants = |amount: &str| json!({"resources": {"requests": {resource: amount}}});
            scene::run(agent, "first", wants(first)).await?;
            let mut client = agent.client().await?;
            let second = manifest("second", BUSYBOX, wants(too_much));
            client.apply(&second).await?;
            Verdict::new(Reason::NodeRejected)
                .never_ran()
                .says(resource)
                .says(words[0])
                .says(words[1])
                .says("spec.resources.requests")
                .wait(agent, "second")
                .await?;
            scene::run(agent, "third", wants(rest)).await?;
            // What has ended gives its share back, and the one that was refused can be tried again.
            for name in ["third", "second"] {
                client.delete(name).await?;
                agent.wait_gone(name, LIMIT).await?;
            }
            scene::run(agent, "second", wants(rest)).await
        })
        .await
        .unwrap();
    }
}

/// What is ending has its room to the end. What would fit then waits for it, also over a restart, within its start timeout.
#[tokio::test]
async fn room_that_is_about_to_be_free_is_waited_for() {
    let folder = images().unwrap();
    let options = Options {
        more: ["--cpu-budget", "1"].map(Into::into).to_vec(),
        ..options(&folder)
    };
    trial::run(options, async |agent| {
        let wants = |cpu: &str, lifecycle: Value| json!({"resources": {"requests": {"cpu": cpu}}, "lifecycle": lifecycle});
        let mut stubborn = wants("1", json!({"terminationGracePeriodSeconds": 5}));
        stubborn["command"] = json!(["/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"]);
        scene::run(agent, "stubborn", stubborn).await?;
        let mut client = agent.client().await?;
        client.delete("stubborn").await?;
        let hasty = json!({"startTimeoutSeconds": 1});
        for (name, spec) in [
            ("waits", wants("600m", json!({}))),
            ("hasty", wants("400m", hasty)),
            ("too-much", wants("401m", json!({}))),
        ] {
            client.apply(&manifest(name, BUSYBOX, spec)).await?;
            agent.wait_for(name, "taken over", LIMIT, |seen| match seen {
                Some(_) => Look::Reached(()),
                None => Look::NotYet,
            }).await?;
        }
        Verdict::new(Reason::NodeRejected)
            .never_ran()
            .says("0 thousandths")
            .wait(agent, "too-much")
            .await?;
        Verdict::new(Reason::StartTimeout)
            .never_ran()
            .says("waiting for an instance")
            .wait(agent, "hasty")
            .await?;
        agent.kill().await?;
        agent.restart().await?;
        let made = Ledger::read(&agent.state())?.made;
        ensure!(made.len() == 1, "{made:?}");
        agent.wait_running("waits", LIMIT).await?;
        agent.wait_gone("stubborn", LIMIT).await
    })
    .await
    .unwrap();
}

/// Whoever is within its request does not meet a full disk, and nothing new comes to one that is nearly full.
#[tokio::test]
async fn who_fills_the_disk_beyond_its_request_gives_way() {
    let folder = images().unwrap();
    let options = Options {
        more: ["--disk-reserve", "40Mi", "--disk-eviction", "20Mi"]
            .map(Into::into)
            .to_vec(),
        ..options(&folder)
    };
    trial::run(options, async |agent| {
        let disk = agent.state().join("scratch");
        with_small_disk(agent, &disk, "size=100m", async |agent| {
            let spec = json!({"resources": {"limits": {"memory": "256Mi"}}});
            scene::run(agent, "full", spec.clone()).await?;
            scene::run(agent, "other", spec.clone()).await?;
            scene::output(agent, "other", "head -c 8000000 /dev/zero >/own").await?;
            // Less than the reserve is left, and more than has to be.
            scene::output(agent, "full", "head -c 60000000 /dev/zero >/big").await?;
            until(LIMIT, "the agent sees it", async || {
                Ok(agent.log()?.contains("pressed=true").then_some(()))
            })
            .await?;
            let mut client = agent.client().await?;
            client.apply(&manifest("new", BUSYBOX, spec)).await?;
            agent
                .wait_for("new", "it waits for space", LIMIT, |seen| match seen {
                    Some(seen) if seen.0.to_string().contains("space on its disk") => {
                        Look::Reached(())
                    }
                    Some(seen) if seen.phase() == "Running" => Look::Never("it runs".to_owned()),
                    _ => Look::NotYet,
                })
                .await?;
            let open = Open {
                command: Some(shell("cat /dev/zero >/more")),
                ..Open::default()
            };
            let filling = Session::open(agent, "full", open).await??;
            Verdict::new(Reason::Evicted)
                .says("ephemeral-storage")
                .wait(agent, "full")
                .await?;
            drop(filling);
            agent.wait_running("new", LIMIT).await?;
            let own = scene::output(agent, "other", "wc -c </own; echo more >/x && cat /x").await?;
            ensure!(own == "8000000\nmore", "{own:?}");
            client.delete("new").await?;
            agent.wait_gone("new", LIMIT).await
        })
        .await
    })
    .await
    .unwrap();
}
