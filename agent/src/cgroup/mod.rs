//! Control groups of instances: limits that hold, counters that tell why something died.
//!
//! Every instance has a group `/cloche/<instance>` in *every* hierarchy of the machine, the unified one of a hybrid machine too.
//! Interface that the rest of the agent builds on (the owner of this folder fills it in and may refine it):

use std::path::PathBuf;

/// Limits of a group. Every value is written, read back and compared; a difference is an error (fail closed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Hard memory limit in bytes, sentry headroom included.
    pub memory: u64,
    /// CPU quota in thousandths of a core, period 100 ms.
    pub cpu_millis: u32,
    /// CPU request in thousandths of a core: becomes shares (v1) or weight (v2).
    pub cpu_request_millis: u32,
    /// Host processes and threads.
    pub pids: u32,
}

/// What the kernel counted for a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Processes of this group that the OOM killer ended.
    pub oom_kills: u64,
    /// How often this group's own memory limit was hit (v1 failcnt, v2 memory.events.local max).
    pub memory_limit_hits: u64,
    /// How often a fork failed by this group's own pids limit.
    pub pids_limit_hits: u64,
    /// Anonymous and shared memory in use, in bytes (no page cache).
    pub memory: u64,
    /// CPU time used, in microseconds.
    pub cpu_usec: u64,
}

/// The groups of one machine, v1, v2 or hybrid behind one face.
pub trait Cgroups: Send + Sync {
    /// Makes the group `name` below `/cloche` in every hierarchy. One that exists is fine.
    fn create(&self, name: &str) -> Result<(), CgroupError>;
    /// Sets limits and reads them back.
    fn limit(&self, name: &str, limits: &Limits) -> Result<(), CgroupError>;
    /// The files to which a process writes `0` to join the group, one per hierarchy.
    fn join_files(&self, name: &str) -> Vec<PathBuf>;
    /// Processes in the group, in any hierarchy.
    fn processes(&self, name: &str) -> Result<Vec<i32>, CgroupError>;
    /// Fails unless `pid` is in the group in every hierarchy (by /proc/PID/cgroup).
    fn assert_member(&self, name: &str, pid: i32) -> Result<(), CgroupError>;
    /// Sends SIGKILL to all its processes once, frozen before where the machine can freeze; the caller repeats until
    /// [`Self::processes`] is empty.
    fn kill(&self, name: &str) -> Result<(), CgroupError>;
    /// What the kernel counted.
    fn counters(&self, name: &str) -> Result<Counters, CgroupError>;
    /// Removes the empty group from every hierarchy; gone already is fine.
    fn remove(&self, name: &str) -> Result<(), CgroupError>;
    /// Names of all groups below `/cloche`, in any hierarchy.
    fn list(&self) -> Result<Vec<String>, CgroupError>;
}

/// A group that could not be made, set, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// A file of the cgroup file system could not be written or read.
    #[error("{operation} {path}")]
    File {
        /// `write VALUE to`, `read`, `make`, `remove`.
        operation: String,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A limit did not read back as written.
    #[error("{path} holds {found} after {wanted} was written")]
    NotHeld {
        /// The file.
        path: PathBuf,
        /// What was written.
        wanted: String,
        /// What it says.
        found: String,
    },
    /// The machine lacks what a limit needs.
    #[error("{0}")]
    Unsupported(String),
}
