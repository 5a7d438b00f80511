//! Setting up the holder, in an order that leaves the guest no sight of it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket, socketpair,
};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, chown, mkdir};

use super::channel::Channel;
use super::{BLOCK, Holder, Root, Spawner};
use crate::bridge;
use crate::clock::RunningTime;
use crate::core::Core;
use crate::group::Groups;
use crate::launch::Container;
use crate::spawner;
use crate::sys::{capability, process};

/// Something without which sessions cannot be held.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct HolderError {
    what: String,
    source: Errno,
}

impl HolderError {
    pub(super) fn new(what: impl Into<String>, source: Errno) -> Self {
        Self {
            what: what.into(),
            source,
        }
    }
}

fn because(what: impl Into<String>) -> impl FnOnce(Errno) -> HolderError {
    move |source| HolderError::new(what, source)
}

/// Open files that [`cloche_proto::frame::MAX_SESSIONS`] sessions and some orders under way need.
const FILES: u64 = 4096;
/// What the holder and the spawner do with rights in force. Others that the container has are only handed on to sessions.
const IN_FORCE: u64 = 1 << 0 // CHOWN
    | 1 << 1 // DAC_OVERRIDE
    | 1 << 3 // FOWNER
    | 1 << 5 // KILL
    | 1 << 6 // SETGID
    | 1 << 7 // SETUID
    | 1 << 8 // SETPCAP
    | 1 << 21 // SYS_ADMIN
    | 1 << 24; // SYS_RESOURCE

/// Becomes the holder, with `directory` (of the init's own image, empty) as the place that only it sees. Does not return but for
/// an error, or in the spawner at its end.
pub fn run(directory: &str) -> Result<(), HolderError> {
    process::close_inherited().map_err(because("closing inherited files"))?;
    prctl::set_dumpable(false).map_err(because("hiding its memory"))?;
    process::block_signals().map_err(because("blocking signals"))?;
    umask(Mode::from_bits_truncate(0o022));
    let container = Container {
        files: raise_files()?,
        bounding: capability::bounding(),
    };
    let mut sets = capability::get().map_err(because("reading its capabilities"))?;
    sets.effective = sets.permitted & IN_FORCE;
    capability::set(sets).map_err(because("limiting its capabilities"))?;

    let (ours, theirs) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .map_err(because("making the spawner's socket"))?;
    // Before anything is mounted or opened that it is not to see.
    let namespaces = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS;
    let pid = match process::fork(namespaces).map_err(because("making the spawner"))? {
        process::Side::Child => {
            drop(ours);
            return spawner::run(&theirs, container)
                .map_err(|error| HolderError::new(error.to_string(), Errno::UnknownErrno));
        }
        process::Side::Parent(pid) => pid,
    };
    drop(theirs);
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
        .map_err(because("making the spawner's socket"))?;

    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .map_err(because("making its mounts private"))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(
        Some("tmpfs"),
        directory,
        Some("tmpfs"),
        flags,
        Some("mode=0711,size=64k"),
    )
    .map_err(because(format!("mounting {directory}")))?;
    let groups = format!("{directory}/groups");
    mkdir(groups.as_str(), Mode::S_IRWXU).map_err(because(format!("making {groups}")))?;
    let groups = Groups::mount(&groups)
        .map_err(because(format!("mounting a cgroup hierarchy at {groups}")))?;
    let listener = listen_for_bridges(directory)?;

    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    let children = SignalFd::with_flags(&children, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(because("watching children"))?;
    Holder {
        core: Core::default(),
        time: RunningTime::default(),
        now: 0,
        channel: Channel::donated(),
        groups,
        children,
        checkpoint: open_checkpoint(),
        listener,
        visitor: None,
        spawner: Spawner {
            pid,
            socket: Some(ours),
            ready: false,
            terminals: None,
            orders: VecDeque::new(),
        },
        streams: BTreeMap::new(),
        killing: BTreeMap::new(),
        hostname: None,
        root: Root::default(),
        fault: None,
        cursor: 0,
        scratch: vec![0; BLOCK],
    }
    .run()
}

/// Raises `RLIMIT_NOFILE` for this process as far as it goes, and tells what it was.
///
/// Again after each bridge: gVisor gives all processes that it starts itself one set of limits, so an exec by the control socket
/// puts the root container's in the place of ours (seen).
pub(super) fn raise_files() -> Result<(u64, u64), HolderError> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(because("reading its limits"))?;
    let resource = nix::libc::RLIMIT_NOFILE;
    if soft < FILES {
        // Else fewer sessions fit, and those that do not are refused.
        let _raised = process::set_limit(resource, FILES, hard.max(FILES))
            .or_else(|_| process::set_limit(resource, hard.min(FILES), hard))
            .is_ok();
    }
    Ok((soft, hard))
}

/// Only the bridge's user may connect, and only this mount namespace shows the socket.
fn listen_for_bridges(directory: &str) -> Result<OwnedFd, HolderError> {
    let path = format!("{directory}/{}", bridge::SOCKET);
    let listening = || {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        bind(
            std::os::fd::AsRawFd::as_raw_fd(&listener),
            &UnixAddr::new(path.as_str())?,
        )?;
        let user = cloche_proto::frame::BRIDGE_USER;
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
        chown(path.as_str(), Some(uid), Some(gid))?;
        listen(&listener, Backlog::new(4)?)?;
        Ok(listener)
    };
    listening().map_err(because(format!("listening at {path}")))
}

/// gVisor's file that tells of the next capture: readable once it is over, and then saying on which side of it this is. Elsewhere
/// there is none.
pub(super) fn open_checkpoint() -> Option<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    open("/proc/gvisor/checkpoint", flags, Mode::empty())
        .ok()
        .map(File::from)
}
