//! Ends that the command, its user or the clock decide.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::Reason;
use cloche_e2e::audit::World;
use cloche_e2e::deadline::within;
use cloche_e2e::image::{Entry, Image, Layer};
use cloche_e2e::level::Seen;
use cloche_e2e::session::{Session, shell};
use cloche_e2e::{Agent, trial};
use cloche_proto::agent::v1alpha1::Open;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::journey::Watch;
use crate::scene::{self, BUSYBOX, LIMIT, add, busybox_with, images, line, manifest, options};
use crate::verdict::{Verdict, span};

#[tokio::test]
async fn a_command_decides_its_end() {
    let folder = images().unwrap();
    let odd = odd_image().unwrap();
    add(folder.path(), "odd", &odd).unwrap();
    let stranger = busybox_with(Vec::new(), |config| config.user = "stranger".to_owned()).unwrap();
    add(folder.path(), "stranger", &stranger).unwrap();
    trial::run(options(&folder), async |agent| {
        let cases = cases();
        let watch = Watch::begin(agent).await?;
        let mut client = agent.client().await?;
        for (name, image, spec, _) in &cases {
            client.apply(&manifest(name, image, spec.clone())).await?;
        }
        let journeys = watch
            .until("all have ended", |journeys| {
                journeys
                    .values()
                    .filter(|journey| journey.last.as_ref().is_some_and(Seen::is_finished))
                    .count()
                    == cases.len()
            })
            .await?;
        for (name, _, _, verdict) in &cases {
            let journey = &journeys[*name];
            let last = journey.last.as_ref().context("never seen")?;
            verdict.check(agent, name, last).await?;
            let ran = journey.phases.iter().any(|phase| phase == "Running");
            // One that ends at once may be told as Running and Terminating together, and so never be seen Running.
            ensure!(verdict.has_run() || !ran, "{name}: {:?}", journey.phases);
        }
        tell(agent).await
    })
    .await
    .unwrap();
}

/// Files that cannot be run, each for a reason of its own.
pub(crate) fn odd_image() -> Result<Image> {
    let layer = Layer::default()
        .add_owned("plain", Entry::File(b"#!/bin/sh\n".to_vec()), 0o644, 0, 0)?
        .add("lost", Entry::File(b"#!/no/such/interpreter\n".to_vec()))?
        .add("noise", Entry::File(vec![0x7f, b'X', 1, 2, 3]))?;
    busybox_with(vec![layer], |_| {})
}

fn cases() -> Vec<(&'static str, &'static str, Value, Verdict)> {
    let not_found = || Verdict::new(Reason::CommandNotFound).never_ran();
    let not_executable = || Verdict::new(Reason::CommandNotExecutable).never_ran();
    let odd = "oci:odd:latest";
    let program = |path: &str| json!({"command": [path]});
    vec![
        (
            "completed",
            BUSYBOX,
            line("echo told; echo warned >&2"),
            Verdict::new(Reason::Completed),
        ),
        (
            "error",
            BUSYBOX,
            line("exit 3"),
            Verdict::new(Reason::Error).exit(3).says("exit code 3"),
        ),
        (
            "signal",
            BUSYBOX,
            line("kill -SEGV $$"),
            Verdict::new(Reason::Error).signal(11).says("signal 11"),
        ),
        (
            "absent",
            BUSYBOX,
            program("/bin/absent"),
            not_found().says("/bin/absent: not found"),
        ),
        (
            "absent-in-path",
            BUSYBOX,
            program("absent"),
            not_found().says("absent: not found"),
        ),
        (
            "no-interpreter",
            odd,
            program("/lost"),
            not_found().says("/lost").says("interpreter"),
        ),
        (
            "no-entrypoint",
            BUSYBOX,
            json!({"args": ["x"]}),
            not_found().says("spec.args").says("spec.command"),
        ),
        (
            "mode",
            odd,
            program("/plain"),
            not_executable().says("/plain: permission denied"),
        ),
        (
            "format",
            odd,
            program("/noise"),
            not_executable().says("/noise").says("not a program"),
        ),
        (
            "a-folder",
            BUSYBOX,
            program("/etc"),
            not_executable().says("/etc"),
        ),
        (
            "cwd-is-a-file",
            BUSYBOX,
            json!({"command": ["/bin/true"], "workingDir": "/etc/passwd"}),
            not_executable().says("/etc/passwd").says("directory"),
        ),
        (
            "unknown-user",
            "oci:stranger:latest",
            program("/bin/true"),
            not_executable().says("stranger"),
        ),
    ]
}

/// What the command line tells of those ends.
async fn tell(agent: &Agent) -> Result<()> {
    let log = agent.kubectl(&["log", "completed"]).await?;
    ensure!(
        log.stdout == b"told\n" && log.stderr == b"warned\n" && log.status.success(),
        "{log:?}"
    );
    let finished = ["wait", "error", "--for", "finished"];
    let finished = agent.kubectl(&finished).await?;
    ensure!(finished.status.success(), "{finished:?}");
    let described = agent.kubectl(&["describe", "mode"]).await?;
    let text = String::from_utf8_lossy(&described.stdout).into_owned();
    for word in ["CommandNotExecutable", "126", "/plain: permission denied"] {
        ensure!(text.contains(word), "no {word} in\n{text}");
    }
    let exec = agent.kubectl(&["exec", "error", "--", "true"]).await?;
    let text = String::from_utf8_lossy(&exec.stderr).into_owned();
    ensure!(exec.status.code() == Some(125), "{exec:?}");
    ensure!(
        text.contains("has ended: Error: ") && text.contains("exit code 3"),
        "{text}"
    );
    Ok(())
}

#[tokio::test]
async fn a_lifetime_ends_with_grace() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        let life = |line: &str| {
            json!({
                "command": ["/bin/sh", "-c", line],
                "lifecycle": {"ttlSeconds": 1, "terminationGracePeriodSeconds": 1},
            })
        };
        let polite = life("trap 'echo got it; exit 7' TERM; while :; do sleep 0.05; done");
        let stubborn = life("trap '' TERM; while :; do sleep 0.05; done");
        let idle = json!({"lifecycle": {"ttlSeconds": 1}});
        let mut client = agent.client().await?;
        for (name, spec) in [("polite", polite), ("stubborn", stubborn), ("idle", idle)] {
            client.apply(&manifest(name, BUSYBOX, spec)).await?;
        }
        agent.wait_running("idle", LIMIT).await?;
        // A command that is under way when its sandbox ends is told so.
        let under_way = scene::sh(agent, "idle", "echo begun; sleep 100").await?;
        ensure!(under_way.stdout == b"begun\n", "{under_way:?}");
        ensure!(
            under_way.exit.sandbox_reason == "DeadlineExceeded",
            "{under_way:?}"
        );

        let verdict = Verdict::new(Reason::DeadlineExceeded).says("ttlSeconds");
        let second = Duration::from_secs(1);
        let status = verdict.wait(agent, "idle").await?;
        ensure!(
            (second..=second * 3).contains(&span(&status)?),
            "{status:#?}"
        );
        let expires = status.expires_at.context("no time of its expiry")?.0;
        let started = status.started_at.context("no time of its start")?.0;
        ensure!(expires.duration_since(started).as_secs() == 1);
        let status = verdict.clone().exit(7).wait(agent, "polite").await?;
        ensure!(
            (second..=second * 3).contains(&span(&status)?),
            "{status:#?}"
        );
        let log = agent.kubectl(&["log", "polite"]).await?;
        ensure!(log.stdout == b"got it\n", "{log:?}");
        let status = verdict.wait(agent, "stubborn").await?;
        ensure!(
            (second * 2..=second * 4).contains(&span(&status)?),
            "{status:#?}"
        );
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_deletion_is_told_to_its_watchers() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        let watch = Watch::begin(agent).await?;
        let polite = line("trap 'exit 5' TERM; while :; do sleep 0.05; done");
        scene::run(agent, "polite", polite).await?;
        scene::run(agent, "idle", json!({})).await?;
        let open = Open {
            command: Some(shell("sleep 100")),
            ..Open::default()
        };
        let mut session = Session::open(agent, "idle", open).await??;
        let mut client = agent.client().await?;
        for name in ["polite", "idle"] {
            client.delete(name).await?;
        }
        let exit = session.end(LIMIT).await?;
        ensure!(exit.sandbox_reason == "Deleted", "{exit:?}");
        let journeys = watch
            .until("both are removed", |journeys| {
                journeys.values().filter(|journey| journey.removed).count() == 2
            })
            .await?;
        let verdict = Verdict::new(Reason::Deleted).says("deleted");
        for (name, verdict) in [("polite", verdict.clone().exit(5)), ("idle", verdict)] {
            let journey = &journeys[name];
            let last = journey.last.as_ref().context("never seen")?;
            verdict
                .judge(last)
                .with_context(|| format!("{name} ended so: {:#}", last.0))?;
            let manifest = format!("{name}.yaml");
            let status = format!("{name}.status.yaml");
            for file in [manifest, status] {
                ensure!(!agent.manifests().join(&file).exists(), "{file} is left");
            }
        }
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_sentry_killed_from_outside_is_a_crash_within_a_second() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        scene::run(agent, "victim", json!({})).await?;
        scene::run(agent, "main", line("echo here; sleep 100")).await?;
        scene::run(agent, "other", json!({})).await?;
        for victim in ["victim", "main"] {
            let sentry = sentry(agent, victim)?;
            kill(sentry, Signal::SIGKILL).context("kill a sentry")?;
            let told = within(Duration::from_secs(1), "its end is told", async {
                agent.wait_finished(victim, LIMIT).await
            })
            .await?;
            Verdict::new(Reason::RuntimeCrashed)
                .says("sentry")
                .check(agent, victim, &told)
                .await?;
        }
        let log = agent.kubectl(&["log", "main"]).await?;
        ensure!(log.stdout == b"here\n", "{log:?}");
        ensure!(scene::output(agent, "other", "echo $((6 * 7))").await? == "42");
        Ok(())
    })
    .await
    .unwrap();
}

/// The process that is a sandbox's sentry.
pub(crate) fn sentry(agent: &Agent, name: &str) -> Result<Pid> {
    let instance = scene::instance(agent, name)?;
    let world = World::see(agent)?;
    let of_it: Vec<_> = world
        .processes
        .iter()
        .filter(|process| process.group.as_deref() == Some(&instance))
        .collect();
    of_it
        .iter()
        .find(|process| process.command.contains(" boot "))
        .map(|process| Pid::from_raw(process.pid))
        .with_context(|| format!("{name} has no sentry among {of_it:?}"))
}
