//! From a fresh child of the spawner to the session's command, or a [`Failure`] that says exactly why not.
//!
//! The order matters. All that needs memory or files is read before limits are set; all that needs rights (the groups, the
//! limits, a missing working directory, the bounding set) is done before they are dropped; the working directory is entered
//! and the program looked for with the rights that the command will have, so that it cannot reach through us what it could
//! not reach itself.

mod program;
mod user;

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cloche_proto::frame::{ExitCause, SessionSpec};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::prctl;
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmodat, fstat, umask};
use nix::unistd::{
    AccessFlags, Gid, Uid, access, chdir, dup2_stderr, dup2_stdin, dup2_stdout, execve, fchown,
    setgroups, setresgid, setresuid, setsid, write,
};

pub use program::Program;
pub use user::{Identity, resolve};

use crate::core::Failure;
use crate::directory;
use crate::group;
use crate::letter;
use crate::sys::{capability, process, terminal};

/// `CAP_NET_RAW`: with it a guest sends packets under any address, so no session has it.
const NET_RAW: u64 = 1 << 13;

/// What a child is given, besides what it inherits.
#[derive(Debug)]
pub struct Kit {
    /// The encoded [`SessionSpec`].
    pub spec: OwnedFd,
    /// The member list of the session's process group of the kernel's (a cgroup).
    pub group: OwnedFd,
    /// stdin, stdout and stderr; a terminal is given once.
    pub stdio: Vec<OwnedFd>,
    /// What it is given by the container.
    pub container: Container,
}

/// What the container's specification gave, and every session starts from.
#[derive(Clone, Copy, Debug)]
pub struct Container {
    /// `RLIMIT_NOFILE`, soft and hard, which the holder raises for itself.
    pub files: (u64, u64),
    /// The bounding set of capabilities. Read once: asking for it is a call per capability.
    pub bounding: u64,
}

/// Becomes the session's command. Returns only when that failed.
pub fn become_command(kit: Kit) -> Failure {
    match launch(kit) {
        Ok(never) => match never {},
        Err(failure) => failure,
    }
}

fn launch(kit: Kit) -> Result<std::convert::Infallible, Failure> {
    setsid().map_err(|error| failed("setsid", error))?;
    group::join(kit.group.as_fd()).map_err(|error| failed("joining its group", error))?;
    drop(kit.group);
    process::unblock_signals().map_err(|error| failed("unblocking signals", error))?;
    let unreadable = || Failure::new(ExitCause::SetupFailed, "its specification is unreadable");
    let spec: SessionSpec = letter::read(kit.spec).ok_or_else(unreadable)?;
    let identity = resolve(
        &spec.user,
        &spec.extra_groups,
        &read_bounded("/etc/passwd"),
        &read_bounded("/etc/group"),
    )?;
    let program = program::prepare(&spec, &identity.home)?;

    adopt_streams(&kit.stdio, &spec, &identity)?;
    drop(kit.stdio);
    umask(Mode::from_bits_truncate(0o022));
    if spec.create_cwd {
        make_directory(&spec.cwd, &identity)?;
    }
    set_limits(&spec, kit.container.files)?;
    drop_rights(&spec, &identity, kit.container.bounding)?;
    enter(&spec.cwd)?;
    if spec.no_new_privileges {
        prctl::set_no_new_privs().map_err(|error| failed("no_new_privs", error))?;
    }
    Err(execute(program))
}

fn failed(what: &str, error: Errno) -> Failure {
    let cause = match error {
        Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE => ExitCause::NoResources,
        _ => ExitCause::SetupFailed,
    };
    Failure::new(cause, format!("{what}: {}", error.desc().to_lowercase()))
}

/// A file of the guest's, or nothing: whatever lies there instead of a regular file is not waited for.
fn read_bounded(path: &str) -> Vec<u8> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let mut bytes = Vec::new();
    if let Ok(file) = open(path, flags, Mode::empty())
        && let Ok(stat) = fstat(&file)
        && SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG
        && std::fs::File::from(file)
            .take(user::MAX_FILE as u64)
            .read_to_end(&mut bytes)
            .is_err()
    {
        bytes.clear();
    }
    bytes
}

fn adopt_streams(
    given: &[OwnedFd],
    spec: &SessionSpec,
    identity: &Identity,
) -> Result<(), Failure> {
    let what = "its streams";
    let own = |fd: BorrowedFd<'_>, group| {
        let uid = Some(Uid::from_raw(identity.uid));
        fchown(fd, uid, group).map_err(|error| failed(what, error))
    };
    let (stdin, stdout, stderr) = match given {
        [tty] if spec.terminal.is_some() => {
            own(tty.as_fd(), None)?;
            terminal::control(tty.as_fd()).map_err(|error| failed("its terminal", error))?;
            (Some(tty), tty, tty)
        }
        [stdin, stdout, stderr] => (Some(stdin), stdout, stderr),
        // Without a stdin the spawner's, which is /dev/null, stays.
        [stdout, stderr] => (None, stdout, stderr),
        _ => return Err(failed(what, Errno::EBADF)),
    };
    if spec.terminal.is_none() {
        let group = Some(Gid::from_raw(identity.gid));
        for fd in [stdin, Some(stdout), Some(stderr)].into_iter().flatten() {
            own(fd.as_fd(), group)?;
        }
    }
    if let Some(stdin) = stdin {
        dup2_stdin(stdin).map_err(|error| failed(what, error))?;
    }
    dup2_stdout(stdout)
        .and_then(|()| dup2_stderr(stderr))
        .map_err(|error| failed(what, error))
}

fn bad_directory(path: &[u8], why: &str) -> Failure {
    let path = String::from_utf8_lossy(path).into_owned();
    Failure::new(
        ExitCause::BadDirectory,
        format!("working directory {path}: {why}"),
    )
}

/// Makes what is missing of `path`, owned by the user.
fn make_directory(path: &[u8], identity: &Identity) -> Result<(), Failure> {
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    directory::make(path, |made| fchown(made, Some(uid), Some(gid))).map_err(|error| {
        let why = match error {
            Errno::EINVAL => "not an absolute path".to_owned(),
            error => error.desc().to_lowercase(),
        };
        bad_directory(path, &why)
    })
}

fn set_limits(spec: &SessionSpec, files: (u64, u64)) -> Result<(), Failure> {
    const FILES: u32 = nix::libc::RLIMIT_NOFILE;
    let inherited = (FILES, files.0, files.1);
    let own = spec
        .rlimits
        .iter()
        .map(|limit| (limit.resource, limit.soft, limit.hard));
    let inherited = Some(inherited).filter(|_| !spec.rlimits.iter().any(|l| l.resource == FILES));
    for (resource, soft, hard) in own.chain(inherited) {
        process::set_limit(resource, soft, hard).map_err(|error| {
            failed(
                &format!("resource limit {resource} to {soft}:{hard}"),
                error,
            )
        })?;
    }
    Ok(())
}

fn drop_rights(spec: &SessionSpec, identity: &Identity, bounding: u64) -> Result<(), Failure> {
    let wanted = spec.capabilities & !NET_RAW;
    // Exactly those or none: the kernel would leave out silently what it does not know.
    if wanted & !bounding != 0 {
        return Err(Failure::new(
            ExitCause::SetupFailed,
            format!(
                "capabilities {:#x} are not the container's to give",
                wanted & !bounding
            ),
        ));
    }
    let groups: Vec<Gid> = identity.groups.iter().copied().map(Gid::from_raw).collect();
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    setgroups(&groups).map_err(|error| failed("its groups", error))?;
    capability::clear_ambient().map_err(|error| failed("its ambient capabilities", error))?;
    capability::unbound(bounding & !wanted)
        .map_err(|error| failed("its bounding capabilities", error))?;
    setresgid(gid, gid, gid).map_err(|error| failed("its group", error))?;
    setresuid(uid, uid, uid).map_err(|error| failed("its user", error))?;
    // Also before execve, which gives root the bounding set: with no_new_privs it gives nothing that is not permitted yet.
    let set = if uid.is_root() { wanted } else { 0 };
    let sets = capability::Sets {
        effective: set,
        permitted: set,
        inheritable: set,
    };
    capability::set(sets).map_err(|error| failed("its capabilities", error))
}

fn enter(path: &[u8]) -> Result<(), Failure> {
    let path = if path.is_empty() { b"/" } else { path };
    if !path.starts_with(b"/") {
        return Err(bad_directory(path, "not an absolute path"));
    }
    chdir(path).map_err(|error| bad_directory(path, &error.desc().to_lowercase()))
}

fn execute(mut program: Program) -> Failure {
    let mut worst = None;
    let mut exists = false;
    for candidate in &program.candidates {
        if program.is_shell
            && let Some(name) = program.argv.first_mut()
        {
            name.clone_from(candidate);
        }
        let Err(error) = execve(candidate, &program.argv, &program.env);
        worst = Some(program::weightier(worst, error));
        if !program::goes_on(error) {
            break;
        }
        exists |= access(candidate.as_c_str(), AccessFlags::F_OK).is_ok();
    }
    program::refusal(&program.name, worst, exists)
}

/// Says on `status` why the command did not start, and ends.
pub fn give_up(failure: &Failure, status: BorrowedFd<'_>) -> ! {
    let mut record = vec![u8::try_from(failure.cause as i32).unwrap_or(u8::MAX)];
    record.extend_from_slice(failure.message.as_bytes());
    // Written whole or not at all, being shorter than a pipe; without it the holder takes the exit code for the command's.
    let told = write(status, &record).is_ok();
    process::exit(if told { failure.code() } else { 126 })
}

/// The record of [`give_up`]; no bytes mean that the command runs.
pub fn read_record(record: &[u8]) -> Option<Failure> {
    let (cause, message) = record.split_first()?;
    let cause = ExitCause::try_from(i32::from(*cause)).unwrap_or(ExitCause::SetupFailed);
    Some(Failure::new(cause, String::from_utf8_lossy(message)))
}

/// The mode that a terminal has while it is somebody's: its owner reads and writes, its group (tty) writes.
pub fn prepare_terminal(directory: BorrowedFd<'_>, name: &str) -> nix::Result<()> {
    let mode = Mode::from_bits_truncate(0o620);
    fchmodat(directory, name, mode, FchmodatFlags::FollowSymlink)
}
