//! Starting programs, and who takes which exit status. Needs busybox-static.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "the rules allow it in tests, but not in what tests share"
)]

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cloche_agent::process::command;
use cloche_agent::sys::log::BoundedLog;
use cloche_agent::sys::{Exit, Process, ProcessId, Spawn, SpawnError, orphan, spawn};
use nix::sys::signal::Signal;
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(20);

/// Runs a shell script by [`spawn`]; its output goes to stderr.
fn run(script: &str, log: &BoundedLog, join: &[PathBuf]) -> Result<Process, SpawnError> {
    let arguments: Vec<OsString> = ["sh", "-c", script].map(OsString::from).into();
    spawn(&Spawn {
        program: Path::new("/bin/busybox"),
        arguments: &arguments,
        join,
        stderr: log.file().as_fd(),
        oom_score_adj: 500,
    })
}

async fn ended(process: &Process) -> Exit {
    timeout(SOON, process.ended())
        .await
        .expect("it ends")
        .expect("told")
}

fn log() -> BoundedLog {
    BoundedLog::new(32 << 10).expect("made")
}

#[tokio::test]
async fn a_child_that_cannot_join_its_group_never_runs() {
    let dir = tempfile::tempdir().expect("made");
    let witness = dir.path().join("ran");
    let script = format!("echo >{}", witness.display());
    let log = log();
    let missing = run(&script, &log, &[dir.path().join("no/cgroup.procs")]).expect_err("missing");
    assert!(missing.to_string().contains("no/cgroup.procs"), "{missing}");
    // A file that can be opened, but takes no write: ENOSPC.
    let full = run(&script, &log, &[PathBuf::from("/dev/full")]).expect_err("full");
    assert!(
        full.to_string().starts_with("join the control group"),
        "{full}"
    );
    let nothing = spawn(&Spawn {
        program: Path::new("/nowhere/program"),
        arguments: &[],
        join: &[],
        stderr: log.file().as_fd(),
        oom_score_adj: 0,
    })
    .expect_err("not there");
    assert_eq!(nothing.to_string(), "execute for /nowhere/program");
    assert!(!witness.exists());
}

#[tokio::test]
async fn ends_are_told_exactly() {
    for (script, exit) in [
        ("exit 0", Exit::Code(0)),
        ("exit 255", Exit::Code(255)),
        ("kill -9 $$", Exit::Signal(9)),
        ("kill -ABRT $$", Exit::Signal(6)),
        // No name in most tables.
        ("kill -40 $$", Exit::Signal(40)),
    ] {
        let process = run(script, &log(), &[]).expect("started");
        assert_eq!(ended(&process).await, exit, "{script}");
        assert_eq!(ended(&process).await, Exit::Unknown, "{script}, again");
        assert!(Process::open(process.id()).expect("readable").is_none());
    }
}

#[tokio::test]
async fn a_pid_with_another_start_time_is_another_process() {
    let process = run("read x", &log(), &[]).expect("started");
    let stopped = run("kill -STOP $$", &log(), &[]).expect("started");
    let other = ProcessId {
        start_time: stopped.id().start_time + 1,
        ..stopped.id()
    };
    assert!(Process::open(other).expect("readable").is_none());
    assert!(Process::open(stopped.id()).expect("readable").is_some());
    assert!(stopped.signal(Signal::SIGKILL).expect("sent"));
    assert_eq!(ended(&stopped).await, Exit::Signal(9));
    // stdin is /dev/null.
    assert_eq!(ended(&process).await, Exit::Code(1));
}

/// Orphans are reaped; a status that somebody waits for is left, whoever waits and however.
#[tokio::test]
async fn only_what_nobody_waits_for_is_reaped() {
    orphan::become_subreaper().expect("a subreaper");
    let reaper = tokio::spawn(orphan::reap());
    let held = run("exit 7", &log(), &[]).expect("started");
    let mut foreign = command("/bin/busybox")
        .args(["sh", "-c", "exit 8"])
        .spawn()
        .expect("started");
    let foreign_pid = i32::try_from(foreign.id().expect("alive")).expect("a pid");
    // Both are dead before the orphan is, so the reaper sees them first.
    timeout(SOON, held.gone())
        .await
        .expect("ends")
        .expect("told");
    let log = log();
    let leaver = run("setsid sh -c 'exit 9' & echo $! >&2", &log, &[]).expect("started");
    assert_eq!(ended(&leaver).await, Exit::Code(0));
    let orphan = log.text(100).expect("read");
    reaped(orphan.parse().expect("a pid")).await;
    assert_eq!(ended(&held).await, Exit::Code(7));
    assert!(Path::new(&format!("/proc/{foreign_pid}")).exists());
    let status = timeout(SOON, foreign.wait()).await.expect("ends");
    assert_eq!(status.expect("not stolen").code(), Some(8));
    // What was dropped without asking is nobody's any more. Of signal 40 a table of names knows nothing.
    for script in ["exit 0", "kill -40 $$"] {
        let dropped = run(script, &log, &[]).expect("started");
        let pid = dropped.id().pid;
        drop(dropped);
        reaped(pid).await;
    }
    assert!(!reaper.is_finished());
}

/// Waits until no process has this pid, not even a dead one.
async fn reaped(pid: i32) {
    let gone = async {
        while Path::new(&format!("/proc/{pid}")).exists() {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, gone).await.expect("it is reaped");
}
