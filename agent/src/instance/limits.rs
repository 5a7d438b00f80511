//! From what a sandbox may use to the limits of its control group. Pure.

use cloche_crds::sandbox::EffectiveResources;

use super::{Link, Shape};
use crate::cgroup::Limits;

/// Memory that the sentry needs beside what the guest sees, in bytes: its own heap, page tables and the stubs.
pub const SENTRY_MEMORY: u64 = 32 << 20;
/// Host processes and threads beside the guest's: the sentry's own threads and one stub.
const SENTRY_PIDS: u32 = 256;
/// Every guest process is a host process with a stub thread, and a refused fork makes the sentry panic: the guest's own limit
/// must stop it long before.
const PIDS_FACTOR: u32 = 4;

/// The instances that can run a sandbox.
pub fn shape(resources: &EffectiveResources) -> Shape {
    Shape {
        cpu_millis: resources.cpu_limit.0,
        memory: resources.memory_limit.0,
        link: Link::Loopback,
    }
}

/// The limits of an instance's group before anybody has claimed it.
pub fn of_shape(shape: &Shape) -> Limits {
    limits(shape, shape.cpu_millis, DEFAULT_PIDS)
}

/// The limits of a claimed instance's group, whose sentry needs so many bytes for what the sandbox was brought back from.
pub fn of_sandbox(resources: &EffectiveResources, overhead: u64) -> Limits {
    let limits = limits(&shape(resources), resources.cpu_request.0, resources.pids);
    Limits {
        memory: limits.memory.saturating_add(overhead),
        ..limits
    }
}

/// Bytes of memory that a sentry needs for the names of the files that a sandbox is brought back with, of which it has so many bytes: for the
/// list itself, which it holds as long as it lives, for what it makes of it once, and for as much again that its collector lets lie. Not
/// more than twice what the guest may have: it chooses the names.
pub fn of_names(names: u64, resources: &EffectiveResources) -> u64 {
    let most = resources.memory_limit.0.saturating_mul(2);
    names.saturating_mul(4).min(most)
}

/// The same while its files are being kept and nothing of the guest runs: the sentry has the names of all of them in its memory, several
/// times.
pub fn while_kept(limits: &Limits) -> Limits {
    Limits {
        memory: limits.memory.saturating_mul(2),
        ..*limits
    }
}

/// What a sandbox with these requests takes of the node's budget, in bytes.
pub fn memory_request(resources: &EffectiveResources) -> u64 {
    resources.memory_request.0.saturating_add(SENTRY_MEMORY)
}

const DEFAULT_PIDS: u32 = 1024;

fn limits(shape: &Shape, cpu_request_millis: u64, pids: u32) -> Limits {
    Limits {
        memory: shape.memory.saturating_add(SENTRY_MEMORY),
        cpu_millis: u32::try_from(shape.cpu_millis).unwrap_or(u32::MAX),
        cpu_request_millis: u32::try_from(cpu_request_millis).unwrap_or(u32::MAX),
        pids: pids.saturating_mul(PIDS_FACTOR).saturating_add(SENTRY_PIDS),
    }
}
