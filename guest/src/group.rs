//! Which processes came from which session: one cgroup per session, in a hierarchy that only the holder's mount namespace
//! shows. A child is in its parent's group whatever it does (setsid, double fork, another user), and `pids.max` 0 stops a tree
//! from growing while it is killed (docs/adr/0003).

use std::io::Read;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{Pid, UnlinkatFlags, unlinkat, write};

use crate::core::Serial;
use crate::sys::process;

/// The most bytes read of a member list: some 4000 processes. The rest is met in the next round.
const MAX_MEMBERS: u64 = 32 * 1024;
const MEMBERS: &str = "cgroup.procs";

/// The hierarchy.
#[derive(Debug)]
pub struct Groups {
    root: OwnedFd,
    /// Groups of forgotten sessions in which something still ran when they were last looked at.
    left: Vec<Serial>,
}

impl Groups {
    /// Mounts the hierarchy at `path`, in this process's own mount namespace. gVisor has the pids controller of version 1; a
    /// machine of today may have version 2 alone.
    pub fn mount(path: &str) -> nix::Result<Self> {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("cgroup"), path, Some("cgroup"), flags, Some("pids"))
            .or_else(|_| mount(Some("cgroup"), path, Some("cgroup2"), flags, None::<&str>))?;
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = nix::fcntl::open(path, flags, Mode::empty())?;
        Ok(Self {
            root,
            left: Vec::new(),
        })
    }

    fn name(serial: Serial) -> String {
        format!("s{serial}")
    }

    fn open(&self, serial: Serial, file: &str, flags: OFlag) -> nix::Result<OwnedFd> {
        let path = format!("{}/{file}", Self::name(serial));
        openat(
            &self.root,
            path.as_str(),
            flags | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
    }

    /// Makes the group of a new session and opens its member list, for [`join`].
    pub fn create(&mut self, serial: Serial) -> nix::Result<OwnedFd> {
        self.prune();
        let name = Self::name(serial);
        mkdirat(&self.root, name.as_str(), Mode::from_bits_truncate(0o755))?;
        self.open(serial, MEMBERS, OFlag::O_WRONLY)
    }

    /// Lets go of a session's group. What still runs in it goes on.
    pub fn release(&mut self, serial: Serial) {
        self.left.push(serial);
        self.prune();
    }

    fn prune(&mut self) {
        let root = &self.root;
        self.left.retain(|serial| {
            let removed = unlinkat(root, Self::name(*serial).as_str(), UnlinkatFlags::RemoveDir);
            matches!(removed, Err(error) if error != Errno::ENOENT)
        });
    }

    /// The members of a session's group, as pids of the holder's namespace.
    pub fn members(&self, serial: Serial) -> Vec<Pid> {
        let mut text = String::new();
        if let Ok(file) = self.open(serial, MEMBERS, OFlag::O_RDONLY) {
            // Cut off within a line or unreadable: the next round sees the rest.
            if std::fs::File::from(file)
                .take(MAX_MEMBERS)
                .read_to_string(&mut text)
                .is_err()
            {
                text.clear();
            }
            if text.len() as u64 == MAX_MEMBERS {
                text.truncate(text.rfind('\n').unwrap_or(0));
            }
        }
        text.lines()
            .filter_map(|line| line.parse().ok())
            // 0 is a process outside of our pid namespace, and 1 would be ourselves.
            .filter(|pid| *pid > 1)
            .map(Pid::from_raw)
            .collect()
    }

    /// Signals every member; tells whether there was one.
    pub fn signal(&self, serial: Serial, signal: i32) -> bool {
        let members = self.members(serial);
        for pid in &members {
            // It may have ended since.
            let _sent = process::kill(*pid, signal).is_ok();
        }
        !members.is_empty()
    }

    /// Kills every member and lets them make no more; tells whether one was left. To be called until none is.
    pub fn kill(&self, serial: Serial) -> bool {
        // Version 2 without its pids controller has no limit to set; a tree may then grow while it is killed, which more
        // rounds make up for.
        let _limited = self
            .open(serial, "pids.max", OFlag::O_WRONLY)
            .is_ok_and(|limit| write(&limit, b"0").is_ok());
        // Stopped first: else a shell whose child was killed a moment before itself ends with a code of its own choice.
        self.signal(serial, nix::libc::SIGSTOP) && self.signal(serial, nix::libc::SIGKILL)
    }
}

/// Moves the calling process into the group whose member list this is.
pub fn join(members: BorrowedFd<'_>) -> nix::Result<()> {
    write(members, b"0").map(drop)
}
