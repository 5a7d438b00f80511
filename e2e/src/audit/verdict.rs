//! Which of it is a leak. No I/O.

use std::fmt;

use super::ledger::Ledger;
use super::world::{Process, World};

/// Something that should not be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leak {
    /// A process.
    Process(Process),
    /// A mount, by its line.
    Mount(String),
    /// A group, and in how many hierarchies.
    Group(String, usize),
    /// A loop device.
    Loop(String),
    /// A network namespace that more than one instance uses, or that has no instance.
    Network(u64, String),
    /// A file or folder: where, and its name.
    File(&'static str, String),
    /// A record: of what, and its id.
    Record(&'static str, String),
    /// An image or other large file that the agent still holds open.
    Open(String),
    /// An instance of the ledger without a process.
    Dead(String),
}

impl fmt::Display for Leak {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(process) => write!(
                formatter,
                "process {} in group {}: {}",
                process.pid,
                process.group.as_deref().unwrap_or("of somebody else"),
                process.command
            ),
            Self::Mount(line) => write!(formatter, "mount {line}"),
            Self::Group(name, count) => write!(formatter, "cgroup {name} in {count} hierarchies"),
            Self::Loop(name) => write!(formatter, "loop device {name}"),
            Self::Network(inode, why) => write!(formatter, "network namespace {inode}: {why}"),
            Self::File(place, name) => write!(formatter, "file {place}/{name}"),
            Self::Record(kind, id) => write!(formatter, "record of {kind} {id}"),
            Self::Open(path) => write!(formatter, "open in the agent: {path}"),
            Self::Dead(id) => write!(formatter, "instance {id} has a record and no process"),
        }
    }
}

/// With the agent running and no sandboxes: only unused instances may be there, each whole.
pub fn judge_idle(world: &World, ledger: &Ledger) -> Vec<Leak> {
    let named = |id: &str| ledger.instances.contains(id);
    let mut leaks = always(world);
    leaks.extend(
        world
            .processes
            .iter()
            .filter(|process| !process.group.as_deref().is_some_and(named))
            .cloned()
            .map(Leak::Process),
    );
    leaks.extend(
        world
            .groups
            .iter()
            .filter(|(name, _)| !named(name))
            .map(|(name, at)| Leak::Group(name.clone(), at.len())),
    );
    leaks.extend(networks(world));
    leaks.extend(files("run/i", &world.files.run, named));
    // A scratch file's name begins with its instance's.
    leaks.extend(files("state/scratch", &world.files.scratch, |name| {
        ledger
            .instances
            .iter()
            .any(|id| name.starts_with(id.as_str()))
    }));
    leaks.extend(files("state/instances", &world.files.instances, named));
    leaks.extend(
        ledger
            .sandboxes
            .iter()
            .map(|id| Leak::Record("sandbox", id.clone())),
    );
    leaks.extend(
        world
            .open
            .iter()
            .filter(|path| path.contains("/images/erofs/") || path.contains("/scratch/"))
            .cloned()
            .map(Leak::Open),
    );
    let has_process = |id: &str| {
        world
            .processes
            .iter()
            .any(|process| process.group.as_deref() == Some(id))
    };
    leaks.extend(
        ledger
            .instances
            .iter()
            .filter(|id| !has_process(id))
            .cloned()
            .map(Leak::Dead),
    );
    leaks
}

/// With the agent stopped and no sandboxes: nothing.
pub fn judge_stopped(world: &World, ledger: &Ledger) -> Vec<Leak> {
    let never = |_: &str| false;
    let mut leaks = always(world);
    leaks.extend(world.processes.iter().cloned().map(Leak::Process));
    leaks.extend(
        world
            .groups
            .iter()
            .map(|(name, at)| Leak::Group(name.clone(), at.len())),
    );
    leaks.extend(files("run/i", &world.files.run, never));
    leaks.extend(files("state/scratch", &world.files.scratch, never));
    leaks.extend(files("state/instances", &world.files.instances, never));
    leaks.extend(
        ledger
            .instances
            .iter()
            .map(|id| Leak::Record("instance", id.clone())),
    );
    leaks.extend(
        ledger
            .sandboxes
            .iter()
            .map(|id| Leak::Record("sandbox", id.clone())),
    );
    leaks
}

/// What is a leak at any time without sandboxes.
fn always(world: &World) -> Vec<Leak> {
    let never = |_: &str| false;
    let mut leaks: Vec<Leak> = world
        .mounts
        .iter()
        .map(|mount| Leak::Mount(mount.line.clone()))
        .collect();
    leaks.extend(world.loops.iter().cloned().map(Leak::Loop));
    leaks.extend(files("state/sandboxes", &world.files.sandboxes, never));
    leaks.extend(files("state/snapshots", &world.files.snapshots, never));
    leaks.extend(files("state/images/tmp", &world.files.staging, never));
    leaks.extend(files("state/images/erofs", &world.files.half_images, never));
    leaks.extend(files("manifests", &world.files.manifests, never));
    leaks
}

fn files<'a>(
    place: &'static str,
    names: impl IntoIterator<Item = &'a String>,
    allowed: impl Fn(&str) -> bool,
) -> Vec<Leak> {
    names
        .into_iter()
        .filter(|name| !allowed(name))
        .map(|name| Leak::File(place, name.clone()))
        .collect()
}

/// Each instance has a network of its own, or that of the host before its sentry has one.
fn networks(world: &World) -> Vec<Leak> {
    let mut leaks = Vec::new();
    for process in &world.processes {
        let Some(network) = process.network else {
            continue;
        };
        let other = world.processes.iter().find(|other| {
            other.network == Some(network)
                && other.group != process.group
                && other.pid < process.pid
        });
        if let Some(other) = other {
            leaks.push(Leak::Network(
                network,
                format!("shared by processes {} and {}", other.pid, process.pid),
            ));
        }
    }
    leaks
}

#[cfg(test)]
mod tests {
    use super::super::world::{Files, Mount};
    use super::*;

    fn process(pid: i32, group: Option<&str>, network: Option<u64>) -> Process {
        Process {
            pid,
            command: "runsc".into(),
            group: group.map(str::to_owned),
            network,
        }
    }

    fn pool() -> (World, Ledger) {
        let world = World {
            processes: vec![
                process(1, Some("i-1"), Some(7)),
                process(2, Some("i-1"), Some(7)),
            ],
            groups: [("i-1".to_owned(), ["/a".into(), "/b".into()].into())].into(),
            files: Files {
                instances: ["i-1".into()].into(),
                run: ["i-1".into()].into(),
                scratch: ["i-1.scratch".into()].into(),
                ..Files::default()
            },
            ..World::default()
        };
        let ledger = Ledger {
            instances: ["i-1".into()].into(),
            ..Ledger::default()
        };
        (world, ledger)
    }

    #[test]
    fn a_whole_pool_is_no_leak_while_the_agent_runs() {
        let (world, ledger) = pool();
        assert_eq!(judge_idle(&world, &ledger), []);
        // 2 processes, a group, a folder in run, a scratch file, a folder and a record of an instance.
        assert_eq!(judge_stopped(&world, &ledger).len(), 7);
        assert_eq!(judge_stopped(&World::default(), &Ledger::default()), []);
    }

    #[test]
    fn each_kind_is_found() {
        type Spoil = fn(&mut World, &mut Ledger);
        let spoils: [(Spoil, &str); 15] = [
            (
                |world, _| world.processes.push(process(9, Some("i-2"), None)),
                "process 9 in group i-2: runsc",
            ),
            (
                |world, _| world.processes.push(process(9, None, None)),
                "process 9 in group of somebody else: runsc",
            ),
            (
                |world, _| world.processes.push(process(9, Some("."), None)),
                "process 9 in group .: runsc",
            ),
            (
                |world, _| {
                    world
                        .groups
                        .extend([("i-2".to_owned(), ["/a".into()].into())]);
                },
                "cgroup i-2 in 1 hierarchies",
            ),
            (
                |world, _| {
                    world.mounts.push(Mount {
                        point: "/x".into(),
                        line: "1 /x".into(),
                    });
                },
                "mount 1 /x",
            ),
            (
                |world, _| world.loops.push("loop3".into()),
                "loop device loop3",
            ),
            (
                |world, _| world.files.run.extend(["i-2".to_owned()]),
                "file run/i/i-2",
            ),
            (
                |world, _| world.files.scratch.extend(["s".to_owned()]),
                "file state/scratch/s",
            ),
            (
                |world, _| world.files.snapshots.extend(["s".to_owned()]),
                "file state/snapshots/s",
            ),
            (
                |world, _| world.files.staging.extend(["s".to_owned()]),
                "file state/images/tmp/s",
            ),
            (
                |world, _| world.files.half_images.extend(["x.erofs".to_owned()]),
                "file state/images/erofs/x.erofs",
            ),
            (
                |world, _| {
                    world
                        .files
                        .manifests
                        .extend(["demo.status.yaml".to_owned()]);
                },
                "file manifests/demo.status.yaml",
            ),
            (
                |_, ledger| ledger.sandboxes.extend(["s-1".to_owned()]),
                "record of sandbox s-1",
            ),
            (
                |world, _| {
                    world
                        .open
                        .extend(["/s/images/erofs/a.erofs (deleted)".to_owned()]);
                },
                "open in the agent: /s/images/erofs/a.erofs (deleted)",
            ),
            (
                |world, _| world.processes.clear(),
                "instance i-1 has a record and no process",
            ),
        ];
        for (spoil, text) in spoils {
            let (mut world, mut ledger) = pool();
            spoil(&mut world, &mut ledger);
            let leaks: Vec<String> = judge_idle(&world, &ledger)
                .iter()
                .map(Leak::to_string)
                .collect();
            assert_eq!(leaks, [text]);
        }
        let (mut world, mut ledger) = pool();
        ledger.instances.insert("i-2".into());
        world.processes.push(process(9, Some("i-2"), Some(7)));
        let leaks: Vec<String> = judge_idle(&world, &ledger)
            .iter()
            .map(Leak::to_string)
            .collect();
        assert_eq!(leaks, ["network namespace 7: shared by processes 1 and 9"]);
    }
}
