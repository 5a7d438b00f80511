//! PID 1 of the namespaces in which all sessions live: makes their processes, signals them, reaps them and every orphan.
//! The guest sees it and, having root, may end it; it holds nothing that would give the guest more than that.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cloche_proto::frame::SignalScope;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::CloneFlags;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, chdir, dup2_stderr, dup2_stdin, dup2_stdout};

use crate::core::Serial;
use crate::launch::{Container, Kit, become_command, give_up};
use crate::letter;
use crate::root;
use crate::sys::{process, socket};
use crate::wire::{self, Notice, Order};

/// Something that keeps the spawner from its work; it ends, and the holder tells.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct SpawnerError {
    what: &'static str,
    source: Errno,
}

fn because(what: &'static str) -> impl FnOnce(Errno) -> SpawnerError {
    move |source| SpawnerError { what, source }
}

/// Runs until the holder is gone.
pub fn run(holder: &OwnedFd, container: Container) -> Result<(), SpawnerError> {
    enter_namespaces()?;
    be_ready(holder)?;

    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    let children = SignalFd::with_flags(&children, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(because("watching children"))?;
    let mut spawner = Spawner {
        holder,
        container,
        sessions: BTreeMap::new(),
        root_fault: None,
    };
    loop {
        let mut fds = [
            PollFd::new(holder.as_fd(), PollFlags::POLLIN),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(because("waiting")(error)),
        }
        let [order, _] = fds.map(|fd| fd.any().unwrap_or(true));
        // Reaped on every round, whatever the poll said: draining the signal is the event, not the reason to look.
        while let Ok(Some(_)) = children.read_signal() {}
        spawner.reap()?;
        if order && !spawner.obey()? {
            return Ok(());
        }
    }
}

/// Leaves nothing of the holder's in sight: its /proc is unmounted before that of the new namespace is mounted, and its
/// standard streams, which are the channel, make way for /dev/null. That comes last, so that an error is still told.
fn enter_namespaces() -> Result<(), SpawnerError> {
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .map_err(because("making its mounts private"))?;
    umount2("/proc", MntFlags::MNT_DETACH).map_err(because("unmounting the holder's /proc"))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>)
        .map_err(because("mounting /proc"))?;
    chdir("/").map_err(because("entering /"))?;
    let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC;
    let null = open("/dev/null", flags, Mode::empty()).map_err(because("opening /dev/null"))?;
    dup2_stdin(&null)
        .and_then(|()| dup2_stdout(&null))
        .and_then(|()| dup2_stderr(&null))
        .map_err(because("letting go of the channel"))
}

/// Tells the holder, and gives it the devpts that sessions see, which is kept open here no longer.
fn be_ready(holder: &OwnedFd) -> Result<(), SpawnerError> {
    let terminals = open(
        "/dev/pts",
        OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    );
    let terminals: Vec<BorrowedFd<'_>> = terminals.iter().map(AsFd::as_fd).collect();
    socket::send(holder.as_fd(), &Notice::Ready.encode(), &terminals)
        .map_err(because("telling the holder"))
}

struct Spawner<'a> {
    holder: &'a OwnedFd,
    container: Container,
    sessions: BTreeMap<i32, Serial>,
    /// The root was to be read-only and is not: nothing may run.
    root_fault: Option<root::Fault>,
}

impl Spawner<'_> {
    fn tell(&self, notice: Notice) -> Result<(), SpawnerError> {
        // May wait: the holder always reads.
        socket::send(self.holder.as_fd(), &notice.encode(), &[])
            .map_err(because("telling the holder"))
    }

    fn reap(&mut self) -> Result<(), SpawnerError> {
        loop {
            let (pid, status) = match process::reap() {
                Ok(Some(process::Change::Ended(pid, status))) => (pid, status),
                Ok(Some(process::Change::Stopped(_))) | Err(Errno::EINTR) => continue,
                Ok(None) => return Ok(()),
                Err(error) => return Err(because("reaping")(error)),
            };
            if let Some(serial) = self.sessions.remove(&pid.as_raw()) {
                self.tell(Notice::Exited(serial, status))?;
            }
        }
    }

    /// One order; false when the holder is gone.
    fn obey(&mut self) -> Result<bool, SpawnerError> {
        let mut bytes = [0; wire::LENGTH];
        let (length, fds) =
            socket::receive(self.holder.as_fd(), &mut bytes).map_err(because("taking orders"))?;
        if length == 0 {
            return Ok(false);
        }
        match Order::decode(&bytes[..length]) {
            Some(Order::Spawn(serial)) => self.spawn(serial, fds)?,
            Some(Order::Signal(serial, signal, scope)) => self.signal(serial, signal, scope),
            Some(Order::ReadOnlyRoot) => self.make_root_read_only(fds)?,
            None => {}
        }
        Ok(true)
    }

    fn make_root_read_only(&mut self, fds: Vec<OwnedFd>) -> Result<(), SpawnerError> {
        let letter = fds.into_iter().next().and_then(letter::read);
        let unreadable = root::Fault {
            source: Errno::EBADMSG,
            path: None,
        };
        let done = letter
            .ok_or(unreadable)
            .and_then(|told| root::make_read_only(&told));
        self.root_fault = done.err();
        let path = |fault: &root::Fault| fault.path.and_then(|path| path.try_into().ok());
        self.tell(match &done {
            Ok(()) => Notice::RootDone(0, -1),
            Err(fault) => Notice::RootDone(fault.source as i32, path(fault).unwrap_or(-1)),
        })
    }

    fn spawn(&mut self, serial: Serial, fds: Vec<OwnedFd>) -> Result<(), SpawnerError> {
        let mut fds = fds.into_iter();
        if let Some(fault) = &self.root_fault {
            return self.tell(Notice::NotSpawned(serial, fault.source as i32));
        }
        let (Some(status), Some(spec), Some(group)) = (fds.next(), fds.next(), fds.next()) else {
            return self.tell(Notice::NotSpawned(serial, Errno::EBADF as i32));
        };
        match process::fork(CloneFlags::empty()) {
            Ok(process::Side::Child) => {
                let kit = Kit {
                    spec,
                    group,
                    stdio: fds.collect(),
                    container: self.container,
                };
                give_up(&become_command(kit), status.as_fd())
            }
            Ok(process::Side::Parent(pid)) => {
                self.sessions.insert(pid.as_raw(), serial);
                self.tell(Notice::Spawned(serial, pid.as_raw()))
            }
            Err(error) => self.tell(Notice::NotSpawned(serial, error as i32)),
        }
    }

    /// The process is not reaped yet, or it would not be in the table: its pid is still its own.
    fn signal(&self, serial: Serial, signal: i32, scope: SignalScope) {
        let Some(pid) = self
            .sessions
            .iter()
            .find_map(|(pid, known)| (*known == serial).then_some(*pid))
        else {
            return;
        };
        let target = match scope {
            // Being the leader of its session, it is that of a process group too.
            SignalScope::Foreground => -pid,
            SignalScope::Leader | SignalScope::Tree | SignalScope::Unspecified => pid,
        };
        // It may have ended meanwhile, which its notice tells.
        let _sent = process::kill(Pid::from_raw(target), signal).is_ok();
    }
}
