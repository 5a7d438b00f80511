//! One process, named without doubt and held by a pidfd. Source: `pidfd_open(2)`, `pidfd_send_signal(2)`,
//! waitid(2).

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::libc;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{orphan, stat, wait};

/// Which process: a pid alone is used again, together with the start time it is not (within one boot).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessId {
    /// As the agent's pid namespace counts.
    pub pid: i32,
    /// Clock ticks between boot and its start: field 22 of `/proc/PID/stat`.
    pub start_time: u64,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} (started {})", self.pid, self.start_time)
    }
}

impl ProcessId {
    /// Of the process that has this pid now. `None`: none has it, or only a zombie.
    pub fn of(pid: i32) -> Result<Option<Self>, ProcessError> {
        let stat = stat::read(pid).map_err(|source| ProcessError {
            operation: "read the start time of",
            pid,
            source,
        })?;
        Ok(stat
            .filter(|stat| !matches!(stat.state, 'Z' | 'X'))
            .map(|stat| Self {
                pid,
                start_time: stat.start_time,
            }))
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// It was no child of ours (after a restart of the agent), so the kernel told its status to somebody else.
    Unknown,
}

/// A process operation that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("{operation} process {pid}")]
pub struct ProcessError {
    operation: &'static str,
    pid: i32,
    source: io::Error,
}

/// A process that is held: its pid cannot be used again unseen, and as long as this lives the reaper of orphans leaves its
/// status to [`Process::ended`].
#[derive(Debug)]
pub struct Process {
    id: ProcessId,
    fd: AsyncFd<OwnedFd>,
    // Dropped after the descriptor.
    _claim: Claim,
}

impl Process {
    /// Holds the process `id`. `None`: it has ended (or the pid belongs to another one now).
    ///
    /// Must be called on the runtime, which watches the descriptor.
    pub fn open(id: ProcessId) -> Result<Option<Self>, ProcessError> {
        let claim = Claim::new(id.pid);
        let fd = match pidfd_open(id.pid) {
            Ok(fd) => fd,
            // EINVAL: the pid is a thread that leads no group, so never the process that we mean.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL)) => {
                return Ok(None);
            }
            Err(source) => {
                return Err(ProcessError {
                    operation: "open",
                    pid: id.pid,
                    source,
                });
            }
        };
        // The descriptor is held, so the pid cannot change its owner between this check and any later use.
        if ProcessId::of(id.pid)? != Some(id) {
            return Ok(None);
        }
        let fd = register(fd).map_err(|(_, source)| ProcessError {
            operation: "watch",
            pid: id.pid,
            source,
        })?;
        Ok(Some(Self {
            id,
            fd,
            _claim: claim,
        }))
    }

    /// Holds a child that was just started by [`super::spawn`]; it may have ended already. One that cannot be held is killed.
    pub(super) fn child(pid: i32, fd: OwnedFd, claim: Claim) -> Result<Self, ProcessError> {
        let kill = |fd: &OwnedFd, operation, source| {
            // Best effort: the first error is the one to tell.
            send(fd, Signal::SIGKILL).ok();
            ProcessError {
                operation,
                pid,
                source,
            }
        };
        let found = stat::read(pid).map_err(|error| kill(&fd, "read the start time of", error))?;
        let start_time = found.map_or(0, |stat| stat.start_time);
        let fd = register(fd).map_err(|(fd, error)| kill(&fd, "watch", error))?;
        Ok(Self {
            id: ProcessId { pid, start_time },
            fd,
            _claim: claim,
        })
    }

    /// Which process this is.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Waits for its end and takes its status. Cancel safe: nothing is taken before the end.
    ///
    /// A second call says [`Exit::Unknown`], since the kernel tells a status once.
    pub async fn ended(&self) -> Result<Exit, ProcessError> {
        let failed = |source: io::Error| ProcessError {
            operation: "wait for",
            pid: self.id.pid,
            source,
        };
        loop {
            // A pidfd becomes readable, and stays so, when its process has ended.
            let mut ready = self.fd.readable().await.map_err(failed)?;
            match wait::take(self.fd.get_ref()).map_err(failed)? {
                Some(exit) => return Ok(exit),
                None => ready.clear_ready(),
            }
        }
    }

    /// Waits for its end and leaves its status to whoever asks for it. Cancel safe.
    pub async fn gone(&self) -> Result<(), ProcessError> {
        match self.fd.readable().await {
            // The guard is dropped without clearing: it stays readable.
            Ok(_) => Ok(()),
            Err(source) => Err(ProcessError {
                operation: "wait for",
                pid: self.id.pid,
                source,
            }),
        }
    }

    /// Sends a signal. `false`: it had ended.
    pub fn signal(&self, signal: Signal) -> Result<bool, ProcessError> {
        match send(self.fd.get_ref(), signal) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(source) => Err(ProcessError {
                operation: "signal",
                pid: self.id.pid,
                source,
            }),
        }
    }
}

/// Has the runtime watch a pidfd, or gives it back.
fn register(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>, (OwnedFd, io::Error)> {
    // SAFETY: an `OwnedFd` gives the same descriptor as long as it lives, and only it closes it.
    let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    registered.map_err(tokio::io::unix::AsyncFdRegisterError::into_parts)
}

fn send(fd: &OwnedFd, signal: Signal) -> io::Result<()> {
    // SAFETY: the descriptor is open, `info` may be null and `flags` must be 0 (pidfd_send_signal(2)).
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            fd.as_raw_fd(),
            signal as libc::c_int,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if sent == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A pidfd of `pid`, closed on exec.
pub(super) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes two integers, returns a new descriptor or -1 (pidfd_open(2)).
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Pids whose status somebody here will take, with the number of those who hold them.
static CLAIMED: Mutex<BTreeMap<i32, usize>> = Mutex::new(BTreeMap::new());

/// The table, locked. While it is, no orphan is reaped: a child is started and claimed under one lock, so that its status is
/// never taken in between.
pub(super) fn claimed() -> MutexGuard<'static, BTreeMap<i32, usize>> {
    // The map is consistent at every instruction: a panic elsewhere does not spoil it.
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As long as it lives the status of the pid is left to its holder.
#[derive(Debug)]
pub(super) struct Claim(i32);

impl Claim {
    pub(super) fn new(pid: i32) -> Self {
        Self::within(&mut claimed(), pid)
    }

    pub(super) fn within(claimed: &mut BTreeMap<i32, usize>, pid: i32) -> Self {
        *claimed.entry(pid).or_insert(0) += 1;
        Self(pid)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = claimed();
        if let Some(holders) = claimed.get_mut(&self.0) {
            *holders -= 1;
            if *holders == 0 {
                claimed.remove(&self.0);
                // If it has ended, or does so now, its status is nobody's: SIGCHLD may have come long ago.
                orphan::wake();
            }
        }
    }
}
