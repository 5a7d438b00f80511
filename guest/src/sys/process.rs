//! Making, signalling and ending processes.

use nix::errno::Errno;
use nix::libc;
use nix::sched::CloneFlags;
use nix::unistd::Pid;

/// Which side of [`fork`] this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The new process.
    Child,
    /// The old one, and the new one's pid.
    Parent(Pid),
}

/// fork(2), into new namespaces where `namespaces` names some (clone(2) with `CLONE_NEW*` alone).
pub(crate) fn fork(namespaces: CloneFlags) -> nix::Result<Side> {
    let allowed = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS;
    let flags = libc::c_long::from((namespaces & allowed).bits() | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and with no stack given this is fork(2): the child gets its own copy of everything. This
    // program has one thread, so no lock is held by another and the child may do what the parent may. The C library's
    // cached state that plain fork(2) would renew (its list of threads, its own pid) is not used by either side.
    let result = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    let pid = Errno::result(result)?;
    let pid = libc::pid_t::try_from(pid).map_err(|_| Errno::ERANGE)?;
    Ok(if pid == 0 {
        Side::Child
    } else {
        Side::Parent(Pid::from_raw(pid))
    })
}

/// Ends this process at once, running nothing of what was registered to run at the end.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: _exit(2) does not return and touches no memory.
    unsafe { libc::_exit(code) }
}

/// kill(2) with any signal number, the real-time ones too, which [`Signal`] does not have.
pub(crate) fn kill(pid: Pid, signal: i32) -> nix::Result<()> {
    // SAFETY: kill(2) takes numbers alone.
    Errno::result(unsafe { libc::kill(pid.as_raw(), signal) }).map(drop)
}

/// A change of a child that waitpid(2) told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It ended with this status of wait(2) and is gone.
    Ended(Pid, i32),
    /// It was stopped.
    Stopped(Pid),
}

/// The next change of any child, if there is one now. Not nix's: that one fails where a real-time signal ended the child, and
/// every guest may do that.
pub(crate) fn reap() -> nix::Result<Option<Change>> {
    let mut status = 0;
    let options = libc::WNOHANG | libc::WUNTRACED;
    // SAFETY: the pointer is to a live int for the time of the call.
    let result = unsafe { libc::waitpid(-1, &raw mut status, options) };
    match Errno::result(result) {
        Ok(0) | Err(Errno::ECHILD) => Ok(None),
        Ok(pid) if libc::WIFSTOPPED(status) => Ok(Some(Change::Stopped(Pid::from_raw(pid)))),
        Ok(pid) => Ok(Some(Change::Ended(Pid::from_raw(pid), status))),
        Err(error) => Err(error),
    }
}

fn set_mask(mask: u64) -> nix::Result<()> {
    let how = libc::SIG_SETMASK;
    let none: *mut u64 = std::ptr::null_mut();
    // SAFETY: the kernel reads one live mask of the size given. Not by the C library, which leaves out two signals that it
    // keeps for its threads; we have none, and a guest could send them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            &raw const mask,
            none,
            size_of::<u64>(),
        )
    };
    Errno::result(result).map(drop)
}

/// The kernel's own `struct sigaction` on x86-64.
#[repr(C)]
struct Disposition {
    handler: libc::sighandler_t,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// Blocks every signal that can be blocked: they wait for ever, and SIGCHLD is read from a signalfd. Not by ignoring them:
/// that would be inherited by every command, to be undone signal by signal. What was ignored from the start (Rust's own
/// start-up does so with SIGPIPE) is undone here, once for all commands.
pub(crate) fn block_signals() -> nix::Result<()> {
    set_mask(u64::MAX)?;
    let default = Disposition {
        handler: libc::SIG_DFL,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    let none: *mut Disposition = std::ptr::null_mut();
    for signal in 1..=64 {
        // SAFETY: the kernel reads one live structure of the layout that it asks for. No function of ours is installed.
        // SIGKILL and SIGSTOP are refused, which is all that can go wrong.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const default,
                none,
                size_of::<u64>(),
            )
        };
    }
    Ok(())
}

/// Blocks nothing any more; every signal does what it does by default, by [`block_signals`].
pub(crate) fn unblock_signals() -> nix::Result<()> {
    set_mask(0)
}

/// Closes every file descriptor but the standard streams: whatever was left open to this program is not for the sessions. To be
/// called before the first is opened.
pub(crate) fn close_inherited() -> nix::Result<()> {
    // SAFETY: nothing in this program owns a file descriptor yet beyond the standard streams.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    Errno::result(result).map(drop)
}

/// setrlimit(2) by number, since a limit comes from the wire.
pub(crate) fn set_limit(resource: u32, soft: u64, hard: u64) -> nix::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: the pointer is to a live value for the time of the call; unknown numbers are refused.
    Errno::result(unsafe { libc::setrlimit(resource, &raw const limit) }).map(drop)
}
