//! Giving up everything, before hostile bytes are read.

use std::io::Read;
use std::process;
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, chdir, chroot, mkdir, setgroups, setresgid, setresuid};

/// Owner of a confined process: above what distributions and Kubernetes hand out, the same on every node.
const NOBODY: u32 = 0x3fff_fff0;

/// Bounds of a confined process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Confinement {
    /// Address space in bytes.
    pub(crate) memory: u64,
    /// Processor time in seconds.
    pub(crate) cpu_seconds: u64,
    /// Largest file in bytes.
    pub(crate) file_size: u64,
}

/// A step of confinement that the kernel refused. Nothing hostile has been read; the process must end.
#[derive(Debug, thiserror::Error)]
#[error("confine the process: {step}: {errno}")]
pub(crate) struct ConfineError {
    step: &'static str,
    errno: nix::Error,
}

/// Leaves the process with its open files, one thread that ends it when stdin does, and nothing else: an empty read-only root
/// directory, no network, no capabilities, no ids of the host, no way to more privileges, no further processes.
///
/// Needs root and a process with one thread. Must not be followed by anything that opens files.
pub(crate) fn give_up_everything(bounds: &Confinement) -> Result<(), ConfineError> {
    let step = |step| move |errno| ConfineError { step, errno };

    unshare(
        CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUTS,
    )
    .map_err(step("new namespaces"))?;

    // An empty root. chroot *below* the mounted file system, so that the kernel counts this process as chrooted: it then
    // refuses it a user namespace of its own, the usual way back to capabilities (kernel/user_namespace.c, current_chrooted).
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(step("private mounts"))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(
        Some("none"),
        "/proc",
        Some("tmpfs"),
        flags,
        Some("size=4k,nr_inodes=4,mode=0555"),
    )
    .map_err(step("mount an empty root"))?;
    chdir("/proc").map_err(step("enter the empty root"))?;
    mkdir("root", nix::sys::stat::Mode::from_bits_truncate(0o555))
        .map_err(step("make the empty root"))?;
    mount(
        none,
        "/proc",
        none,
        flags | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY,
        none,
    )
    .map_err(step("make the empty root read-only"))?;
    nix::unistd::pivot_root(".", ".").map_err(step("change the root"))?;
    nix::mount::umount2(".", MntFlags::MNT_DETACH).map_err(step("leave the host's root"))?;
    chroot("/root").map_err(step("chroot"))?;
    chdir("/").map_err(step("enter the root"))?;

    // Belongs to a thread and its children: before there is a second one.
    prctl::set_no_new_privs().map_err(step("no new privileges"))?;

    // Before the number of processes is limited to none. The agent holds the other end of stdin for as long as it wants this.
    thread::Builder::new()
        .stack_size(1 << 16)
        .spawn(|| {
            let mut rest = [0; 64];
            while matches!(std::io::stdin().read(&mut rest), Ok(1..)) {}
            process::exit(1);
        })
        .map_err(|error| ConfineError {
            step: "watch stdin",
            errno: nix::Error::from_raw(error.raw_os_error().unwrap_or_default()),
        })?;

    // From root to nobody drops all capabilities of all threads (libc does it to each of them), and nothing gives them back.
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    setgroups(&[]).map_err(step("drop groups"))?;
    setresgid(gid, gid, gid).map_err(step("drop the group"))?;
    setresuid(uid, uid, uid).map_err(step("drop the user"))?;

    // SIGXCPU, then SIGKILL: the first tells the agent why.
    setrlimit(
        Resource::RLIMIT_CPU,
        bounds.cpu_seconds,
        bounds.cpu_seconds.saturating_add(5),
    )
    .map_err(step("limit the processor time"))?;
    for (resource, limit) in [
        (Resource::RLIMIT_AS, bounds.memory),
        (Resource::RLIMIT_FSIZE, bounds.file_size),
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_NPROC, 0),
        (Resource::RLIMIT_NOFILE, 0),
    ] {
        setrlimit(resource, limit, limit).map_err(step("set a resource limit"))?;
    }
    Ok(())
}
