//! The real kernel: v1, v2 or hybrid, whatever this machine has. These tests need root and a writable /sys/fs/cgroup.
//!
//! Each test has a parent of its own in the hierarchies' roots and takes it away at its end. The processes in the groups are
//! this test program again, running [`child`].

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::*;
use crate::clock::boot_time;

const MIB: u64 = 1 << 20;
const DEADLINE: Duration = Duration::from_mins(1);

/// A parent group of this test alone.
struct Scene {
    groups: Groups,
    parent: String,
}

impl Scene {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let parent = format!(
            "cloche-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let groups = Groups::open(&parent).expect("this test needs the machine's cgroups");
        Self { groups, parent }
    }

    fn create(&self, name: &str, limits: &Limits) {
        self.groups
            .create(name)
            .expect("this test needs root: make a group");
        self.groups.limit(name, limits).unwrap();
    }

    /// Kills and removes as the agent does: repeat until empty.
    fn clear(&self, name: &str) {
        until("the group is empty", || {
            self.groups.kill(name).unwrap();
            self.groups.processes(name).unwrap().is_empty()
        });
        until("the group can be removed", || {
            self.groups.remove(name).is_ok()
        });
    }

    fn directories(&self, name: &str) -> Vec<PathBuf> {
        self.groups
            .layout()
            .hierarchies
            .iter()
            .map(|h| h.mount.join(&self.parent).join(name))
            .collect()
    }

    fn holds(&self, name: &str, file: &str) -> Option<String> {
        self.directories(name)
            .into_iter()
            .find_map(|group| std::fs::read_to_string(group.join(file)).ok())
            .map(|text| text.trim().to_owned())
    }

    fn verdict(&self, name: &str, sentry_gone: bool) -> Verdict {
        verdict(&Evidence {
            sentry_gone,
            before: Counters::default(),
            after: self.groups.counters(name).unwrap(),
            panicked: false,
            logged: self
                .groups
                .oom_limit(name)
                .expect("this test needs /dev/kmsg"),
        })
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for name in self.groups.list().unwrap_or_default() {
            self.clear(&name);
        }
        self.groups.remove_parent().unwrap();
        for path in self.directories("") {
            assert!(!path.exists(), "{} is left", path.display());
        }
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = boot_time() + DEADLINE;
    while !holds() {
        assert!(boot_time() < deadline, "not within a minute: {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// A process in a group. It does what it is told, line by line, and answers each line with one.
struct Member {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Member {
    fn join(scene: &Scene, name: &str) -> Self {
        let files = scene.groups.join_files(name).unwrap();
        Self::join_files(&files)
    }

    fn join_files(files: &[PathBuf]) -> Self {
        let files: Vec<_> = files.iter().map(|f| f.to_str().unwrap()).collect();
        let mut process = crate::process::command(std::env::current_exe().unwrap())
            .into_std()
            .args(["--exact", "cgroup::tests::child", "--nocapture"])
            .env("CLOCHE_TEST_JOIN", files.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut member = Self {
            orders: process.stdin.take().unwrap(),
            answers: BufReader::new(process.stdout.take().unwrap()),
            process,
        };
        assert_eq!(member.answer().as_deref(), Some("joined"));
        member
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.process.id()).unwrap()
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// None at its end. The test harness prints lines of its own.
    fn answer(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.answers.read_line(&mut line).unwrap() > 0 {
            if let Some((_, answer)) = line.trim_end().split_once("child: ") {
                return Some(answer.to_owned());
            }
            line.clear();
        }
        None
    }

    fn does(&mut self, order: &str) -> Option<String> {
        self.order(order);
        self.answer()
    }

    /// The signal that it died of.
    fn signal(&mut self) -> Option<i32> {
        self.process.wait().unwrap().signal()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Not a test: what runs in the groups. Does nothing when run as a test.
#[test]
fn child() {
    let Ok(join) = std::env::var("CLOCHE_TEST_JOIN") else {
        return;
    };
    for file in join.split(' ') {
        std::fs::write(file, "0").unwrap();
    }
    println!("child: joined");
    let mut eaten = Vec::new();
    let mut forked = Vec::new();
    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        let (verb, object) = order.split_once(' ').unwrap_or((&order, ""));
        match verb {
            "eat" => {
                for _ in 0..object.parse::<u64>().unwrap() {
                    eaten.push(vec![1u8; usize::try_from(MIB).unwrap()]);
                }
            }
            "cache" => {
                let mut file = tempfile::tempfile().unwrap();
                for _ in 0..object.parse::<u64>().unwrap() {
                    file.write_all(&vec![1; usize::try_from(MIB).unwrap()])
                        .unwrap();
                }
            }
            "victim" => std::fs::write("/proc/self/oom_score_adj", "1000").unwrap(),
            // Keeps forking until it is killed.
            "fork" => {
                let failed = (0..object.parse::<u64>().unwrap()).find_map(|_| {
                    let shell = crate::process::command("/bin/sh")
                        .into_std()
                        .args(["-c", "while :; do sleep 0.01; done"])
                        .spawn();
                    shell.map(|shell| forked.push(shell)).err()
                });
                println!("child: forked {} {failed:?}", forked.len());
                continue;
            }
            _ => unreachable!(),
        }
        println!("child: done");
    }
}

const LIMITS: Limits = Limits {
    memory: 1024 * MIB,
    cpu_millis: 2000,
    cpu_request_millis: 500,
    pids: 100,
};

#[test]
fn limits_are_held_and_rounded_as_documented() {
    let scene = Scene::new();
    scene.create(
        "a",
        &Limits {
            memory: 64 * MIB + 5000,
            cpu_millis: 1500,
            cpu_request_millis: 250,
            pids: 77,
        },
    );
    let holds = |file: &str| scene.holds("a", file);
    let memory = (64 * MIB + 4096).to_string();
    if let Some(limit) = holds("memory.limit_in_bytes") {
        assert_eq!(limit, memory);
        if let Some(both) = holds("memory.memsw.limit_in_bytes") {
            assert_eq!(both, (68 * MIB + 4096).to_string());
        }
    } else {
        assert_eq!(holds("memory.max").unwrap(), memory);
        assert_eq!(holds("memory.oom.group").unwrap(), "1");
    }
    if let Some(quota) = holds("cpu.cfs_quota_us") {
        assert_eq!(
            (quota.as_str(), holds("cpu.shares").unwrap().as_str()),
            ("150000", "256")
        );
    } else {
        assert_eq!(holds("cpu.max").unwrap(), "150000 100000");
        assert_eq!(holds("cpu.weight").unwrap(), "25");
    }
    assert_eq!(holds("pids.max").unwrap(), "77");

    // A claim changes them, up and down, any number of times.
    for memory in [512, 32, 32, 256] {
        let memory = memory * MIB;
        scene
            .groups
            .limit("a", &Limits { memory, ..LIMITS })
            .unwrap();
        let mut file = ["memory.limit_in_bytes", "memory.max"].into_iter();
        assert_eq!(file.find_map(holds).unwrap(), memory.to_string());
    }
    for (limits, what) in [
        (
            Limits {
                memory: 4095,
                ..LIMITS
            },
            "memory limit",
        ),
        (
            Limits {
                cpu_millis: 0,
                ..LIMITS
            },
            "cpu limit",
        ),
        (Limits { pids: 0, ..LIMITS }, "pids limit"),
    ] {
        let error = scene.groups.limit("a", &limits).unwrap_err();
        assert!(error.to_string().starts_with(what), "{error}");
    }
}

#[test]
fn groups_are_made_listed_and_removed_in_every_hierarchy() {
    let scene = Scene::new();
    assert_eq!(scene.groups.list().unwrap(), [""; 0]);
    for _ in 0..2 {
        scene.groups.create("a").unwrap();
        scene.groups.create("b").unwrap();
    }
    for group in scene.directories("a") {
        assert!(group.is_dir(), "{}", group.display());
    }
    // Left by a removal that was cut off: still listed, made whole by the next create.
    for group in scene.directories("b").into_iter().skip(1) {
        std::fs::remove_dir(group).unwrap();
    }
    assert_eq!(scene.groups.list().unwrap(), ["a", "b"]);
    scene.groups.create("b").unwrap();
    // A group below, as another program may make it.
    for group in scene.directories("a") {
        std::fs::create_dir(group.join("below")).unwrap();
    }
    for _ in 0..2 {
        scene.groups.remove("a").unwrap();
    }
    for group in scene.directories("a") {
        assert!(!group.exists(), "{}", group.display());
    }
    assert_eq!(scene.groups.list().unwrap(), ["b"]);
}

#[test]
fn a_group_that_is_not_there() {
    let scene = Scene::new();
    assert_eq!(scene.groups.processes("gone").unwrap(), [0; 0]);
    scene.groups.kill("gone").unwrap();
    scene.groups.remove("gone").unwrap();
    scene.groups.counters("gone").unwrap_err();
    scene.groups.limit("gone", &LIMITS).unwrap_err();
    assert!(scene.directories("gone").iter().all(|g| !g.exists()));
}

#[test]
fn hostile_names_reach_no_file() {
    let scene = Scene::new();
    for name in ["..", "../x", "", "a/b", "cgroup.procs"] {
        let refused = |error: CgroupError| assert!(matches!(error, CgroupError::Name(_)));
        refused(scene.groups.create(name).unwrap_err());
        refused(scene.groups.limit(name, &LIMITS).unwrap_err());
        refused(scene.groups.join_files(name).unwrap_err());
        refused(scene.groups.processes(name).unwrap_err());
        refused(scene.groups.assert_member(name, 1).unwrap_err());
        refused(scene.groups.kill(name).unwrap_err());
        refused(scene.groups.counters(name).unwrap_err());
        refused(scene.groups.oom_limit(name).unwrap_err());
        refused(scene.groups.remove(name).unwrap_err());
        refused(Groups::open(name).unwrap_err());
    }
    assert!(scene.directories("").iter().all(|parent| !parent.exists()));
}

#[test]
fn membership_is_seen_in_every_hierarchy() {
    let scene = Scene::new();
    scene.create("a", &LIMITS);
    scene.create("b", &LIMITS);
    let member = Member::join(&scene, "a");
    scene.groups.assert_member("a", member.pid()).unwrap();
    assert_eq!(scene.groups.processes("a").unwrap(), [member.pid()]);
    let error = scene.groups.assert_member("b", member.pid()).unwrap_err();
    assert!(matches!(error, CgroupError::NotMember { .. }), "{error}");
    scene.groups.assert_member("a", 1).unwrap_err();
    // In one hierarchy it is elsewhere.
    let elsewhere = scene.groups.join_files("b").unwrap().pop().unwrap();
    std::fs::write(&elsewhere, member.pid().to_string()).unwrap();
    scene.groups.assert_member("a", member.pid()).unwrap_err();
    assert_eq!(scene.groups.processes("b").unwrap(), [member.pid()]);
    assert!(scene.groups.remove("b").is_err(), "removed under a process");
}

#[test]
fn a_process_that_joined_only_one_hierarchy_is_killed() {
    let scene = Scene::new();
    scene.create("a", &LIMITS);
    for file in scene.groups.join_files("a").unwrap() {
        let mut member = Member::join_files(&[file]);
        scene.clear("a");
        assert_eq!(member.signal(), Some(9));
        scene.create("a", &LIMITS);
    }
}

fn kills_what_forks(kill: impl Fn(&Groups, &str) -> Result<(), CgroupError>) {
    let scene = Scene::new();
    scene.create("a", &LIMITS);
    let mut member = Member::join(&scene, "a");
    assert_eq!(member.does("fork 20").unwrap(), "forked 20 None");
    assert!(scene.groups.processes("a").unwrap().len() > 20);
    let mut rounds = 0;
    until("everything is dead", || {
        rounds += 1;
        kill(&scene.groups, "a").unwrap();
        scene.groups.processes("a").unwrap().is_empty()
    });
    eprintln!("killed in {rounds} rounds");
    assert_eq!(member.signal(), Some(9));
    // Nothing escaped: the group can be removed, in every hierarchy.
    until("the group can be removed", || {
        scene.groups.remove("a").is_ok()
    });
}

#[test]
fn kill_beats_forking() {
    kills_what_forks(Groups::kill);
}

/// As on kernels without cgroup.kill.
#[test]
fn kill_one_by_one_beats_forking() {
    kills_what_forks(Groups::kill_each);
}

#[test]
fn the_pids_limit_is_hit_and_counted() {
    let scene = Scene::new();
    scene.create("a", &Limits { pids: 12, ..LIMITS });
    let mut member = Member::join(&scene, "a");
    let answer = member.does("fork 50").unwrap();
    assert!(
        answer.contains("Resource temporarily unavailable"),
        "{answer}"
    );
    let counters = scene.groups.counters("a").unwrap();
    assert!(counters.pids_limit_hits > 0, "{counters:?}");
    assert!(counters.cpu_usec > 0, "{counters:?}");
    assert_eq!(scene.verdict("a", false), Verdict::Alive);
    assert_eq!(
        scene.verdict("a", true),
        Verdict::Ended(Death::PidsExceeded)
    );
}

#[test]
fn the_own_memory_limit_kills_and_is_named() {
    let scene = Scene::new();
    let memory = 96 * MIB;
    scene.create("a", &Limits { memory, ..LIMITS });
    let mut eater = Member::join(&scene, "a");
    let mut other = Member::join(&scene, "a");
    assert_eq!(eater.does("eat 32").unwrap(), "done");
    until("the use is counted", || {
        let counters = scene.groups.counters("a").unwrap();
        assert!(
            counters.oom_kills == 0 && counters.memory < memory,
            "{counters:?}"
        );
        counters.memory >= 32 * MIB
    });
    eater.does("victim").unwrap();
    assert_eq!(eater.does("eat 256"), None);
    assert_eq!(eater.signal(), Some(9));
    let counters = scene.groups.counters("a").unwrap();
    assert!(
        counters.oom_kills > 0 && counters.memory_limit_hits > 0,
        "{counters:?}"
    );
    assert_eq!(scene.verdict("a", true), Verdict::Ended(Death::OomKilled));
    if scene.holds("a", "memory.oom.group").is_some() {
        assert_eq!(other.signal(), Some(9), "oom.group kills all");
    } else {
        // v1 kills one, and the agent the rest.
        assert_eq!(other.does("eat 1").unwrap(), "done");
        assert_eq!(scene.verdict("a", false), Verdict::KillGroup);
    }
    // The counters are there until the group is removed.
    until("the group is empty", || {
        scene.groups.kill("a").unwrap();
        scene.groups.processes("a").unwrap().is_empty()
    });
    assert!(scene.groups.counters("a").unwrap().oom_kills > 0);
}

#[test]
fn page_cache_is_not_memory_and_kills_nobody() {
    let scene = Scene::new();
    let memory = 64 * MIB;
    scene.create("a", &Limits { memory, ..LIMITS });
    let mut writer = Member::join(&scene, "a");
    assert_eq!(writer.does("cache 128").unwrap(), "done");
    let counters = scene.groups.counters("a").unwrap();
    assert_eq!(counters.oom_kills, 0);
    assert!(counters.memory < 32 * MIB, "{counters:?}");
    // The fact that makes v1's count ambiguous, and v2's not.
    let v1 = scene.holds("a", "memory.failcnt").is_some();
    assert_eq!(counters.memory_limit_hits > 0, v1, "{counters:?}");
    assert_eq!(scene.verdict("a", false), Verdict::Alive);
}

/// The budget of all is met by `b`; the kernel takes `a`, that is within its own limit, and whose own limit page cache had hit before.
#[test]
fn the_budget_of_all_evicts() {
    let scene = Scene::new();
    let budget = |memory| Budget {
        memory,
        pids: Some(5_000),
        cpu_request_millis: Some(4000),
    };
    scene.groups.set_budget(&budget(512 * MIB)).unwrap();
    scene.groups.set_budget(&budget(256 * MIB)).unwrap();
    let memory = 96 * MIB;
    scene.create("a", &Limits { memory, ..LIMITS });
    scene.create("b", &LIMITS);
    let mut victim = Member::join(&scene, "a");
    let mut eater = Member::join(&scene, "b");
    for order in ["victim", "cache 128", "eat 32"] {
        assert_eq!(victim.does(order).unwrap(), "done");
    }
    assert_eq!(eater.does("eat 64").unwrap(), "done");
    until("the use of all is counted", || {
        scene.groups.total().unwrap().memory >= 96 * MIB
    });
    eater.order("eat 1024");
    assert_eq!(victim.signal(), Some(9));
    assert_eq!(eater.signal(), Some(9));
    for name in ["a", "b"] {
        let counters = scene.groups.counters(name).unwrap();
        eprintln!("{name} {counters:?}");
        // Two for one process where the kernel kills whole groups: it counts the victim again as a member.
        assert!(counters.oom_kills > 0, "{name} {counters:?}");
        assert_eq!(
            scene.verdict(name, true),
            Verdict::Ended(Death::Evicted),
            "{name} {counters:?} {:?}",
            oom_lines()
        );
    }
    let total = scene.groups.total().unwrap();
    eprintln!("total {total:?}");
    assert!(total.memory_limit_hits > 0, "{total:?}");
}

#[test]
fn the_budget_is_held_where_it_is_written() {
    let scene = Scene::new();
    let budget = |memory| Budget {
        memory,
        pids: Some(5_000),
        cpu_request_millis: Some(3000),
    };
    scene.groups.set_budget(&budget(256 * MIB + 1)).unwrap();
    let parent = |file: &str| scene.holds("", file);
    let memory = parent("memory.limit_in_bytes").or_else(|| parent("memory.max"));
    assert_eq!(memory.unwrap(), (256 * MIB).to_string());
    let cpu = (parent("cpu.shares"), parent("cpu.weight"));
    assert!(
        cpu == (Some("3072".to_owned()), None) || cpu == (None, Some("300".to_owned())),
        "{cpu:?}"
    );
    assert_eq!(parent("memory.oom.group").unwrap_or("0".to_owned()), "0");
    scene.groups.set_budget(&budget(0)).unwrap_err();
}

#[test]
fn nothing_is_left_of_this_process_in_the_groups() {
    // The agent itself stays where it was.
    let before = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let scene = Scene::new();
    scene.create("a", &LIMITS);
    let mut member = Member::join(&scene, "a");
    drop(scene);
    let mut rest = String::new();
    member.answers.read_to_string(&mut rest).unwrap();
    assert_eq!(member.signal(), Some(9));
    assert_eq!(
        std::fs::read_to_string("/proc/self/cgroup").unwrap(),
        before
    );
}
