//! Limits and counters of version 2 (Documentation/admin-guide/cgroup-v2.rst).

use std::path::Path;

use super::file;
use super::{CgroupError, Counters, CpuShare, MemoryLimit};

/// Gives the children of `group` those of `controllers` that a limit needs. Once a child of the root has them enabled for its own children
/// the kernel refuses to take them away above (EBUSY), so no other tool that writes the root's file can undo it.
pub(super) fn delegate(group: &Path, controllers: &[String]) -> Result<(), CgroupError> {
    let path = group.join("cgroup.subtree_control");
    for controller in ["cpu", "memory", "pids"] {
        if !controllers.iter().any(|c| c == controller) {
            continue;
        }
        let enabled = |text: &str| text.split_whitespace().any(|c| c == controller);
        if enabled(&file::read(&path)?) {
            continue;
        }
        file::write(&path, &format!("+{controller}"))?;
        let found = file::read(&path)?;
        if !enabled(&found) {
            return Err(CgroupError::NotHeld {
                path,
                wanted: format!("+{controller}"),
                found: found.trim_end().to_owned(),
            });
        }
    }
    Ok(())
}

pub(super) fn limit_memory(group: &Path, limit: MemoryLimit) -> Result<(), CgroupError> {
    let swap = group.join("memory.swap.max");
    if swap.exists() {
        file::hold(&swap, "0")?;
    }
    file::hold(&group.join("memory.max"), &limit.bytes().to_string())
}

/// Whether an OOM kill takes the whole group. For an instance it must: a sentry without its stubs, or stubs without their
/// sentry, are of no use. For the parent of all it must not.
pub(super) fn oom_group(group: &Path, whole: bool) -> Result<(), CgroupError> {
    file::hold(
        &group.join("memory.oom.group"),
        if whole { "1" } else { "0" },
    )
}

pub(super) fn limit_cpu(
    group: &Path,
    quota_usec: u64,
    period_usec: u64,
) -> Result<(), CgroupError> {
    file::hold(
        &group.join("cpu.max"),
        &format!("{quota_usec} {period_usec}"),
    )
}

pub(super) fn share_cpu(group: &Path, share: CpuShare) -> Result<(), CgroupError> {
    file::hold(&group.join("cpu.weight"), &share.weight().to_string())
}

/// Counters of the memory controller. `oom` of memory.events.local counts only the moments at which this group's own limit
/// could not be met by reclaiming, so it is exact; `max` there also rises when dropping page cache was enough.
pub(super) fn memory(group: &Path, into: &mut Counters) -> Result<(), CgroupError> {
    let path = group.join("memory.events.local");
    let text = file::read(&path)?;
    let part = |key| file::find(&text, key).ok_or_else(|| file::malformed(&path, &text));
    into.oom_kills = part("oom_kill")?;
    into.memory_limit_hits = part("oom")?;
    let path = group.join("memory.stat");
    let text = file::read(&path)?;
    let part = |key| file::find(&text, key).ok_or_else(|| file::malformed(&path, &text));
    into.memory = part("anon")?.saturating_add(part("shmem")?);
    Ok(())
}

/// CPU time in microseconds. Counted in every group, also where the controller is not enabled.
pub(super) fn cpu_usec(group: &Path) -> Result<u64, CgroupError> {
    file::keyed(&group.join("cpu.stat"), "usage_usec")
}

/// Asks for the group to be frozen; does not wait. Its processes can be killed as they are.
pub(super) fn freeze(group: &Path) -> Result<(), CgroupError> {
    file::write(&group.join("cgroup.freeze"), "1")
}

/// Lets a frozen group run again.
pub(super) fn thaw(group: &Path) -> Result<(), CgroupError> {
    file::write(&group.join("cgroup.freeze"), "0")
}

/// Kills everything in the group and below at once, forks in flight included. False where the kernel cannot (before 5.14).
pub(super) fn kill(group: &Path) -> Result<bool, CgroupError> {
    let path = group.join("cgroup.kill");
    if !path.exists() {
        return Ok(false);
    }
    match file::write(&path, "1") {
        Ok(()) => Ok(true),
        Err(CgroupError::File { source, .. }) if file::is_gone(&source) => Ok(true),
        Err(error) => Err(error),
    }
}
