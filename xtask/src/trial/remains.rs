//! What a trial left behind: processes, mounts, records.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Everything of a trial that is still there.
#[derive(Debug, Default)]
pub(super) struct Remains {
    /// Processes in its cgroups.
    processes: Vec<i32>,
    /// Mount points below its folders.
    mounts: Vec<String>,
    /// Records of sandboxes and instances.
    records: Vec<PathBuf>,
}

impl Remains {
    /// Looks for what is in the cgroup `group` (of any hierarchy) and below `folders`.
    pub(super) fn find(group: &str, folders: &[&Path]) -> Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("read the mounts")?;
        let mut records = Vec::new();
        for folder in folders {
            for ledger in ["state/instances", "state/sandboxes", "i"] {
                records.extend(entries(&folder.join(ledger))?);
            }
        }
        Ok(Self {
            processes: processes(group)?,
            mounts: mounts_below(&mounts, folders),
            records,
        })
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.processes.is_empty() && self.mounts.is_empty() && self.records.is_empty()
    }
}

/// Kills every process in `group`, and what those started meanwhile.
pub(super) fn kill(group: &str) -> Result<()> {
    for _round in 0..10 {
        let processes = processes(group)?;
        if processes.is_empty() {
            return Ok(());
        }
        for pid in processes {
            kill_if_in(pid, group)?;
        }
    }
    bail!("kill the processes in the cgroup {group}: some are still there")
}

/// By a pidfd, and with a second look at the group, so that the number cannot be another's.
fn kill_if_in(pid: i32, group: &str) -> Result<()> {
    let Some(number) = Pid::from_raw(pid) else {
        return Ok(());
    };
    let Ok(pidfd) = pidfd_open(number, PidfdFlags::empty()) else {
        return Ok(());
    };
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    if !is_in(&groups, group) {
        return Ok(());
    }
    match pidfd_send_signal(&pidfd, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => return Err(error).with_context(|| format!("kill {pid}")),
    }
    let mut gone = [PollFd::new(&pidfd, PollFlags::IN)];
    let second = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    poll(&mut gone, Some(&second)).with_context(|| format!("wait for {pid}"))?;
    Ok(())
}

impl fmt::Display for Remains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            processes,
            mounts,
            records,
        } = self;
        write!(
            f,
            "processes {processes:?}, mounts {mounts:?}, records {records:?}"
        )
    }
}

/// Removes the trial's cgroups. The kernel refuses one that still holds a process.
pub(super) fn remove_groups(group: &str) -> Result<()> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("read the mounts")?;
    for hierarchy in hierarchies(&mounts) {
        remove_tree(&hierarchy.join(group))?;
    }
    Ok(())
}

/// Directories alone, deepest first: the files in a cgroup are the kernel's.
fn remove_tree(directory: &Path) -> Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    for entry in entries(directory)? {
        if entry.is_dir() {
            remove_tree(&entry)?;
        }
    }
    std::fs::remove_dir(directory)
        .with_context(|| format!("remove the cgroup {}", directory.display()))
}

/// Names in a directory, none where it is missing.
fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let read = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.with_context(|| format!("read {}", directory.display()))?,
    };
    read.map(|entry| Ok(entry?.path())).collect()
}

/// Numbers of the processes in `group` or below, in any hierarchy. Those that have ended do not count: when the agent has
/// gone, it is the machine's init that reaps them, and some inits take their time.
fn processes(group: &str) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for path in entries(Path::new("/proc"))? {
        let number = path
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        // A process that ended since has no file any more.
        if let Some(number) = number
            && let Ok(groups) = std::fs::read_to_string(path.join("cgroup"))
            && is_in(&groups, group)
            && std::fs::read_to_string(path.join("stat")).is_ok_and(|stat| !has_ended(&stat))
        {
            found.push(number);
        }
    }
    Ok(found)
}

/// Whether a `/proc/PID/stat` is of a zombie or a dead process; the state follows the name in parentheses, which may hold
/// anything (proc(5)).
fn has_ended(stat: &str) -> bool {
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Whether a `/proc/PID/cgroup` names `group` or one below; its lines are `ID:CONTROLLERS:/PATH`.
fn is_in(groups: &str, group: &str) -> bool {
    groups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .any(|path| Path::new(path).starts_with(Path::new("/").join(group)))
}

/// Mount points below `folders`; a line of mountinfo has the mount point as its fifth field (proc(5)).
fn mounts_below(mountinfo: &str, folders: &[&Path]) -> Vec<String> {
    mountinfo
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(|point| {
            folders
                .iter()
                .any(|folder| Path::new(point).starts_with(folder))
        })
        .map(str::to_owned)
        .collect()
}

/// Mount points of the cgroup hierarchies; the type follows the separator ` - `.
fn hierarchies(mountinfo: &str) -> Vec<PathBuf> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            (kind.starts_with("cgroup ") || kind.starts_with("cgroup2 "))
                .then(|| mount.split(' ').nth(4).map(PathBuf::from))?
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:26 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory
31 22 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
32 22 0:28 / /target/try/state/images rw - tmpfs tmpfs rw
33 22 0:28 / /target/try-other rw - tmpfs tmpfs rw
";

    #[test]
    fn groups_are_whole_names_in_any_hierarchy() {
        let cases = [
            ("0::/cloche-try\n", true),
            ("0::/cloche-try/i/x\n", true),
            ("5:memory:/cloche-try/x\n0::/\n", true),
            ("5:memory:/\n0::/cloche-try/x\n", true),
            ("0::/cloche-try-2\n", false),
            ("0::/a/cloche-try\n", false),
            ("0::/\n", false),
            ("", false),
        ];
        for (groups, expected) in cases {
            assert_eq!(is_in(groups, "cloche-try"), expected, "{groups:?}");
        }
    }

    #[test]
    fn zombies_have_ended() {
        for (stat, ended) in [
            ("7 (sh) S 1 7 7", false),
            ("7 ([exe]) Z 1 7 7", true),
            ("7 (a) Z b) R 1 7", false),
            ("7 (a) X 1 7", true),
            ("", false),
        ] {
            assert_eq!(has_ended(stat), ended, "{stat:?}");
        }
    }

    #[test]
    fn mounts_and_hierarchies_are_found() {
        assert_eq!(
            mounts_below(MOUNTS, &[Path::new("/target/try")]),
            ["/target/try/state/images"]
        );
        assert_eq!(
            hierarchies(MOUNTS),
            [
                Path::new("/sys/fs/cgroup/memory"),
                Path::new("/sys/fs/cgroup/unified")
            ]
        );
    }

    #[test]
    fn a_process_outside_the_group_is_left_alone() {
        let own = i32::try_from(std::process::id()).unwrap();
        kill_if_in(own, "cloche-no-such-group").unwrap();
        kill("cloche-no-such-group").unwrap();
    }

    #[test]
    fn records_are_remains() {
        let home = tempfile::tempdir().unwrap();
        let find = || Remains::find("cloche-no-such-group", &[home.path()]).unwrap();
        assert!(find().is_nothing());
        let record = home.path().join("state/sandboxes/one");
        std::fs::create_dir_all(&record).unwrap();
        assert!(!find().is_nothing());
        assert!(find().to_string().contains("state/sandboxes/one"));
    }
}
