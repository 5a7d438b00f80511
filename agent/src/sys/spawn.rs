//! Starts a program inside control groups, with nothing of the agent's own state left on it.
//!
//! What a sentry inherits it keeps for its life: the agent's groups (it would die with the agent's pod), niceness, affinity,
//! limits, blocked signals, open files. So the child sets all of that itself before it becomes the program, and any step that
//! fails ends it.

use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr;

use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, rlim_t};
use nix::unistd::pipe2;

use super::process::{Claim, Process, ProcessError, claimed, pidfd_open};

/// What to start, and where.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// The program, by absolute path.
    pub program: &'a Path,
    /// Its arguments, its own name not included.
    pub arguments: &'a [OsString],
    /// Files to which a process writes `0` to join a control group.
    pub join: &'a [PathBuf],
    /// Its stderr. stdin and stdout are `/dev/null`.
    pub stderr: BorrowedFd<'a>,
    /// Its `oom_score_adj`, -1000 to 1000. Never below the agent's own: lowering needs a right that we may lack, and the agent
    /// must not die before what it started.
    pub oom_score_adj: i32,
}

/// A program that could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// Something that the child needs could not be prepared.
    #[error("{operation} {object}")]
    Prepare {
        /// `open`, `read`, ...
        operation: &'static str,
        /// A path or a name.
        object: String,
        /// Why.
        source: io::Error,
    },
    /// A step in the child failed; it never became the program.
    #[error("{step} for {program}")]
    Child {
        /// The step.
        step: String,
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It runs but cannot be watched; it was killed.
    #[error(transparent)]
    Watch(#[from] ProcessError),
}

/// Open files: enough for a sentry of some thousand guest files, less where the agent's own hard limit is lower.
const OPEN_FILES: rlim_t = 1 << 20;

/// The limits of a child, hard and soft alike, as far as our own hard limits allow.
const LIMITS: [(Resource, rlim_t); 8] = [
    (Resource::RLIMIT_NOFILE, OPEN_FILES),
    // A core of a sentry holds its guest's memory.
    (Resource::RLIMIT_CORE, 0),
    (Resource::RLIMIT_CPU, RLIM_INFINITY),
    (Resource::RLIMIT_FSIZE, RLIM_INFINITY),
    (Resource::RLIMIT_AS, RLIM_INFINITY),
    (Resource::RLIMIT_DATA, RLIM_INFINITY),
    // Per uid over the whole node, and every sentry has the same uid: the control group bounds them one by one.
    (Resource::RLIMIT_NPROC, RLIM_INFINITY),
    // The sentry faults memory in by mlock (`runsc/sandbox/sandbox.go`, createSandboxProcess).
    (Resource::RLIMIT_MEMLOCK, RLIM_INFINITY),
];

/// The steps in the child, in their order. The number of the one that failed comes back over a pipe.
const STEPS: [&str; 10] = [
    "bind the child to the agent's life",
    "join the control group",
    "release the child from the agent's life",
    "begin a session",
    "reset signals",
    "reset scheduling",
    "reset the CPU affinity",
    "set limits",
    "raise oom_score_adj",
    "close inherited files",
];

/// Starts it. Blocks until it has become the program or failed to (some milliseconds): call it on a thread that may block,
/// entered into the runtime.
pub fn spawn(spawn: &Spawn<'_>) -> Result<Process, SpawnError> {
    let prepare = |operation, object: String| {
        move |source| SpawnError::Prepare {
            operation,
            object,
            source,
        }
    };
    // Opened here, so that an error names its file; written by the child, which is whom `0` moves.
    let groups = spawn
        .join
        .iter()
        .map(|path| {
            OpenOptions::new()
                .write(true)
                .open(path)
                .map_err(prepare("open", path.display().to_string()))
        })
        .collect::<Result<Vec<File>, _>>()?;
    let limits = LIMITS
        .iter()
        .map(|(resource, wanted)| {
            let (_, hard) = getrlimit(*resource)
                .map_err(io::Error::from)
                .map_err(prepare("read", format!("{resource:?}")))?;
            Ok((*resource, (*wanted).min(hard)))
        })
        .collect::<Result<Vec<_>, SpawnError>>()?;
    let oom_score_adj = raised(spawn.oom_score_adj)
        .map_err(prepare("read", "/proc/self/oom_score_adj".to_owned()))?;
    let stderr = spawn
        .stderr
        .try_clone_to_owned()
        .map_err(prepare("duplicate", "the log of the child".to_owned()))?;
    let (mut failed, failure) = pipe2(OFlag::O_CLOEXEC)
        .map(|(read, write)| (File::from(read), File::from(write)))
        .map_err(io::Error::from)
        .map_err(prepare("make", "a pipe".to_owned()))?;

    // Not `crate::process::command`: this is the one program that is not bound to the agent's life.
    #[allow(clippy::disallowed_methods)]
    let mut command = Command::new(spawn.program);
    command
        .args(spawn.arguments)
        .env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr);
    let plan = ChildPlan {
        groups: groups.iter().map(AsRawFd::as_raw_fd).collect(),
        limits,
        oom_score_adj: CString::new(oom_score_adj.to_string()).unwrap_or_default(),
        failure: failure.as_raw_fd(),
        parent: nix::unistd::getpid().as_raw(),
    };
    // SAFETY: between fork and exec the closure only makes system calls on memory that was prepared above: it allocates
    // nothing, takes no lock and touches no other state of this process (signal-safety(7)).
    unsafe {
        command.pre_exec(move || plan.run());
    }

    let (pid, fd, claim) = {
        // Started and claimed in one: see `claimed`.
        let mut claimed = claimed();
        let mut child = command.spawn().map_err(|source| {
            drop(failure);
            let mut step = [0];
            let step = match failed.read(&mut step) {
                Ok(1) => STEPS.get(usize::from(step[0])).copied(),
                _ => None,
            };
            SpawnError::Child {
                step: step.unwrap_or("execute").to_owned(),
                program: spawn.program.to_owned(),
                source,
            }
        })?;
        // `Child` neither kills nor reaps when it is dropped. A child that has ended keeps its pid until we reap it.
        let held = i32::try_from(child.id())
            .map_err(io::Error::other)
            .and_then(|pid| Ok((pid, pidfd_open(pid)?)));
        match held {
            Ok((pid, fd)) => (pid, fd, Claim::within(&mut claimed, pid)),
            Err(source) => {
                // Most likely no descriptor is left. Nobody will ever hold this child.
                child.kill().and_then(|()| child.wait()).ok();
                return Err(prepare("hold", format!("child {}", child.id()))(source));
            }
        }
    };
    Ok(Process::child(pid, fd, claim)?)
}

/// The agent's own score or the wanted one, whichever is higher.
fn raised(wanted: i32) -> io::Result<i32> {
    let own = std::fs::read_to_string("/proc/self/oom_score_adj")?;
    let own: i32 = own.trim().parse().map_err(io::Error::other)?;
    Ok(wanted.clamp(-1000, 1000).max(own))
}

/// Of the kernel, for all 64 signals.
const SIGSET_SIZE: usize = 8;

/// All that the child needs, prepared before the fork.
struct ChildPlan {
    groups: Vec<RawFd>,
    limits: Vec<(Resource, rlim_t)>,
    oom_score_adj: CString,
    failure: RawFd,
    parent: libc::pid_t,
}

impl ChildPlan {
    /// Runs in the child. Only system calls.
    fn run(&self) -> io::Result<()> {
        let steps: [fn(&Self) -> io::Result<()>; STEPS.len()] = [
            // A child outside the group is one that nobody would find after the agent's death.
            bind_to_parent,
            // Early, so that whatever follows is charged to the group.
            join_groups,
            release_from_parent,
            begin_session,
            reset_signals,
            reset_scheduling,
            // After the groups: their cpuset bounds it.
            reset_affinity,
            set_limits,
            raise_oom_score,
            close_files,
        ];
        for (number, step) in (0_u8..).zip(steps) {
            if let Err(error) = step(self) {
                // SAFETY: writes one byte from the stack to a pipe that is open and has room.
                unsafe { libc::write(self.failure, (&raw const number).cast(), 1) };
                return Err(error);
            }
        }
        Ok(())
    }
}

fn bind_to_parent(plan: &ChildPlan) -> io::Result<()> {
    set_death_signal(libc::SIGKILL)?;
    // It may have died before it was asked for: then nobody sends the signal.
    // SAFETY: no arguments, cannot fail.
    if unsafe { libc::getppid() } == plan.parent {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    }
}

fn release_from_parent(_: &ChildPlan) -> io::Result<()> {
    set_death_signal(0)
}

fn set_death_signal(signal: libc::c_int) -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) })
}

fn join_groups(plan: &ChildPlan) -> io::Result<()> {
    for group in &plan.groups {
        // SAFETY: writes one byte of a literal to an open descriptor.
        let written = unsafe { libc::write(*group, c"0".as_ptr().cast(), 1) };
        check(written as i64)?;
    }
    Ok(())
}

fn begin_session(_: &ChildPlan) -> io::Result<()> {
    // SAFETY: no arguments.
    check(unsafe { libc::setsid() })?;
    // SAFETY: an integer; cannot fail. The agent's may be anything, and the sentry must read what runsc makes for it.
    unsafe { libc::umask(0o022) };
    Ok(())
}

fn reset_signals(_: &ChildPlan) -> io::Result<()> {
    // By the system call: the C library does not let its own two (32, 33) be reset, and whoever started the agent may have
    // them ignored (seen). All zero is SIG_DFL without flags.
    let default = [0_u64; 4];
    for signal in 1..=64 {
        // SAFETY: as large as the kernel's `sigaction`. Fails for SIGKILL and SIGSTOP, which cannot differ.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                ptr::null::<u64>(),
                SIGSET_SIZE,
            )
        };
    }
    // SAFETY: `sigset_t` is plain memory for which zero is valid; it is filled before it is used.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: points to a set on the stack.
    check(unsafe { libc::sigemptyset(&raw mut none) })?;
    // SAFETY: points to a set on the stack; the old one is not asked for.
    check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut()) })
}

fn reset_scheduling(_: &ChildPlan) -> io::Result<()> {
    let normal = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is this process; points to a struct on the stack.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const normal) })?;
    // SAFETY: integers only; 0 is this process.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 0) })
}

fn reset_affinity(_: &ChildPlan) -> io::Result<()> {
    // The kernel takes those that exist and that the cpuset allows: sched_setaffinity(2).
    let all = [u8::MAX; size_of::<libc::cpu_set_t>()];
    // SAFETY: 0 is this process; the size is that of the array, whose alignment the kernel does not ask for.
    check(unsafe { libc::sched_setaffinity(0, all.len(), all.as_ptr().cast()) })
}

fn set_limits(plan: &ChildPlan) -> io::Result<()> {
    for (resource, limit) in &plan.limits {
        let both = libc::rlimit {
            rlim_cur: *limit,
            rlim_max: *limit,
        };
        // SAFETY: points to a struct on the stack.
        check(unsafe { libc::setrlimit(*resource as _, &raw const both) })?;
    }
    Ok(())
}

fn raise_oom_score(plan: &ChildPlan) -> io::Result<()> {
    let path = c"/proc/self/oom_score_adj".as_ptr();
    // SAFETY: a C string literal. Opened here because `self` must be the child; closed at exec.
    let file = unsafe { libc::open(path, libc::O_WRONLY | libc::O_CLOEXEC) };
    check(file)?;
    let text = plan.oom_score_adj.as_bytes();
    // SAFETY: the length is that of the text; the descriptor was just opened.
    let written = unsafe { libc::write(file, text.as_ptr().cast(), text.len()) };
    check(written as i64)
}

/// At exec, not now: the pipe over which the standard library tells a failed exec must live until then.
fn close_files(_: &ChildPlan) -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3_u32,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    })
}

/// Of a system call: negative is an error.
fn check(result: impl Into<i64>) -> io::Result<()> {
    if result.into() < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
