//! Control groups of instances: limits that hold, counters that tell why something died.
//!
//! Every instance has a group `/cloche/<instance>` in *every* hierarchy of the machine, the unified one of a hybrid machine too,
//! counted from the hierarchies' roots: nothing of an instance is in a group of the agent or of its pod. Processes join by
//! writing `0` to each of [`Cgroups::join_files`] before they exec.
//!
//! | file | what |
//! |---|---|
//! | `layout` | which hierarchies there are (pure) |
//! | `limits` | what is written for which limit, rounding (pure) |
//! | `groups` | [`Groups`]: the groups of this machine |
//! | `v1`, `v2` | files of one version |
//! | `death` | why an instance ended, by counters and kernel log (pure) |
//! | `kmsg` | the kernel's log |

use std::path::PathBuf;

mod death;
mod file;
mod groups;
mod kmsg;
mod layout;
mod limits;
mod v1;
mod v2;

#[cfg(test)]
mod tests;

pub use death::{Death, Evidence, OomLimit, Verdict, oom_limit, verdict};
pub use groups::Groups;
pub use kmsg::oom_lines;
pub use layout::{Hierarchy, Kind, Layout, LayoutError, Version, detect};
pub use limits::{Budget, CpuShare, Limits, MemoryLimit};

/// The group under which all others are made, if nothing else is configured.
pub const PARENT: &str = "cloche";

/// What the kernel counted for a group. Counts start at zero with the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Processes of this group that the OOM killer ended, whichever limit was met.
    pub oom_kills: u64,
    /// How often this group's own memory limit was hit. v2 (memory.events.local `oom`): only when reclaiming was not enough. v1
    /// (failcnt): every time, so that writing much through the page cache raises it too: see [`verdict`].
    pub memory_limit_hits: u64,
    /// How often a fork failed by this group's own pids limit.
    pub pids_limit_hits: u64,
    /// Anonymous and shared memory in use, in bytes (no page cache, no kernel memory). The kernel may
    /// be 2 s behind. The caller samples it; the largest sample is the peak.
    pub memory: u64,
    /// CPU time used, in microseconds.
    pub cpu_usec: u64,
    /// Processes and threads of the host in it: one for each process of the guest, and those of the sentry. Not of all groups together.
    pub processes: u64,
    /// Periods in which it wanted processor time, and those of them in which its own limit held it up.
    pub cpu_periods: u64,
    /// See `cpu_periods`.
    pub cpu_throttled: u64,
}

/// The groups of one machine, v1, v2 or hybrid behind one face. Names are `[A-Za-z0-9_-]`, 1 to 64 characters; anything else is
/// [`CgroupError::Name`].
pub trait Cgroups: Send + Sync {
    /// Sets what all instances may use together. To be called before the first [`Self::create`]. v1 refuses (EBUSY) less than what is in use.
    fn set_budget(&self, budget: &Budget) -> Result<(), CgroupError>;
    /// What all instances use together: memory and CPU of all, memory limit hits of the budget itself. Counts of kills are those of
    /// processes directly in the parent, that is zero.
    fn total(&self) -> Result<Counters, CgroupError>;
    /// The group's path from the roots of the hierarchies, as an OCI spec's `cgroupsPath` and the kernel's log name it: `/cloche/x`.
    fn path(&self, name: &str) -> Result<String, CgroupError>;
    /// Makes the group `name` below the parent in every hierarchy. One that exists is fine.
    fn create(&self, name: &str) -> Result<(), CgroupError>;
    /// Sets limits and reads them back. On v1 a memory limit below what is in use is an error (EBUSY), on v2 it is met by killing.
    fn limit(&self, name: &str, limits: &Limits) -> Result<(), CgroupError>;
    /// The files to which a process writes `0` to join the group, one per hierarchy.
    fn join_files(&self, name: &str) -> Result<Vec<PathBuf>, CgroupError>;
    /// Processes in the group or below, in any hierarchy, ascending. A group that is not there has none.
    fn processes(&self, name: &str) -> Result<Vec<i32>, CgroupError>;
    /// Fails unless `pid` is in the group in every hierarchy (by /proc/PID/cgroup).
    fn assert_member(&self, name: &str, pid: i32) -> Result<(), CgroupError>;
    /// Sends SIGKILL to all its processes once, all at once or frozen before where the machine can; the caller repeats until
    /// [`Self::processes`] is empty. A group that is not there is fine.
    fn kill(&self, name: &str) -> Result<(), CgroupError>;
    /// What the kernel counted.
    fn counters(&self, name: &str) -> Result<Counters, CgroupError>;
    /// Whose memory limit the kernel's log names for the first kill in the group; None if it names none (any more). For
    /// [`Evidence::logged`], when [`Counters::oom_kills`] rose.
    fn oom_limit(&self, name: &str) -> Result<Option<OomLimit>, CgroupError>;
    /// Removes the group, and what is below it, from every hierarchy; gone already is fine. With processes in it: an error
    /// (EBUSY), and it stays where they are.
    fn remove(&self, name: &str) -> Result<(), CgroupError>;
    /// Names of all groups below the parent, in any hierarchy, ascending.
    fn list(&self) -> Result<Vec<String>, CgroupError>;
}

impl CgroupError {
    /// Whether it says that a process is not there, or is in another group.
    pub fn is_of_the_gone(&self) -> bool {
        match self {
            Self::NotMember { .. } => true,
            Self::File { source, .. } => {
                source.kind() == std::io::ErrorKind::NotFound
                    || source.raw_os_error() == Some(nix::libc::ESRCH)
            }
            _ => false,
        }
    }
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
    #[error("{path} holds {found:?} after {wanted:?} was written")]
    NotHeld {
        /// The file.
        path: PathBuf,
        /// What was written.
        wanted: String,
        /// What it says.
        found: String,
    },
    /// A process is not in the group where it must be.
    #[error("process {pid} is in {found} of cgroup hierarchy {hierarchy:?}, not in {wanted}")]
    NotMember {
        /// The process.
        pid: i32,
        /// Key of the hierarchy; empty for the unified one.
        hierarchy: String,
        /// The group in which it must be.
        wanted: String,
        /// Where it is.
        found: String,
    },
    /// Not the name of a group.
    #[error("{0:?} cannot be the name of a control group: use 1 to 64 of A-Z a-z 0-9 _ -")]
    Name(String),
    /// A limit that means nothing.
    #[error("{what} of {name} must be at least {least}, and is {found}")]
    Limit {
        /// The group.
        name: String,
        /// Which limit.
        what: &'static str,
        /// The smallest that makes sense.
        least: u64,
        /// What was asked for.
        found: u64,
    },
    /// The machine's hierarchies cannot be used.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A process in the group that this process cannot see, and so cannot kill.
    #[error(
        "{0} lists a process of another pid namespace: the agent needs the host's pid namespace (hostPID)"
    )]
    ForeignProcess(PathBuf),
}
