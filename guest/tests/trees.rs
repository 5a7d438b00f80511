//! Which processes a session has, whatever they do; and what the guest can do to the init.

mod support;

use cloche_proto::frame::{ExitCause, FaultKind, SessionSpec, SignalScope};
use support::{Sandbox, argv, cause, eventually, living, shell};

/// A tree that does what it can to leave: new sessions, double forks, other users.
fn runaways(mark: &str) -> String {
    format!(
        "setsid sleep 1000.{mark}1 & \
         (setsid sh -c 'sleep 1000.{mark}2 & exec sleep 1000.{mark}3' &) ; \
         setpriv --reuid 1000 --clear-groups setsid sleep 1000.{mark}4 & \
         while [ $(pgrep -fc '^sleep 1000.{mark}') -lt 4 ]; do :; done; \
         echo up; sleep 1000.{mark}5"
    )
}

#[test]
fn whole_tree_is_killed_and_nobody_else() {
    let (_sandbox, mut agent) = Sandbox::start();
    let mark = format!("{}7", std::process::id());
    let other = format!("{}8", std::process::id());
    agent.create("other", shell(&format!("echo up; exec sleep 1000.{other}")));
    agent.create("a", shell(&runaways(&mark)));
    agent.until_stdout("a", "up");
    agent.until_stdout("other", "up");
    agent.signal("a", 9, SignalScope::Tree);
    assert_eq!(agent.finish("a").signal, 9);
    agent.until("the end of the output", |agent| {
        agent.reports["a"].stdout_end.is_some()
    });
    assert_eq!((living(&mark), living(&other)), (0, 1));
    assert!(agent.reports["other"].exit.is_none());
}

#[test]
fn tree_of_an_ended_command_can_still_be_killed() {
    let (sandbox, mut agent) = Sandbox::start();
    let mark = format!("{}9", std::process::id());
    agent.create("a", shell(&format!("setsid sleep 1000.{mark} & exit 0")));
    assert_eq!(agent.finish("a").code, 0);
    eventually("the daemon runs", || living(&mark) == 1);
    agent.signal("a", 15, SignalScope::Tree);
    agent.until("the daemon's end", |agent| {
        agent.reports["a"].stdout_end.is_some()
    });
    eventually("the daemon is gone", || living(&mark) == 0);
    // A daemon of a forgotten session goes on, and its group goes with it.
    agent.create(
        "b",
        shell(&format!(
            "setsid sleep 1000.{mark} >/dev/null 2>&1 & exit 0"
        )),
    );
    agent.finish("b");
    eventually("the second runs", || living(&mark) == 1);
    agent.forget("a");
    agent.forget("b");
    agent.ping();
    assert_eq!((living(&mark), sandbox.group_count()), (1, 1));
}

#[test]
fn time_that_runs_out_kills_the_tree() {
    let (_sandbox, mut agent) = Sandbox::start();
    let mark = format!("{}6", std::process::id());
    let spec = SessionSpec {
        timeout_ms: 1500,
        ..shell(&runaways(&mark))
    };
    let exit = agent.run("a", spec);
    assert_eq!(
        (cause(&exit), exit.code, exit.signal),
        (ExitCause::TimedOut, 137, 9)
    );
    assert!(
        (1400..3000).contains(&exit.duration_ms),
        "after {} ms",
        exit.duration_ms
    );
    assert!(agent.stdout("a").contains("up"), "what was printed is kept");
    eventually("nothing is left", || living(&mark) == 0);
    let spec = SessionSpec {
        timeout_ms: 60_000,
        ..argv(&["true"])
    };
    assert_eq!(cause(&agent.run("b", spec)), ExitCause::Unspecified);
}

#[test]
fn growing_tree_is_killed() {
    let (_sandbox, mut agent) = Sandbox::start();
    // Each process makes another and ends: never is there one to be found for long.
    let spec = SessionSpec {
        timeout_ms: 700,
        ..shell("f() { (f &) ; exit; }; f & g() { (g &) ; exit; }; g & echo up; sleep 1000")
    };
    let exit = agent.run("a", spec);
    assert_eq!(cause(&exit), ExitCause::TimedOut);
    agent.until("every writer's end", |agent| {
        agent.reports["a"].stdout_end.is_some()
    });
}

#[test]
fn guest_sees_nothing_of_the_holder() {
    let (_sandbox, mut agent) = Sandbox::start();
    let (_, stdout, _) = agent.shell(
        "a",
        "tr '\\0' ' ' </proc/1/cmdline; echo; ls /proc | grep -c '^[0-9]'; \
         for fd in /proc/1/fd/*; do readlink $fd && cat <$fd; done; mount | grep -c cgroup.*/run || true",
    );
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines[0].contains("cloche-init holder"), "{stdout}");
    assert!(
        lines[1].parse::<u32>().unwrap() < 8,
        "processes of others show: {stdout}"
    );
    assert_eq!(
        &lines[2..],
        ["0"],
        "the spawner's files or the holder's mounts show: {stdout}"
    );
    // The kernel's own protection of a namespace's first process; in gVisor there is none, and the spawner is lost.
    assert_eq!(
        agent
            .shell("b", "kill -9 1; kill -TERM 1; kill -1 1; echo on")
            .1,
        "on\n"
    );
    assert!(agent.faults.is_empty());
}

#[test]
fn stopped_spawner_goes_on() {
    let (sandbox, mut agent) = Sandbox::start();
    let spawner = nix::unistd::Pid::from_raw(i32::try_from(sandbox.spawner()).unwrap());
    for number in 0..5 {
        nix::sys::signal::kill(spawner, nix::sys::signal::Signal::SIGSTOP).unwrap();
        assert_eq!(agent.shell(&format!("s{number}"), "echo on").1, "on\n");
    }
}

#[test]
fn killed_spawner_ends_every_session_and_is_told() {
    let (sandbox, mut agent) = Sandbox::start();
    agent.create("a", shell("echo up; sleep 1000"));
    agent.until_stdout("a", "up");
    let spawner = nix::unistd::Pid::from_raw(i32::try_from(sandbox.spawner()).unwrap());
    nix::sys::signal::kill(spawner, nix::sys::signal::Signal::SIGKILL).unwrap();
    agent.until("the fault", |agent| !agent.faults.is_empty());
    assert_eq!(agent.faults[0].kind, FaultKind::SpawnerKilled as i32);
    assert!(
        agent.faults[0].message.contains("signal 9"),
        "{}",
        agent.faults[0].message
    );
    assert_eq!(agent.finish("a").signal, 9);
    let exit = agent.run("b", argv(&["true"]));
    assert_eq!(cause(&exit), ExitCause::NoResources);
    // A later agent is told too.
    let mut agent = agent.die().over(sandbox.bridge());
    agent.hello();
    agent.until("the fault again", |agent| !agent.faults.is_empty());
    assert_eq!(agent.finish("a").signal, 9);
}

#[test]
fn orphans_are_reaped() {
    let (_sandbox, mut agent) = Sandbox::start();
    let (_, stdout, _) = agent.shell(
        "a",
        "for i in 1 2 3 4 5 6 7 8; do (setsid sh -c 'exit 0' &); done; sleep 0.3; \
         grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l",
    );
    assert_eq!(stdout.trim(), "0");
}
