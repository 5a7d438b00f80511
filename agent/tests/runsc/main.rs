//! Real sandboxes: from `runsc create` to a running `main`, and back to nothing. Needs root, runsc, cloche-init, busybox-static
//! and mkfs.erofs.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "the rules allow it in tests, but not in what tests share"
)]

mod groups;
mod rig;

use std::collections::BTreeMap;
use std::time::Duration;

use cloche_agent::cgroup::{Cgroups, Limits};
use cloche_agent::runsc::sentry::ContainerState;
use cloche_agent::runsc::{Sentry, create, panic_log, tear_down};
use cloche_agent::sys::{Exit, Process};
use nix::sys::signal::Signal;
use tokio::time::timeout;

use rig::{DEADLINE, GUEST_MEMORY, MIB, Rig, shell};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_create_to_main_and_back_to_nothing() {
    let rig = Rig::new().await;
    let plan = rig.plan("whole-life");
    let created = rig.create(&plan).await;
    let pid = created.sentry.id().pid;

    let mut sentry = Sentry::connect(&plan.paths).await.expect("connected");
    sentry.set_network().await.expect("a network");
    sentry.start_root().await.expect("a root container");
    let channel = rig.start_main(&mut sentry, &plan, Some(16 * MIB)).await;

    let processes = sentry.processes().await.expect("told");
    assert!(!processes.is_empty(), "main has no process");
    assert_eq!(
        sentry.main_state().await.expect("told"),
        ContainerState::Running
    );
    assert_unprivileged(pid);
    assert_inherits_nothing(pid);
    assert_only_expected_files(pid, &rig);

    let memory = shell(&mut sentry, "grep MemTotal /proc/meminfo").await;
    assert_eq!(
        memory.split_whitespace().nth(1),
        Some((GUEST_MEMORY >> 10).to_string().as_str()),
        "{memory}"
    );
    assert_eq!(shell(&mut sentry, "nproc").await.trim(), "2");
    assert_tmp_is_in_the_writable_layer(&mut sentry).await;
    let caps = shell(&mut sentry, "grep Cap /proc/self/status; id -u").await;
    for line in caps.lines().filter(|line| line.starts_with("Cap")) {
        assert!(line.ends_with("0000000000000000"), "{caps}");
    }
    sentry
        .signal_main(Signal::SIGCONT)
        .await
        .expect("delivered");

    rig.tear_down(&plan).await;
    assert_eq!(
        created.sentry.ended().await.expect("told"),
        Exit::Signal(Signal::SIGKILL as i32)
    );
    drop(channel);
}

/// Runs as nobody, without one capability, under a system call filter (from `StartRoot` on).
fn assert_unprivileged(pid: i32) {
    let status = status(pid);
    assert_eq!(status["Uid"], "65534\t65534\t65534\t65534");
    assert_eq!(status["Gid"], "65534\t65534\t65534\t65534");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status[set], "0000000000000000", "{set}");
    }
    assert_eq!(status["Seccomp"], "2");
}

fn assert_inherits_nothing(pid: i32) {
    let read =
        |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).expect("readable");
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").expect("readable");
    let own: i32 = own.trim().parse().expect("a number");
    assert_eq!(read("oom_score_adj").trim(), own.max(900).to_string());
    assert!(read("limits").contains("Max core file size        0                    0"));
    let stat = read("stat");
    let fields: Vec<&str> = stat[stat.rfind(')').expect("a name") + 2..]
        .split(' ')
        .collect();
    assert_eq!(fields[3], pid.to_string(), "leads no session");
    assert_eq!(fields[16], "0", "is nice");
}

/// Nothing but its own sockets, memory, the panic log and the files that it was given.
fn assert_only_expected_files(pid: i32, rig: &Rig) {
    let folder = rig.dir.path().display().to_string();
    let mut unexpected = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).expect("readable") {
        let target = std::fs::read_link(entry.expect("entry").path()).expect("a link");
        let target = target.to_string_lossy().into_owned();
        count += 1;
        let expected = [
            "/dev/null",
            "socket:[",
            "pipe:[",
            "anon_inode:",
            "/memfd:",
            &format!("{folder}/whole-life/panic/"),
            // The writable layer, unlinked.
            &format!("{folder}/#"),
            &format!("{folder}/image.erofs"),
            &rig.profile.init_erofs().display().to_string(),
        ]
        .iter()
        .any(|prefix| target.starts_with(prefix));
        if !expected {
            unexpected.push(target);
        }
    }
    assert!(unexpected.is_empty(), "unexpected: {unexpected:?}");
    assert!(count < 64, "{count} open files");
}

async fn assert_tmp_is_in_the_writable_layer(sentry: &mut Sentry) {
    let mounts = shell(sentry, "cat /proc/self/mounts").await;
    assert!(
        !mounts
            .lines()
            .any(|line| line.split(' ').nth(1) == Some("/tmp")),
        "{mounts}"
    );
    let full = shell(
        sentry,
        "busybox dd if=/dev/zero of=/tmp/full bs=1M count=20 2>&1; busybox wc -c </tmp/full; busybox rm /tmp/full",
    )
    .await;
    assert!(full.contains("No space left on device"), "{full}");
    assert!(full.contains("16777216"), "{full}");
}

fn status(pid: i32) -> BTreeMap<String, String> {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .expect("readable")
        .lines()
        .filter_map(|line| line.split_once(":\t"))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_is_killed_half_way_leaves_nothing() {
    let rig = Rig::new().await;
    for round in 0..20_u32 {
        let plan = rig.plan(&format!("half-{round}"));
        // Spread over the whole time that a create takes, in an order that differs from run to run.
        let moment = Duration::from_millis(u64::from((round * 7 + std::process::id()) % 20) * 5);
        let cgroups = rig.cgroups();
        let creating = create(&plan, &cgroups);
        // Dropped at the moment: what the agent's own death would do.
        let created = timeout(moment, creating).await;
        if let Ok(created) = created {
            created.expect("created");
        }
        kill_create(&rig, &plan.group);
        rig.tear_down(&plan).await;
    }
}

/// `kill -9` of the `runsc create` process alone.
fn kill_create(rig: &Rig, group: &str) {
    for pid in rig.groups.processes(group).expect("readable") {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if line.split(|byte| *byte == 0).any(|word| word == b"create") {
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_fails_or_takes_too_long_says_why() {
    let rig = Rig::new().await;
    let mut plan = rig.plan("late");
    plan.deadline = Duration::from_millis(5);
    let error = create(&plan, &rig.cgroups()).await.expect_err("too late");
    assert!(error.to_string().contains("longer than 5 ms"), "{error}");
    rig.tear_down(&plan).await;

    let plan = rig.plan("wrong");
    std::fs::remove_file(rig.profile.init_erofs()).expect("removed");
    let error = create(&plan, &rig.cgroups())
        .await
        .expect_err("no file system");
    assert!(error.to_string().contains("init.erofs"), "{error}");
    rig.tear_down(&plan).await;
}

/// runsc joins the group that its spec names: another one than ours must not go unseen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentry_outside_its_groups_is_refused() {
    let rig = Rig::new().await;
    let mut plan = rig.plan("stray");
    plan.cgroups_path = format!("{}/elsewhere", rig.groups.path);
    let error = create(&plan, &rig.cgroups()).await.expect_err("outside");
    assert!(error.to_string().contains("control group"), "{error}");
    for group in rig.groups.list().expect("readable") {
        tear_down::kill(&rig.cgroups(), &group, DEADLINE)
            .await
            .expect("killed");
    }
    rig.tear_down(&plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_after_the_death_of_the_sentry_fail_at_once() {
    let rig = Rig::new().await;
    let plan = rig.plan("dead");
    let created = rig.create(&plan).await;
    let mut sentry = Sentry::connect(&plan.paths).await.expect("connected");
    sentry.set_network().await.expect("a network");
    let process = created.sentry;
    assert!(process.signal(Signal::SIGKILL).expect("sent"));
    assert_eq!(
        process.ended().await.expect("told"),
        Exit::Signal(Signal::SIGKILL as i32)
    );
    assert!(!process.signal(Signal::SIGKILL).expect("not an error"));
    assert!(Process::open(process.id()).expect("readable").is_none());
    sentry.start_root().await.expect_err("nobody is there");
    sentry
        .start_root()
        .await
        .expect_err("the connection is used up");
    Sentry::connect(&plan.paths)
        .await
        .expect_err("nobody listens");
    tear_down::kill(&rig.cgroups(), &plan.group, DEADLINE)
        .await
        .expect("stubs die too");
    rig.tear_down(&plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentry_that_panicked_is_told_by_its_first_line() {
    let rig = Rig::new().await;
    let plan = rig.plan("panics");
    let created = rig.create(&plan).await;
    let mut sentry = Sentry::connect(&plan.paths).await.expect("connected");
    sentry.set_network().await.expect("a network");
    sentry.start_root().await.expect("a root container");
    assert_eq!(panic_log::reason(&plan.paths.panic()).expect("read"), None);
    let channel = rig.start_main(&mut sentry, &plan, None).await;
    // Every guest process needs a host process: a sentry that may not have one more panics.
    // The limit counts threads.
    let used: usize = rig
        .groups
        .processes(&plan.group)
        .expect("readable")
        .iter()
        .map(|pid| format!("/proc/{pid}/task"))
        .filter_map(|threads| Some(std::fs::read_dir(threads).ok()?.count()))
        .sum();
    let starved = Limits {
        pids: u32::try_from(used).expect("few") + 20,
        ..plan.limits
    };
    rig.groups.limit(&plan.group, &starved).expect("limited");
    let busy = "i=0; while [ $i -lt 100 ]; do busybox sleep 60 & i=$((i+1)); done; wait";
    let working = timeout(DEADLINE, shell(&mut sentry, busy));
    let ended = timeout(DEADLINE, created.sentry.ended());
    // What the guest said before is of no interest.
    let (_, exit) = tokio::join!(working, ended);
    assert_eq!(exit.expect("it ends").expect("told"), Exit::Code(2));
    let reason = panic_log::reason(&plan.paths.panic())
        .expect("read")
        .expect("a reason");
    // Which of the two depends on who needed the thread: the sentry's code or Go's runtime.
    let known = ["panic: ", "fatal error: "];
    assert!(
        known.iter().any(|start| reason.starts_with(start)),
        "{reason}"
    );
    rig.tear_down(&plan).await;
    drop(channel);
}
