//! What the kernel holds that is one agent's: told apart by its cgroup's name and its folders, which no other test has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::ledger::names;
use super::owner::Owner;
use crate::agent::Agent;

/// Everything of one agent, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct World {
    /// Its processes, but itself.
    pub processes: Vec<Process>,
    /// Its mounts, in the mount namespace of its machine and of the agent.
    pub mounts: Vec<Mount>,
    /// Groups below its own, in any hierarchy: the last part of the path, and the hierarchies that have it.
    pub groups: BTreeMap<String, BTreeSet<PathBuf>>,
    /// Loop devices with a backing file in its folders.
    pub loops: Vec<String>,
    /// What lies in its folders, by what it belongs to.
    pub files: Files,
    /// Files in its folders that it holds open: paths as /proc tells them.
    pub open: BTreeSet<String>,
}

/// A process that is its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Number on the host.
    pub pid: i32,
    /// Arguments, or the name in brackets.
    pub command: String,
    /// The group below the agent's that it is in, if in any hierarchy it is.
    pub group: Option<String>,
    /// Inode of its network namespace; `None`: that of its machine.
    pub network: Option<u64>,
}

/// A mount that is its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where.
    pub point: String,
    /// The whole line of mountinfo.
    pub line: String,
}

/// Names of files and folders, by what they belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// `state/instances`: a folder each, whether it has a record or not.
    pub instances: BTreeSet<String>,
    /// `state/sandboxes`, the same.
    pub sandboxes: BTreeSet<String>,
    /// `state/scratch`: files of writable layers.
    pub scratch: BTreeSet<String>,
    /// `state/snapshots`: files of stopped sandboxes, whole or on their way.
    pub snapshots: BTreeSet<String>,
    /// `state/images/tmp`: images on their way.
    pub staging: BTreeSet<String>,
    /// Images without the file that makes them count.
    pub half_images: BTreeSet<String>,
    /// `run/i`: a folder per instance.
    pub run: BTreeSet<String>,
    /// Status files without a manifest, and temporary files of both.
    pub manifests: BTreeSet<String>,
}

impl World {
    /// Looks for what is a test's agent's.
    pub fn see(agent: &Agent) -> Result<Self> {
        Self::of(&Owner::from(agent))
    }

    /// Looks.
    pub fn of(owner: &Owner) -> Result<Self> {
        let mut groups_by_name: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
        for hierarchy in hierarchies()? {
            for folder in groups(&hierarchy, &owner.group)? {
                let Some(name) = below(&folder, &hierarchy, &owner.group) else {
                    continue;
                };
                groups_by_name
                    .entry(name)
                    .or_default()
                    .insert(hierarchy.clone());
            }
        }
        Ok(Self {
            processes: processes(owner)?,
            mounts: mounts(owner)?,
            groups: groups_by_name,
            loops: loops(&owner.folders)?,
            files: files(owner)?,
            open: owner
                .pid
                .map(|pid| open_files(pid, &owner.folders))
                .unwrap_or_default(),
        })
    }
}

/// Mount points of all cgroup hierarchies, v1 and v2.
pub fn hierarchies() -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("read mountinfo")?;
    Ok(mounts
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            matches!(right.split(' ').next()?, "cgroup" | "cgroup2")
                .then(|| left.split(' ').nth(4).map(PathBuf::from))?
        })
        .collect())
}

/// The group `parent` of a hierarchy and all below it.
pub fn groups(hierarchy: &Path, parent: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut to_do = vec![hierarchy.join(parent)];
    while let Some(folder) = to_do.pop() {
        // It may go away at any moment, and then is no leak.
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        to_do.extend(
            entries
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path()),
        );
        found.push(folder);
    }
    Ok(found)
}

/// The first part of a group's path below the parent; `None`: it is the parent.
fn below(folder: &Path, hierarchy: &Path, parent: &str) -> Option<String> {
    let rest = folder.strip_prefix(hierarchy.join(parent)).ok()?;
    Some(rest.iter().next()?.to_string_lossy().into_owned())
}

/// Its processes, but itself.
pub(crate) fn processes(owner: &Owner) -> Result<Vec<Process>> {
    let this = std::process::id();
    let network_here = fs::metadata(owner.machine().join("ns/net"))
        .context("look at the network namespace")?
        .ino();
    let mut found = Vec::new();
    for name in names(Path::new("/proc"))? {
        let Ok(pid) = name.parse::<i32>() else {
            continue;
        };
        if Some(pid) == owner.pid || u32::try_from(pid) == Ok(this) {
            continue;
        }
        let folder = Path::new("/proc").join(&name);
        // A process may end while it is looked at.
        let Ok(cgroup) = fs::read_to_string(folder.join("cgroup")) else {
            continue;
        };
        if !owner.is_near(&cgroup) {
            continue;
        }
        let group = group_of(&cgroup, &owner.group);
        let arguments = fs::read(folder.join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments)
            .replace('\0', " ")
            .trim()
            .to_owned();
        let program = fs::read_link(folder.join("exe"))
            .unwrap_or_default()
            .display()
            .to_string();
        let mentions = |text: &str| {
            let mut folders = owner.folders.iter();
            folders.any(|folder| text.contains(folder.as_str()))
        };
        if group.is_none() && !mentions(&arguments) && !mentions(&program) {
            continue;
        }
        // A zombie has ended; whoever reaps it is not a matter of leaks unless it stays, and then its parent is one.
        let status = fs::read_to_string(folder.join("stat")).unwrap_or_default();
        if status
            .rsplit_once(')')
            .is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
        {
            continue;
        }
        let network = fs::metadata(folder.join("ns/net"))
            .ok()
            .map(|meta| meta.ino());
        let command = if arguments.is_empty() {
            format!("[{program}]")
        } else {
            arguments
        };
        let command = command.chars().take(300).collect();
        found.push(Process {
            pid,
            command,
            group,
            network: network.filter(|inode| *inode != network_here),
        });
    }
    Ok(found)
}

/// The group below `parent` (the parent itself: `.`) that /proc/PID/cgroup tells, in any hierarchy.
pub(super) fn group_of(cgroup: &str, parent: &str) -> Option<String> {
    let parent = format!("/{parent}/");
    cgroup.lines().find_map(|line| {
        let path = format!("{}/", line.splitn(3, ':').nth(2)?);
        let (_, below) = path.split_once(&parent)?;
        let name = below.split('/').next().filter(|name| !name.is_empty());
        Some(name.unwrap_or(".").to_owned())
    })
}

fn mounts(owner: &Owner) -> Result<Vec<Mount>> {
    let machine = owner.machine().join("mountinfo");
    let mut text = fs::read_to_string(machine).context("read mountinfo")?;
    // It may have a namespace of its own; the lines of a shared one are dropped as doubled below.
    if let Some(agent) = owner.pid {
        text.push_str(&fs::read_to_string(format!("/proc/{agent}/mountinfo")).unwrap_or_default());
    }
    let mut found: Vec<Mount> = Vec::new();
    for line in text.lines() {
        let point = line.split(' ').nth(4).unwrap_or_default();
        let mine = owner.folders.iter().any(|folder| line.contains(folder));
        let given = owner.volumes.iter().any(|volume| volume == point);
        if mine && !given && !found.iter().any(|mount| mount.line == line) {
            found.push(Mount {
                point: point.to_owned(),
                line: line.to_owned(),
            });
        }
    }
    Ok(found)
}

fn loops(folders: &[String]) -> Result<Vec<String>> {
    Ok(names(Path::new("/sys/block"))?
        .into_iter()
        .filter(|name| {
            fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"))
                .is_ok_and(|file| folders.iter().any(|folder| file.contains(folder.as_str())))
        })
        .collect())
}

fn files(owner: &Owner) -> Result<Files> {
    let state = &owner.state;
    let visible = |folder: PathBuf| -> Result<BTreeSet<String>> {
        // Hidden: what was quarantined, which is kept for a person.
        Ok(names(&folder)?
            .into_iter()
            .filter(|name| !name.starts_with('.'))
            .collect())
    };
    let images = names(&state.join("images/erofs"))?;
    let manifests = match &owner.manifests {
        Some(folder) => names(folder)?,
        None => BTreeSet::new(),
    };
    let kept = |name: &String| {
        let extension = Path::new(name)
            .extension()
            .and_then(std::ffi::OsStr::to_str);
        matches!(extension, Some("yaml" | "yml" | "json"))
            && !name.starts_with('.')
            && !name.contains(".status.")
    };
    Ok(Files {
        instances: visible(state.join("instances"))?,
        sandboxes: visible(state.join("sandboxes"))?,
        scratch: names(&state.join("scratch"))?,
        snapshots: {
            let mut all = BTreeSet::new();
            for folder in ["snapshots", "snapshots/tmp"] {
                all.extend(names(&state.join(folder))?);
            }
            all.remove("tmp");
            all
        },
        staging: names(&state.join("images/tmp"))?,
        half_images: images
            .iter()
            .filter(|name| {
                name.strip_suffix(".erofs")
                    .is_none_or(|stem| !images.contains(&format!("{stem}.json")))
                    && name
                        .strip_suffix(".json")
                        .is_none_or(|stem| !images.contains(&format!("{stem}.erofs")))
            })
            .cloned()
            .collect(),
        run: names(&owner.run.join("i"))?,
        manifests: manifests.into_iter().filter(|name| !kept(name)).collect(),
    })
}

fn open_files(pid: i32, folders: &[String]) -> BTreeSet<String> {
    let folder = PathBuf::from(format!("/proc/{pid}/fd"));
    names(&folder)
        .unwrap_or_default()
        .iter()
        .filter_map(|name| fs::read_link(folder.join(name)).ok())
        .map(|target| target.display().to_string())
        .filter(|target| {
            folders
                .iter()
                .any(|folder| target.starts_with(folder.as_str()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_told_by_whole_names() {
        let cgroup = "9:name=systemd:/\n4:memory:/pods/abc/cloche-1/i-5/x\n0::/cloche-12/i-6\n";
        assert_eq!(group_of(cgroup, "cloche-1").as_deref(), Some("i-5"));
        assert_eq!(group_of(cgroup, "cloche-12").as_deref(), Some("i-6"));
        assert_eq!(group_of(cgroup, "cloche"), None);
        assert_eq!(group_of("0::/cloche", "cloche").as_deref(), Some("."));
        let inside = "4:memory:/rig9/node1/cloche/i-5\n";
        assert_eq!(
            group_of(inside, "rig9/node1/cloche").as_deref(),
            Some("i-5")
        );
        assert_eq!(group_of(inside, "rig9/node1").as_deref(), Some("cloche"));
        assert_eq!(group_of(inside, "rig9/node"), None);
    }
}
