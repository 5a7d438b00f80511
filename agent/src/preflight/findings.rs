//! What was found on the host: facts without a judgement.

use std::path::PathBuf;

use crate::cgroup::Kind;

/// What the agent is configured to use.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The `runsc` program.
    pub runsc: PathBuf,
    /// The `mkfs.erofs` program; a bare name is looked up in PATH.
    pub mkfs_erofs: PathBuf,
    /// Records, images, scratch files, programs of running sandboxes: `/var/lib/cloche`. Made if it is not there.
    pub state: PathBuf,
    /// Sockets and runsc roots: `/run/cloche`. Made if it is not there.
    pub run: PathBuf,
    /// Name of the group that holds all instances' groups.
    pub cgroup_parent: String,
}

/// A program that was run to its end, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Run {
    /// It could not be started.
    NotStarted(String),
    /// It did not end in time and was killed.
    TimedOut,
    /// It failed.
    Failed {
        /// Exit status or signal, as text.
        status: String,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// It succeeded; what it wrote to standard output.
    Succeeded(String),
}

/// A directory, after it was made. Each is what the attempt said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Which one.
    pub path: PathBuf,
    /// There was no room for what was tried; then the three that follow are told as good.
    pub full: bool,
    /// Making it, and a file in it.
    pub writable: Result<(), String>,
    /// A file without a name (`O_TMPFILE`).
    pub unnamed: Result<(), String>,
    /// Giving back the middle of a file (`FALLOC_FL_PUNCH_HOLE`).
    pub holes: Result<(), String>,
    /// Programs may be run from it (no `noexec`).
    pub executable: bool,
}

/// Everything that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Findings {
    /// Effective user.
    pub uid: u32,
    /// `/proc/self/uid_map`, blanks made single.
    pub uid_map: String,
    /// Effective capabilities, a bit each.
    pub capabilities: u64,
    /// The kernel's release, such as `6.1.0-57-cloud-amd64`.
    pub kernel: String,
    /// `user.max_user_namespaces`; None if the kernel has none.
    pub user_namespaces: Option<u64>,
    /// `kernel.seccomp.actions_avail`; empty if the kernel has no seccomp filters.
    pub seccomp_actions: Vec<String>,
    /// A seccomp filter is on this process, which all sandboxes would inherit.
    pub seccomp_filtered: bool,
    /// `kernel.yama.ptrace_scope`; None without Yama.
    pub ptrace_scope: Option<u32>,
    /// What kind of cgroup machine, or why not.
    pub cgroups: Result<Kind, String>,
    /// Whether the kernel's log can be read.
    pub kernel_log: Result<(), String>,
    /// `runsc --version`.
    pub runsc: Run,
    /// A tiny image, made with the options that images are made with.
    pub mkfs_erofs: Run,
    /// The state directory.
    pub state: Directory,
    /// The run directory.
    pub run: Directory,
}
