//! Which cgroup hierarchies this machine has, where their roots are mounted, and which controller is in which. Pure.
//!
//! An instance needs a group in every hierarchy: whatever stays in the agent's own group of any one of them (a named one, or the
//! unified one of a hybrid machine) is killed together with the agent's pod.

use std::io;
use std::path::{Path, PathBuf};

/// Version of one hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `cgroup`: one or a few controllers, or only a name.
    V1,
    /// `cgroup2`: the unified hierarchy.
    V2,
}

/// What kind of machine the layout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Hierarchies of version 1 alone.
    V1,
    /// The unified hierarchy alone.
    V2,
    /// Both.
    Hybrid,
}

/// One mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its version.
    pub version: Version,
    /// The second field of /proc/PID/cgroup: `memory`, `cpu,cpuacct`, `name=systemd`; empty for the unified one.
    pub key: String,
    /// Controllers that it holds; none for a named one.
    pub controllers: Vec<String>,
    /// Where its root is mounted.
    pub mount: PathBuf,
    /// How /proc/PID/cgroup names the directory at `mount`: empty, or `/..` repeated when this process has a cgroup namespace
    /// of its own and the mount shows the machine's root.
    pub prefix: String,
}

/// All mounted hierarchies, in the order of /proc/self/cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Never empty.
    pub hierarchies: Vec<Hierarchy>,
}

/// Why groups cannot be used on this machine as this process sees it.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// Nothing is mounted.
    #[error(
        "no cgroup file system is mounted: mount cgroup2 at /sys/fs/cgroup, or give the agent's container the host's /sys/fs/cgroup"
    )]
    None,
    /// A hierarchy in which this process is in a group that is not the root, and of which no mount shows the root.
    #[error(
        "the root of cgroup hierarchy {0:?} is not mounted here, and what the agent starts would stay in the agent's own group and die with it: give the agent's container the host's /sys/fs/cgroup"
    )]
    Hidden(String),
    /// The mount is read-only.
    #[error(
        "{0} is mounted read-only: make the agent's container privileged, with the host's /sys/fs/cgroup writable"
    )]
    ReadOnly(PathBuf),
    /// No hierarchy has the controller.
    #[error(
        "no cgroup hierarchy has the controller {0:?}: enable it (kernel configuration, or cgroup_enable= on the kernel's command line)"
    )]
    Controller(&'static str),
    /// A file of the kernel is not as documented (proc(5), cgroups(7)).
    #[error("{file} is not as expected: {line:?}")]
    Malformed {
        /// The file.
        file: &'static str,
        /// The line.
        line: String,
    },
    /// `cgroup.controllers` of the unified hierarchy could not be read.
    #[error("read cgroup.controllers of {mount}")]
    Unified {
        /// The hierarchy's mount point.
        mount: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Layout {
    /// The hierarchy that holds `controller`, if any.
    pub fn holding(&self, controller: &str) -> Option<&Hierarchy> {
        self.hierarchies
            .iter()
            .find(|h| h.controllers.iter().any(|c| c == controller))
    }

    /// The hierarchy that holds `controller`, which limits need.
    pub fn require(&self, controller: &'static str) -> Result<&Hierarchy, LayoutError> {
        self.holding(controller)
            .ok_or(LayoutError::Controller(controller))
    }

    /// The unified hierarchy, if mounted.
    pub fn unified(&self) -> Option<&Hierarchy> {
        self.hierarchies.iter().find(|h| h.version == Version::V2)
    }

    /// What kind of machine this is.
    pub fn kind(&self) -> Kind {
        let v1 = self.hierarchies.iter().any(|h| h.version == Version::V1);
        match (v1, self.unified().is_some()) {
            (true, true) => Kind::Hybrid,
            (true, false) => Kind::V1,
            (false, _) => Kind::V2,
        }
    }

    /// Compares /proc/PID/cgroup of a process with the group at `path` (`/cloche/x`, from the hierarchies' roots). The error is the
    /// key of the first hierarchy in which the process is elsewhere, and where it is ("nowhere" if the hierarchy is not listed).
    pub fn member(&self, proc_cgroup: &str, path: &str) -> Result<(), (String, String)> {
        for hierarchy in &self.hierarchies {
            let found = proc_cgroup
                .lines()
                .filter_map(own_line)
                .find(|(key, _)| *key == hierarchy.key)
                .map_or("nowhere", |(_, at)| at);
            if found.strip_prefix(hierarchy.prefix.as_str()) != Some(path) {
                return Err((hierarchy.key.clone(), found.to_owned()));
            }
        }
        Ok(())
    }

    /// Whether /proc/PID/cgroup of a process places it at or below `path` in at least one hierarchy.
    pub fn touches(&self, proc_cgroup: &str, path: &str) -> bool {
        proc_cgroup.lines().filter_map(own_line).any(|(key, at)| {
            self.hierarchies
                .iter()
                .find(|h| h.key == key)
                .and_then(|h| at.strip_prefix(h.prefix.as_str()))
                .and_then(|at| at.strip_prefix(path))
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

/// Finds the hierarchies from /proc/self/mountinfo (proc(5)), /proc/self/cgroup (cgroups(7)) and, through `controllers`, the text of
/// `cgroup.controllers` at the mount point of the unified hierarchy.
pub fn detect(
    mountinfo: &str,
    own: &str,
    controllers: impl FnOnce(&Path) -> io::Result<String>,
) -> Result<Layout, LayoutError> {
    let mounts = visible(
        mountinfo
            .lines()
            .map(mount_line)
            .collect::<Result<_, _>>()?,
    );
    let mut controllers = Some(controllers);
    let mut hierarchies = Vec::new();
    for line in own.lines() {
        let (key, at) = own_line(line).ok_or_else(|| LayoutError::Malformed {
            file: "/proc/self/cgroup",
            line: line.to_owned(),
        })?;
        let version = if key.is_empty() {
            Version::V2
        } else {
            Version::V1
        };
        // The last one is on top of what was mounted before.
        let Some(mount) = mounts
            .iter()
            .rev()
            .find(|m| m.version == Some(version) && m.shows(key) && m.at_root())
        else {
            if at == "/" && !mounts.iter().any(|m| m.shows(key)) {
                continue; // Active but mounted nowhere: all processes stay in its root.
            }
            return Err(LayoutError::Hidden(key.to_owned()));
        };
        if mount.read_only {
            return Err(LayoutError::ReadOnly(mount.point.clone()));
        }
        let controllers = match version {
            Version::V2 => match controllers.take() {
                Some(read) => read(&mount.point)
                    .map_err(|source| LayoutError::Unified {
                        mount: mount.point.clone(),
                        source,
                    })?
                    .split_whitespace()
                    .map(str::to_owned)
                    .collect(),
                None => Vec::new(),
            },
            Version::V1 => key
                .split(',')
                .filter(|c| !c.starts_with("name="))
                .map(str::to_owned)
                .collect(),
        };
        hierarchies.push(Hierarchy {
            version,
            key: key.to_owned(),
            controllers,
            mount: mount.point.clone(),
            prefix: mount.root.trim_end_matches('/').to_owned(),
        });
    }
    if hierarchies.is_empty() {
        return Err(LayoutError::None);
    }
    Ok(Layout { hierarchies })
}

/// `ID:KEY:PATH`. A path may contain colons, a key may not.
fn own_line(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.split_once(':')?;
    rest.split_once(':').filter(|(_, at)| at.starts_with('/'))
}

struct Mount {
    version: Option<Version>,
    point: PathBuf,
    root: String,
    options: Vec<String>,
    read_only: bool,
}

impl Mount {
    fn shows(&self, key: &str) -> bool {
        match self.version {
            Some(Version::V2) => key.is_empty(),
            Some(Version::V1) => {
                !key.is_empty() && key.split(',').all(|k| self.options.iter().any(|o| o == k))
            }
            None => false,
        }
    }

    /// `/`, or `/..` repeated. Anything else is a part of the tree: of a container, that dies with it.
    fn at_root(&self) -> bool {
        self.root
            .split('/')
            .all(|part| part.is_empty() || part == "..")
    }
}

fn mount_line(line: &str) -> Result<Mount, LayoutError> {
    let malformed = || LayoutError::Malformed {
        file: "/proc/self/mountinfo",
        line: line.to_owned(),
    };
    let (left, right) = line.split_once(" - ").ok_or_else(malformed)?;
    let mut left = left.split(' ').skip(3);
    let root = left.next().ok_or_else(malformed)?;
    let point = left.next().ok_or_else(malformed)?;
    let flags = left.next().ok_or_else(malformed)?;
    let mut right = right.split(' ');
    let version = match right.next().ok_or_else(malformed)? {
        "cgroup" => Some(Version::V1),
        "cgroup2" => Some(Version::V2),
        _ => None,
    };
    let options = right.nth(1).unwrap_or_default();
    let read_only = |flags: &str| flags.split(',').any(|flag| flag == "ro");
    Ok(Mount {
        version,
        point: PathBuf::from(unescape(point)),
        root: unescape(root),
        options: options.split(',').map(str::to_owned).collect(),
        read_only: read_only(flags) || read_only(options),
    })
}

/// Drops what a later mount at the same place covers.
fn visible(mounts: Vec<Mount>) -> Vec<Mount> {
    let mut seen = std::collections::HashSet::new();
    let mut kept: Vec<Mount> = mounts
        .into_iter()
        .rev()
        .filter(|mount| seen.insert(mount.point.clone()))
        .collect();
    kept.reverse();
    kept
}

/// Undoes the kernel's `\040`-style octal escapes (proc(5)).
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, escaped)) = rest.split_once('\\') {
        out.push_str(plain);
        match escaped
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok())
        {
            Some(byte) if byte.is_ascii() => {
                out.push(char::from(byte));
                rest = &escaped[3..];
            }
            _ => {
                out.push('\\');
                rest = escaped;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HYBRID_MOUNTS: &str = "\
23 1 254:0 / / rw,relatime - ext4 /dev/root rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/lib/x,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
";
    const HYBRID_OWN: &str = "\
9:name=systemd:/system.slice/x:y.service
4:memory:/process_api/1
8:pids:/
1:cpu,cpuacct:/
0::/
";

    #[allow(clippy::unnecessary_wraps)] // stands for a read
    fn none(_: &Path) -> io::Result<String> {
        Ok(String::new())
    }

    #[test]
    fn a_hybrid_machine_has_every_hierarchy() {
        let layout = detect(HYBRID_MOUNTS, HYBRID_OWN, none).unwrap();
        assert_eq!(layout.kind(), Kind::Hybrid);
        let keys: Vec<_> = layout.hierarchies.iter().map(|h| h.key.as_str()).collect();
        assert_eq!(keys, ["name=systemd", "memory", "pids", "cpu,cpuacct", ""]);
        assert_eq!(
            layout.require("cpuacct").unwrap().mount,
            Path::new("/sys/fs/cgroup/cpu,cpuacct")
        );
        assert!(layout.require("freezer").is_err());
        assert!(layout.holding("name=systemd").is_none());
        assert_eq!(
            layout.unified().unwrap().mount,
            Path::new("/sys/fs/cgroup/unified")
        );
    }

    #[test]
    fn a_unified_machine_takes_its_controllers_from_the_file() {
        let mounts = "24 23 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let layout = detect(mounts, "0::/init\n", |at| {
            assert_eq!(at, Path::new("/sys/fs/cgroup"));
            Ok("cpuset cpu io memory pids\n".to_owned())
        })
        .unwrap();
        assert_eq!(layout.kind(), Kind::V2);
        assert!(layout.require("memory").is_ok() && layout.require("pids").is_ok());
    }

    #[test]
    fn a_mount_of_a_part_of_the_tree_is_refused() {
        let mounts = HYBRID_MOUNTS.replace(
            "0:32 / /sys/fs/cgroup/memory",
            "0:32 /kubepods/pod1 /sys/fs/cgroup/memory",
        );
        let error = detect(&mounts, HYBRID_OWN, none).unwrap_err();
        assert!(
            matches!(&error, LayoutError::Hidden(key) if key == "memory"),
            "{error}"
        );
        // Also where this process is at what it sees as the root.
        let own = HYBRID_OWN.replace("/process_api/1", "/");
        assert!(matches!(
            detect(&mounts, &own, none).unwrap_err(),
            LayoutError::Hidden(_)
        ));
    }

    #[test]
    fn a_hierarchy_mounted_nowhere_is_refused_unless_we_are_in_its_root() {
        let own = format!("{HYBRID_OWN}12:net_cls:/\n");
        assert_eq!(
            detect(HYBRID_MOUNTS, &own, none).unwrap(),
            detect(HYBRID_MOUNTS, HYBRID_OWN, none).unwrap()
        );
        let own = format!("{HYBRID_OWN}12:net_cls:/pod\n");
        assert!(matches!(
            detect(HYBRID_MOUNTS, &own, none).unwrap_err(),
            LayoutError::Hidden(_)
        ));
    }

    #[test]
    fn the_mount_on_top_counts() {
        // The container runtime's own mount, then the host's over it, in a cgroup namespace of the container.
        let mounts = "\
24 23 0:22 / /sys/fs/cgroup ro - cgroup2 cgroup2 rw
25 24 0:22 /../../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw
";
        let layout = detect(mounts, "0::/\n", none).unwrap();
        assert_eq!(layout.hierarchies[0].prefix, "/../../..");
        assert_eq!(
            layout.member("0::/../../../cloche/a\n", "/cloche/a"),
            Ok(())
        );
        let (key, found) = layout.member("0::/cloche/a\n", "/cloche/a").unwrap_err();
        assert_eq!((key.as_str(), found.as_str()), ("", "/cloche/a"));
    }

    #[test]
    fn read_only_and_missing_mounts_say_what_to_do() {
        let mounts = "24 23 0:22 / /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        let text = detect(mounts, "0::/\n", none).unwrap_err().to_string();
        assert!(
            text.contains("read-only") && text.contains("privileged"),
            "{text}"
        );
        assert!(matches!(
            detect("", "", none).unwrap_err(),
            LayoutError::None
        ));
        assert!(matches!(
            detect("nonsense", "", none).unwrap_err(),
            LayoutError::Malformed { .. }
        ));
        assert!(matches!(
            detect("", "nonsense", none).unwrap_err(),
            LayoutError::Malformed { .. }
        ));
    }

    #[test]
    fn membership_is_exact_in_every_hierarchy() {
        let layout = detect(HYBRID_MOUNTS, HYBRID_OWN, none).unwrap();
        let all = "9:name=systemd:/c/a\n4:memory:/c/a\n8:pids:/c/a\n1:cpu,cpuacct:/c/a\n0::/c/a\n";
        assert_eq!(layout.member(all, "/c/a"), Ok(()));
        for (wrong, key) in [
            (all.replace("8:pids:/c/a", "8:pids:/c/ab"), "pids"),
            (all.replace("8:pids:/c/a", "8:pids:/c/a/b"), "pids"),
            (all.replace("8:pids:/c/a", "8:pids:/c/a (deleted)"), "pids"),
            (all.replace("8:pids:/c/a\n", ""), "pids"),
            (all.replace("0::/c/a", "0::/"), ""),
        ] {
            assert_eq!(layout.member(&wrong, "/c/a").unwrap_err().0, key, "{wrong}");
        }
        assert!(layout.touches("8:pids:/c/a\n0::/\n", "/c/a"));
        assert!(layout.touches("8:pids:/c/a/b\n", "/c/a"));
        assert!(!layout.touches("8:pids:/c/ab\n0::/\n", "/c/a"));
        assert!(!layout.touches("99:other:/c/a\n", "/c/a"));
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(unescape(r"/a\040b\134c"), r"/a b\c");
        assert_eq!(unescape(r"/a\9zz\"), r"/a\9zz\");
    }

    proptest! {
        #[test]
        fn never_panics(mountinfo in "([ -~\n]|é){0,200}", own in "([ -~\n]|é){0,80}", line in r"(\\[0-7é]{0,3}|a){0,20}") {
            drop(detect(&mountinfo, &own, none));
            drop(unescape(&line));
        }
    }
}
