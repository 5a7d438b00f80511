//! `waitid(2)`, told exactly.
//!
//! Not by nix: it has no name for real-time signals and answers EINVAL for a child that one of them ended, its status lost; a
//! reaper must not stop at that.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::libc;

use super::Exit;

/// Whose end is asked for.
#[derive(Clone, Copy)]
enum Whom {
    Any,
    Pid(i32),
    PidFd(i32),
}

/// A child that has ended, left as it is. `None`: none has, or there are no children.
pub(super) fn peek() -> io::Result<Option<i32>> {
    Ok(wait(Whom::Any, libc::WNOWAIT)?.and_then(|end| end.pid))
}

/// Takes the status of the child `pid`, if it has ended. `false`: it has not, or is no child of ours.
pub(super) fn reap(pid: i32) -> io::Result<bool> {
    Ok(wait(Whom::Pid(pid), 0)?.is_some_and(|end| end.pid.is_some()))
}

/// Takes the status of a process by its pidfd; it is told once. `None`: it lives.
pub(super) fn take(pidfd: impl AsFd) -> io::Result<Option<Exit>> {
    let whom = Whom::PidFd(pidfd.as_fd().as_raw_fd());
    Ok(wait(whom, 0)?.map(|end| end.exit))
}

struct End {
    /// `None`: no such child.
    pid: Option<i32>,
    exit: Exit,
}

/// `None`: lives.
fn wait(whom: Whom, more: libc::c_int) -> io::Result<Option<End>> {
    let (kind, id) = match whom {
        Whom::Any => (libc::P_ALL, 0),
        Whom::Pid(pid) => (libc::P_PID, pid),
        Whom::PidFd(fd) => (libc::P_PIDFD, fd),
    };
    let id = libc::id_t::try_from(id).map_err(io::Error::other)?;
    let options = libc::WEXITED | libc::WNOHANG | more;
    // SAFETY: `siginfo_t` is plain memory for which zero is valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: integers, and a struct on the stack.
    while unsafe { libc::waitid(kind, id, &raw mut info, options) } < 0 {
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ECHILD) => {
                return Ok(Some(End {
                    pid: None,
                    exit: Exit::Unknown,
                }));
            }
            Some(libc::EINTR) => {}
            _ => return Err(error),
        }
    }
    // SAFETY: after success these two hold what waitid(2) says; a pid of zero means that nothing has ended.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok((pid != 0).then_some(End {
        pid: Some(pid),
        exit: match info.si_code {
            libc::CLD_EXITED => Exit::Code(status),
            // Killed or dumped.
            _ => Exit::Signal(status),
        },
    }))
}
