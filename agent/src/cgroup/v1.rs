//! Limits and counters of version 1 (Documentation/admin-guide/cgroup-v1).

use std::path::Path;

use super::file;
use super::{CgroupError, Counters, CpuShare, MemoryLimit};

/// How much swap a group may use, in bytes: next to nothing, but not nothing. The kernel charges the limit of memory and swap first
/// (mm/memcontrol.c, `try_charge_memcg`), and a failure of that one is counted nowhere (seen on 6.18: `memory.memsw.failcnt`
/// stays at zero too). The slack is larger than any single charge (a huge page), so that memory's own limit fails first and is counted.
const SWAP_SLACK: u64 = 4 << 20;

/// Makes a new group usable. A cpuset group starts without processors and memory nodes, and joining it would fail with ENOSPC;
/// a memory group of an old kernel does not count its children.
pub(super) fn prepare(group: &Path, controllers: &[String]) -> Result<(), CgroupError> {
    let has = |name: &str| controllers.iter().any(|c| c == name);
    if has("cpuset") {
        for name in ["cpuset.cpus", "cpuset.mems"] {
            let own = group.join(name);
            if file::read(&own)?.trim().is_empty()
                && let Some(parent) = group.parent()
            {
                let value = file::read(&parent.join(name))?;
                file::hold(&own, value.trim())?;
            }
        }
    }
    if has("memory") {
        let path = group.join("memory.use_hierarchy");
        // Always 1, and no longer writable to another value, since Linux 5.11.
        if file::read_if_there(&path)?.is_some_and(|text| text.trim() == "0") {
            file::hold(&path, "1")?;
        }
    }
    Ok(())
}

/// Swap is limited to [`SWAP_SLACK`] by a limit of memory and swap together. The kernel refuses a moment in which memory's limit is
/// above that one, so the order depends on the direction.
pub(super) fn limit_memory(group: &Path, limit: MemoryLimit) -> Result<(), CgroupError> {
    let memory = group.join("memory.limit_in_bytes");
    let both = group.join("memory.memsw.limit_in_bytes");
    let value = limit.bytes().to_string();
    if !both.exists() {
        file::hold(&memory, &value)?;
        return file::hold(&group.join("memory.swappiness"), "0");
    }
    let sum = limit.bytes().saturating_add(SWAP_SLACK).to_string();
    if file::number(&both)? < limit.bytes() {
        file::hold(&both, &sum)?;
        file::hold(&memory, &value)
    } else {
        file::hold(&memory, &value)?;
        file::hold(&both, &sum)
    }
}

pub(super) fn limit_cpu(
    group: &Path,
    quota_usec: u64,
    period_usec: u64,
) -> Result<(), CgroupError> {
    // The period first: a quota is checked against the period that it will be used with.
    file::hold(&group.join("cpu.cfs_period_us"), &period_usec.to_string())?;
    file::hold(&group.join("cpu.cfs_quota_us"), &quota_usec.to_string())
}

pub(super) fn share_cpu(group: &Path, share: CpuShare) -> Result<(), CgroupError> {
    file::hold(&group.join("cpu.shares"), &share.shares().to_string())
}

/// Counters of the memory controller. `failcnt` counts every charge that met this group's own limit, those after which dropping
/// page cache was enough included; the limit of a group above does not move it (see the tests).
pub(super) fn memory(group: &Path, into: &mut Counters) -> Result<(), CgroupError> {
    into.oom_kills = file::keyed(&group.join("memory.oom_control"), "oom_kill")?;
    into.memory_limit_hits = file::number(&group.join("memory.failcnt"))?;
    let path = group.join("memory.stat");
    let text = file::read(&path)?;
    let part = |key| file::find(&text, key).ok_or_else(|| file::malformed(&path, &text));
    into.memory = part("total_rss")?.saturating_add(part("total_shmem")?);
    Ok(())
}

/// CPU time in microseconds.
pub(super) fn cpu_usec(group: &Path) -> Result<u64, CgroupError> {
    Ok(file::number(&group.join("cpuacct.usage"))? / 1000)
}

/// Asks for the group to be frozen; does not wait.
pub(super) fn freeze(group: &Path) -> Result<(), CgroupError> {
    file::write(&group.join("freezer.state"), "FROZEN")
}

/// Lets a frozen group run again: signals are only acted upon then.
pub(super) fn thaw(group: &Path) -> Result<(), CgroupError> {
    file::write(&group.join("freezer.state"), "THAWED")
}
