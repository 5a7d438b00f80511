//! Child processes, and the signals that end xtask.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};

/// Set by one of [`ENDING`]: from then on nothing is started.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// What ends xtask, and with it what it has started.
const ENDING: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
];
/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// A child that leads a process group.
#[derive(Debug)]
pub(super) struct Leader {
    pub(super) child: Child,
    pub(super) pidfd: OwnedFd,
    group: Pid,
    reaped: bool,
}

impl Leader {
    pub(super) fn spawn(mut command: std::process::Command, line: &str) -> Result<Self> {
        if INTERRUPTED.load(Ordering::Relaxed) {
            bail!("{line}: not started, because xtask was interrupted");
        }
        let mut child = command.spawn().with_context(|| format!("start {line}"))?;
        let opened = i32::try_from(child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .ok_or_else(|| anyhow!("{line}: process id {} is no number", child.id()))
            .and_then(|pid| {
                let pidfd = pidfd_open(pid, PidfdFlags::empty())
                    .with_context(|| format!("{line}: open a pidfd"))?;
                Ok((pidfd, Pid::from_raw(pid.as_raw_nonzero().get())))
            });
        match opened {
            Ok((pidfd, group)) => Ok(Self {
                child,
                pidfd,
                group,
                reaped: false,
            }),
            Err(error) => {
                child.kill().with_context(|| format!("{line}: kill"))?;
                child.wait().with_context(|| format!("{line}: wait"))?;
                Err(error)
            }
        }
    }

    /// Signals the group, while the leader is not reaped.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        if self.reaped {
            return Ok(());
        }
        killpg(self.group, signal).with_context(|| format!("send {signal} to {}", self.group))
    }

    /// Ends the whole group: SIGTERM, a grace, SIGKILL.
    pub(super) fn end(&mut self) -> Result<()> {
        if self.reaped {
            return Ok(());
        }
        self.signal(Signal::SIGTERM)?;
        wait_readable(&[self.pidfd.as_fd()], GRACE)?;
        self.reap().map(drop)
    }

    /// Takes the status; what else is left of the group is killed first.
    pub(super) fn reap(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGKILL)?;
        let status = self.child.wait().context("wait for a child")?;
        self.reaped = true;
        Ok(status)
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("xtask: {error:#}");
        }
    }
}

/// SIGINT and SIGTERM, taken from a descriptor for as long as this lives.
pub(super) struct Signals {
    pub(super) fd: SignalFd,
    before: SigSet,
}

impl Signals {
    pub(super) fn block() -> Result<Self> {
        let before = SigSet::thread_get_mask().context("read the signal mask")?;
        let mut mask = SigSet::empty();
        for signal in ENDING {
            mask.add(signal);
        }
        mask.thread_block().context("block signals")?;
        let fd = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC).context("open a signalfd")?;
        Ok(Self { fd, before })
    }
}

impl Signals {
    /// Takes the signal, so that it does not end xtask before xtask has cleared away; nothing is started any more.
    pub(super) fn take(&self) -> Result<()> {
        INTERRUPTED.store(true, Ordering::Relaxed);
        self.fd.read_signal().context("read a signal")?;
        Ok(())
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        if let Err(error) = self.before.thread_set_mask() {
            eprintln!("xtask: restore the signal mask: {error}");
        }
    }
}

/// Which of `fds` can be read, or are at their end; all false when the time is over.
pub(super) fn wait_readable(fds: &[BorrowedFd<'_>], limit: Duration) -> Result<Vec<bool>> {
    let timeout = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    let mut polled: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error).context("poll"),
    }
    Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect())
}
