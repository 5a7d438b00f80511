//! The rows of the table: what is applied, what ends it, and how that must be told.

use anyhow::{Context as _, Result, ensure};
use cloche_crds::{Reason, SandboxStatus};
use cloche_e2e::Agent;
use cloche_e2e::image::{Entry, Layer};
use cloche_e2e::session::shell;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ends::odd_image;
use crate::scene::{BUSYBOX, LIMIT, add, busybox_with, line, manifest};
use crate::verdict::Verdict;

const MIB: i64 = 1 << 20;
/// What the one that is evicted may take at most, in MiB.
pub(super) const BUDGET: i64 = 240;
/// What each may take and its sentry beside it, in MiB.
const EACH: i64 = 64 + 32;
/// Waits inside until it is told to go on.
const GATE: &str = "until [ -e /go ]; do sleep 0.05; done; ";
/// Times are told in whole seconds.
const SLACK: SignedDuration = SignedDuration::from_secs(1);

/// What ends a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It does not begin to run.
    Start,
    /// The time.
    Time,
    /// This line of shell, run in it.
    Inside(&'static str),
    /// SIGKILL to its sentry.
    Kill,
    /// It makes ever more processes, and its sentry may have no more, by a limit that its group does not count.
    Panic,
    /// Its manifest goes.
    Deletion,
    /// A reboot.
    Reboot,
}

/// One way to end.
pub(super) struct Row {
    pub(super) name: &'static str,
    image: String,
    spec: Value,
    pub(super) end: End,
    verdict: Verdict,
}

impl Row {
    fn new(name: &'static str, spec: Value, end: End, reason: Reason) -> Self {
        let verdict = Verdict::new(reason);
        let verdict = if end == End::Start {
            verdict.never_ran()
        } else {
            verdict
        };
        Self {
            name,
            image: BUSYBOX.to_owned(),
            spec,
            end,
            verdict,
        }
    }

    /// A command that goes on once it is told to.
    fn gated(name: &'static str, rest: &str, reason: Reason) -> Self {
        let spec = line(&format!("{GATE}{rest}"));
        Self::new(name, spec, End::Inside("touch /go"), reason)
    }

    /// Ended otherwise.
    fn by(self, end: End) -> Self {
        Self { end, ..self }
    }

    /// Of another image.
    fn of(self, image: impl Into<String>) -> Self {
        let image = image.into();
        Self { image, ..self }
    }

    /// With something more in its spec.
    fn with(mut self, field: &str, value: Value) -> Self {
        self.spec[field] = value;
        self
    }

    /// Told so.
    fn told(self, tell: impl FnOnce(Verdict) -> Verdict) -> Self {
        let verdict = tell(self.verdict);
        Self { verdict, ..self }
    }

    pub(super) fn manifest(&self) -> String {
        let mut spec = self.spec.clone();
        spec["resources"]["requests"]["cpu"] = json!("10m");
        spec["resources"]["requests"]["memory"] = json!("32Mi");
        manifest(self.name, &self.image, spec)
    }

    /// Whether it runs until it is ended.
    pub(super) fn stays(&self) -> bool {
        !matches!(self.end, End::Start | End::Time)
    }

    /// Has it ended by what `line` does, perhaps only `after` so many seconds.
    pub(super) async fn inside(&self, agent: &Agent, line: &str, after: u64) -> Result<()> {
        let line = match after {
            0 => line.to_owned(),
            after => format!("(sleep {after}; {line}) </dev/null >/dev/null 2>&1 &"),
        };
        // How it ends does not matter: its sandbox may end with it.
        agent.exec(self.name, shell(&line), LIMIT).await.map(drop)
    }

    /// Waits for its end; an error is what is wrong with it.
    pub(super) async fn check(&self, agent: &Agent, begin: Timestamp) -> Result<()> {
        let seen = agent.wait_finished(self.name, LIMIT).await?;
        let status = if self.end == End::Deletion {
            self.verdict.judge(&seen)?
        } else {
            self.verdict.check(agent, self.name, &seen).await?
        };
        measures(&status, begin).with_context(|| format!("{:#}", seen.0["status"]["termination"]))
    }
}

/// Its times are those that were seen, and its peak can be.
fn measures(status: &SandboxStatus, begin: Timestamp) -> Result<()> {
    let end = status.termination.as_ref().context("it has no end")?;
    let finished = end.finished_at.as_ref().context("no time of its end")?.0;
    let seen = begin - SLACK..=Timestamp::now();
    ensure!(seen.contains(&finished), "it ended when nobody looked");
    if let Some(started) = &end.started_at {
        ensure!(seen.contains(&started.0), "it started when nobody looked");
        ensure!(started.0 <= finished, "it ended before it started");
    }
    let most = if end.reason == Reason::Evicted {
        BUDGET
    } else {
        EACH
    };
    match end.peak_memory_bytes {
        Some(peak) => ensure!((MIB..=most * MIB).contains(&peak), "its peak was {peak}"),
        // Where its sentry is gone nobody can look any more.
        None => ensure!(
            end.exit_code.is_none() || end.started_at.is_none(),
            "no peak"
        ),
    }
    Ok(())
}

/// Takes so many MiB.
fn eat(count: u32) -> String {
    format!("exec awk 'BEGIN {{ for (i = 0; i < {count}; i++) s[i] = sprintf(\"%1048576s\", i) }}'")
}

/// Exit codes, signals and limits of commands.
pub(super) fn commands() -> Vec<Row> {
    let error = |name, rest: &str, code| {
        Row::gated(name, rest, Reason::Error).told(|verdict| verdict.exit(code))
    };
    let signal = |name, rest: &str, number| {
        Row::gated(name, rest, Reason::Error).told(|verdict| verdict.signal(number))
    };
    let disk = |limit: &str| json!({"limits": {"ephemeral-storage": limit}});
    vec![
        Row::gated("exit-0", "exit 0", Reason::Completed),
        error("exit-1", "exit 1", 1),
        error("exit-42", "exit 42", 42),
        error("exit-255", "exit 255", 255),
        signal("killed-by-its-child", "sh -c 'kill -9 $PPID' & wait", 9),
        signal("sigterm", "kill -TERM $$; sleep 9", 15),
        signal("sigsegv", "kill -SEGV $$; sleep 9", 11),
        signal("sigabrt", "kill -ABRT $$; sleep 9", 6),
        Row::gated("oom-anonymous", &eat(200), Reason::OOMKilled),
        Row::gated(
            "oom-tmpfs",
            "mkdir -p /dev/shm; cat /dev/zero >/dev/shm/x",
            Reason::OOMKilled,
        ),
        // What can be taken back is no reason.
        Row::gated(
            "page-cache",
            "dd if=/dev/zero of=/big bs=1M count=160 && cat /big >/dev/null",
            Reason::Completed,
        )
        .with("resources", disk("256Mi")),
        // Neither is this: the command says how it ends.
        error(
            "disk-full",
            "dd if=/dev/zero of=/x bs=1M || { rm /x; echo >/x && exit 7; }",
            7,
        )
        .with("resources", disk("16Mi")),
    ]
}

/// Images and commands that cannot be started.
pub(super) fn starts(folder: &TempDir, silent: &str, private: &str) -> Result<Vec<Row>> {
    let odd = add(folder.path(), "odd", &odd_image()?)?;
    let planted = Layer::default().add("proc", Entry::File(Vec::new()))?;
    let invalid = busybox_with(vec![planted], |_| {})?;
    let invalid = add(folder.path(), "invalid", &invalid)?;
    let start = |name, spec, reason| Row::new(name, spec, End::Start, reason);
    let command = |path: &str| json!({"command": [path]});
    let hasty = json!({"lifecycle": {"startTimeoutSeconds": 3}});
    Ok(vec![
        start("start-timeout", hasty, Reason::StartTimeout).of(format!("{silent}/x:one")),
        start("image-not-found", json!({}), Reason::ImageNotFound).of("oci:absent:latest"),
        start("image-invalid", json!({}), Reason::ImageInvalid).of(invalid),
        start("image-unauthorized", json!({}), Reason::ImageUnauthorized)
            .of(format!("{private}/x:one")),
        start(
            "command-not-found",
            command("/bin/absent"),
            Reason::CommandNotFound,
        ),
        start(
            "not-executable",
            command("/plain"),
            Reason::CommandNotExecutable,
        )
        .of(odd),
        start(
            "no-folder",
            command("/bin/true"),
            Reason::CommandNotExecutable,
        )
        .with("workingDir", json!("/etc/passwd")),
    ])
}

/// What comes from outside, and what is done to init.
pub(super) fn others() -> Vec<Row> {
    let idle = |name, end, reason| Row::new(name, json!({}), end, reason);
    let kill = "until [ -e /pid ]; do sleep 0.05; done; kill -9 $(cat /pid)";
    let polite = "trap 'sleep 1; exit 5' TERM; touch /ready; while :; do sleep 0.05; done";
    vec![
        idle("ttl", End::Time, Reason::DeadlineExceeded)
            .with("lifecycle", json!({"ttlSeconds": 2})),
        idle("sentry-killed", End::Kill, Reason::RuntimeCrashed)
            .told(|verdict| verdict.says("status unknown")),
        Row::gated(
            "sentry-panicked",
            "while :; do sleep 100 & done",
            Reason::RuntimeCrashed,
        )
        .by(End::Panic)
        .told(|verdict| verdict.says("sentry panicked: ")),
        Row::new(
            "killed-by-its-user",
            line("echo $$ >/pid.new; mv /pid.new /pid; exec sleep 1000"),
            End::Inside(kill),
            Reason::Error,
        )
        .told(|verdict| verdict.signal(9)),
        Row::new("deleted", line(polite), End::Deletion, Reason::Deleted)
            .told(|verdict| verdict.exit(5)),
        Row::gated("init-killed", "kill -9 1; sleep 9", Reason::Error)
            .told(|verdict| verdict.signal(9)),
        idle("lost", End::Reboot, Reason::NodeLost).told(|verdict| verdict.says("rebooted")),
    ]
}

/// One that needs a budget of its own: beside it nobody else can have what it takes.
pub(super) fn greedy() -> Row {
    Row::gated("evicted", &eat(1000), Reason::Evicted)
        .with("resources", json!({"limits": {"memory": "1Gi"}}))
}
