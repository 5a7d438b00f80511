//! The groups of this machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::{SysconfVar, sysconf};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::limits::{PERIOD_USEC, quota_usec};
use super::{
    Budget, CgroupError, Cgroups, Counters, CpuShare, Hierarchy, Layout, Limits, MemoryLimit,
    OomLimit, Version, detect, file, oom_limit, oom_lines, v1, v2,
};

/// So often a list is read before a process without a number in it counts as one of another pid namespace: one that is being
/// reaped has none for a moment, too (seen once in some hundred sandboxes that were killed on a busy machine).
const LOOKS: u32 = 100;

/// Groups below one parent, in every hierarchy. Holds no state but the layout: the kernel is the truth.
#[derive(Clone, Debug)]
pub struct Groups {
    layout: Layout,
    parent: String,
    page: u64,
}

impl Groups {
    /// Finds the hierarchies of this machine; `parent` is the name of the group, in the root of each, that holds all others
    /// ([`super::PARENT`]). Changes nothing yet.
    pub fn open(parent: &str) -> Result<Self, CgroupError> {
        let mountinfo = file::read(Path::new("/proc/self/mountinfo"))?;
        let own = file::read(Path::new("/proc/self/cgroup"))?;
        let layout = detect(&mountinfo, &own, |mount| {
            fs::read_to_string(mount.join("cgroup.controllers"))
        })?;
        for controller in ["memory", "cpu", "pids"] {
            layout.require(controller)?;
        }
        if layout.unified().is_none() {
            layout.require("cpuacct")?;
        }
        Ok(Self {
            layout,
            parent: valid(parent)?.to_owned(),
            // 4096 where the C library cannot say; a wrong number would be found by reading back.
            page: sysconf(SysconfVar::PAGE_SIZE)
                .ok()
                .flatten()
                .and_then(|page| u64::try_from(page).ok())
                .unwrap_or(4096),
        })
    }

    /// Makes the parent, and tells its folder in the first hierarchy.
    pub fn make_parent_folder(&self) -> Result<PathBuf, CgroupError> {
        self.make_parent()?;
        let hierarchy = self.layout.require("memory")?;
        Ok(self.parent_in(hierarchy))
    }

    /// The machine's hierarchies.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Removes the parent, that must be empty, from every hierarchy: for an uninstall. Gone already is fine.
    pub fn remove_parent(&self) -> Result<(), CgroupError> {
        self.layout
            .hierarchies
            .iter()
            .try_for_each(|hierarchy| file::remove(&self.parent_in(hierarchy)))
    }

    fn parent_in(&self, hierarchy: &Hierarchy) -> PathBuf {
        hierarchy.mount.join(&self.parent)
    }

    /// The group's directories, one per hierarchy.
    fn directories(&self, name: &str) -> Result<Vec<PathBuf>, CgroupError> {
        let name = valid(name)?;
        Ok(self
            .layout
            .hierarchies
            .iter()
            .map(|hierarchy| self.parent_in(hierarchy).join(name))
            .collect())
    }

    /// The group's directory for `controller`; the parent's for None.
    fn controlled(
        &self,
        controller: &'static str,
        name: Option<&str>,
    ) -> Result<(Version, PathBuf), CgroupError> {
        let hierarchy = self.layout.require(controller)?;
        let parent = self.parent_in(hierarchy);
        Ok((
            hierarchy.version,
            match name {
                Some(name) => parent.join(valid(name)?),
                None => parent,
            },
        ))
    }

    fn make_parent(&self) -> Result<(), CgroupError> {
        for hierarchy in &self.layout.hierarchies {
            let parent = self.parent_in(hierarchy);
            file::make(&parent)?;
            match hierarchy.version {
                Version::V1 => v1::prepare(&parent, &hierarchy.controllers)?,
                Version::V2 => {
                    v2::delegate(&hierarchy.mount, &hierarchy.controllers)?;
                    v2::delegate(&parent, &hierarchy.controllers)?;
                }
            }
        }
        Ok(())
    }

    fn count(&self, name: Option<&str>) -> Result<Counters, CgroupError> {
        let mut counters = Counters::default();
        match self.controlled("memory", name)? {
            (Version::V1, group) => v1::memory(&group, &mut counters)?,
            (Version::V2, group) => v2::memory(&group, &mut counters)?,
        }
        let (_, group) = self.controlled("pids", name)?;
        counters.pids_limit_hits = file::keyed(&group.join("pids.events"), "max")?;
        counters.processes = file::number(&group.join("pids.current"))?;
        counters.cpu_usec = if self.layout.holding("cpuacct").is_some() {
            v1::cpu_usec(&self.controlled("cpuacct", name)?.1)?
        } else {
            v2::cpu_usec(&self.controlled("cpu", name)?.1)?
        };
        // The same words in both versions.
        let stat = self.controlled("cpu", name)?.1.join("cpu.stat");
        let text = file::read(&stat)?;
        let part = |key| file::find(&text, key).ok_or_else(|| file::malformed(&stat, &text));
        counters.cpu_periods = part("nr_periods")?;
        counters.cpu_throttled = part("nr_throttled")?;
        Ok(counters)
    }

    fn memory_limit(&self, name: &str, bytes: u64) -> Result<MemoryLimit, CgroupError> {
        MemoryLimit::new(bytes, self.page).ok_or_else(|| CgroupError::Limit {
            name: name.to_owned(),
            what: "memory limit",
            least: self.page,
            found: bytes,
        })
    }

    /// SIGKILL to every process that is seen while the group is frozen: what forks meanwhile has to stop at its next instruction, and is
    /// found by the next round.
    pub(super) fn kill_each(&self, name: &str) -> Result<(), CgroupError> {
        let path = self.path(name)?;
        let freezer = match (self.layout.holding("freezer"), self.layout.unified()) {
            (Some(hierarchy), _) | (None, Some(hierarchy)) => Some(hierarchy),
            (None, None) => None,
        };
        let freezer = freezer
            .map(|hierarchy| (hierarchy.version, self.parent_in(hierarchy).join(name)))
            .filter(|(_, group)| group.is_dir());
        match &freezer {
            Some((Version::V1, group)) => v1::freeze(group)?,
            Some((Version::V2, group)) => v2::freeze(group)?,
            None => {}
        }
        let killed = self.processes(name).and_then(|pids| {
            pids.into_iter()
                .try_for_each(|pid| self.kill_one(&path, pid))
        });
        // Also after a failure: on version 1 a frozen process does not die of its signal.
        match &freezer {
            Some((Version::V1, group)) => v1::thaw(group)?,
            Some((Version::V2, group)) => v2::thaw(group)?,
            None => {}
        }
        killed
    }

    /// SIGKILL to one process of the group. By pidfd, and only after looking once more at whose it is: its number may belong to
    /// another process of the machine by now.
    fn kill_one(&self, path: &str, pid: i32) -> Result<(), CgroupError> {
        let failed = |operation: &str, error: Errno| CgroupError::File {
            operation: operation.to_owned(),
            path: PathBuf::from(format!("/proc/{pid}")),
            source: error.into(),
        };
        let Some(id) = Pid::from_raw(pid) else {
            return Ok(());
        };
        let process = match pidfd_open(id, PidfdFlags::empty()) {
            Ok(process) => process,
            // EINVAL: the kernel found the number in use, but its process just ended, or it is a thread that leads no group.
            Err(Errno::SRCH | Errno::INVAL) => return Ok(()),
            Err(error) => return Err(failed("open", error)),
        };
        let groups = file::read_if_there(Path::new(&format!("/proc/{pid}/cgroup")));
        match groups {
            Ok(Some(groups)) if self.layout.touches(&groups, path) => {}
            Ok(_) => return Ok(()),
            // The process ended between open and read.
            Err(CgroupError::File { source, .. })
                if source.raw_os_error() == Some(nix::libc::ESRCH) =>
            {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        match pidfd_send_signal(&process, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(failed("kill", error)),
        }
    }
}

impl Cgroups for Groups {
    fn set_budget(&self, budget: &Budget) -> Result<(), CgroupError> {
        let limit = self.memory_limit(&self.parent, budget.memory)?;
        self.make_parent()?;
        match self.controlled("memory", None)? {
            (Version::V1, group) => v1::limit_memory(&group, limit)?,
            (Version::V2, group) => {
                v2::limit_memory(&group, limit)?;
                v2::oom_group(&group, false)?;
            }
        }
        if let Some(pids) = budget.pids {
            let (_, group) = self.controlled("pids", None)?;
            file::hold(&group.join("pids.max"), &pids.to_string())?;
        }
        let Some(millis) = budget.cpu_request_millis else {
            return Ok(());
        };
        let share = CpuShare::new(millis);
        match self.controlled("cpu", None)? {
            (Version::V1, group) => v1::share_cpu(&group, share),
            (Version::V2, group) => v2::share_cpu(&group, share),
        }
    }

    fn total(&self) -> Result<Counters, CgroupError> {
        self.count(None)
    }

    fn path(&self, name: &str) -> Result<String, CgroupError> {
        Ok(format!("/{}/{}", self.parent, valid(name)?))
    }

    fn create(&self, name: &str) -> Result<(), CgroupError> {
        let name = valid(name)?;
        self.make_parent()?;
        for hierarchy in &self.layout.hierarchies {
            let group = self.parent_in(hierarchy).join(name);
            file::make(&group)?;
            if hierarchy.version == Version::V1 {
                v1::prepare(&group, &hierarchy.controllers)?;
            }
        }
        Ok(())
    }

    fn limit(&self, name: &str, limits: &Limits) -> Result<(), CgroupError> {
        let memory = self.memory_limit(name, limits.memory)?;
        for (what, value) in [
            ("cpu limit", limits.cpu_millis),
            ("pids limit", limits.pids),
        ] {
            if value == 0 {
                return Err(CgroupError::Limit {
                    name: name.to_owned(),
                    what,
                    least: 1,
                    found: 0,
                });
            }
        }
        match self.controlled("memory", Some(name))? {
            (Version::V1, group) => v1::limit_memory(&group, memory)?,
            (Version::V2, group) => {
                v2::oom_group(&group, true)?;
                v2::limit_memory(&group, memory)?;
            }
        }
        let quota = quota_usec(limits.cpu_millis);
        let share = CpuShare::new(limits.cpu_request_millis);
        match self.controlled("cpu", Some(name))? {
            (Version::V1, group) => {
                v1::limit_cpu(&group, quota, PERIOD_USEC)?;
                v1::share_cpu(&group, share)?;
            }
            (Version::V2, group) => {
                v2::limit_cpu(&group, quota, PERIOD_USEC)?;
                v2::share_cpu(&group, share)?;
            }
        }
        let (_, group) = self.controlled("pids", Some(name))?;
        file::hold(&group.join("pids.max"), &limits.pids.to_string())
    }

    fn join_files(&self, name: &str) -> Result<Vec<PathBuf>, CgroupError> {
        Ok(self
            .directories(name)?
            .into_iter()
            .map(|group| group.join("cgroup.procs"))
            .collect())
    }

    fn processes(&self, name: &str) -> Result<Vec<i32>, CgroupError> {
        let mut found = BTreeSet::new();
        for group in self.directories(name)? {
            for group in file::subtree(&group)? {
                let path = group.join("cgroup.procs");
                found.extend(members(&path, || file::read_if_there(&path))?);
            }
        }
        Ok(found.into_iter().collect())
    }

    fn assert_member(&self, name: &str, pid: i32) -> Result<(), CgroupError> {
        let wanted = self.path(name)?;
        let groups = file::read(Path::new(&format!("/proc/{pid}/cgroup")))?;
        self.layout
            .member(&groups, &wanted)
            .map_err(|(hierarchy, found)| CgroupError::NotMember {
                pid,
                hierarchy,
                wanted,
                found,
            })
    }

    fn kill(&self, name: &str) -> Result<(), CgroupError> {
        if let Some(unified) = self.layout.unified() {
            let at_once = v2::kill(&self.parent_in(unified).join(valid(name)?))?;
            // On a machine with nothing else this is all there is to do.
            if at_once && self.layout.hierarchies.len() == 1 {
                return Ok(());
            }
        }
        // What is only in other hierarchies: a process that had not yet joined all of them.
        self.kill_each(name)
    }

    fn counters(&self, name: &str) -> Result<Counters, CgroupError> {
        self.count(Some(name))
    }

    fn oom_limit(&self, name: &str) -> Result<Option<OomLimit>, CgroupError> {
        let path = self.path(name)?;
        let lines = oom_lines().map_err(|source| CgroupError::File {
            operation: "read".to_owned(),
            path: "/dev/kmsg".into(),
            source,
        })?;
        Ok(oom_limit(&lines, &path))
    }

    fn remove(&self, name: &str) -> Result<(), CgroupError> {
        for group in self.directories(name)? {
            for group in file::subtree(&group)? {
                file::remove(&group)?;
            }
        }
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>, CgroupError> {
        let mut names = BTreeSet::new();
        for hierarchy in &self.layout.hierarchies {
            names.extend(file::children(&self.parent_in(hierarchy))?);
        }
        Ok(names.into_iter().collect())
    }
}

/// The processes in the list at `path`, which `read` reads; `None`: the group is not there.
fn members(
    path: &Path,
    mut read: impl FnMut() -> Result<Option<String>, CgroupError>,
) -> Result<Vec<i32>, CgroupError> {
    for _ in 0..LOOKS {
        let text = read()?.unwrap_or_default();
        let pids = text
            .lines()
            .map(|line| line.parse().map_err(|_| file::malformed(path, line)))
            .collect::<Result<Vec<i32>, _>>()?;
        if !pids.contains(&0) {
            return Ok(pids);
        }
        std::thread::yield_now();
    }
    Err(CgroupError::ForeignProcess(path.to_owned()))
}

/// Names come from records on disk and become paths: no separators, no dots (`..`, and files of the kernel have one), bounded.
fn valid(name: &str) -> Result<&str, CgroupError> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if (1..=64).contains(&name.len()) && name.chars().all(fine) {
        Ok(name)
    } else {
        Err(CgroupError::Name(name.chars().take(80).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_refused() {
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "/",
            "/a",
            "../a",
            "a\0b",
            "a b",
            "a\n",
            "cgroup.procs",
            "memory.max",
            "é",
            "*",
            &"a".repeat(65),
        ] {
            assert!(matches!(valid(name), Err(CgroupError::Name(_))), "{name:?}");
        }
        for name in ["a", "i-0123_X", &"a".repeat(64)] {
            assert_eq!(valid(name).unwrap(), name);
        }
    }

    #[test]
    fn a_process_without_a_number_is_foreign_only_if_it_stays() {
        let path = Path::new("/g/cgroup.procs");
        let mut looks = ["12\n0\n", "0\n", "7\n12\n"].into_iter();
        let found = members(path, || Ok(looks.next().map(str::to_owned)));
        assert_eq!(found.unwrap(), [7, 12]);
        assert_eq!(members(path, || Ok(None)).unwrap(), [0; 0]);
        let mut count = 0;
        let stays = members(path, || {
            count += 1;
            Ok(Some("7\n0\n".to_owned()))
        });
        assert!(matches!(stays, Err(CgroupError::ForeignProcess(at)) if at == path));
        assert_eq!(count, LOOKS);
        let wrong = members(path, || Ok(Some("x\n".to_owned())));
        assert!(matches!(wrong, Err(CgroupError::File { .. })));
    }
}
