//! What a careless parent could leave on its child.

use std::os::fd::AsFd;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::SigSet;
use nix::unistd::{Pid, close};

use super::*;
use crate::sys::Exit;
use crate::sys::log::BoundedLog;

const SCRIPT: &str = "cat /proc/self/status /proc/self/limits >&2; ls /proc/self/fd >&2; \
    cat /proc/self/oom_score_adj >&2; cut -d' ' -f1,5,6,19 /proc/$$/stat >&2; pwd >&2; env >&2";

/// All of it is on this thread (niceness and affinity are a thread's) while the child is started.
#[tokio::test]
async fn a_child_inherits_nothing() {
    let null = File::open("/dev/null").expect("there");
    let open = fcntl(&null, FcntlArg::F_DUPFD(700)).expect("a free number");
    // 32 belongs to the C library, which does not let it be set by name.
    for signal in [libc::SIGUSR2, 32, 64] {
        let ignore = [libc::SIG_IGN, 0, 0, 0];
        // SAFETY: a whole `sigaction` of the kernel; ignoring runs no code.
        let set = unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                ignore.as_ptr(),
                ptr::null::<u64>(),
                SIGSET_SIZE,
            )
        };
        assert_eq!(set, 0, "{signal}");
    }
    let mut blocked = SigSet::empty();
    blocked.add(nix::sys::signal::Signal::SIGTERM);
    blocked.thread_block().expect("blocked");
    let me = Pid::from_raw(0);
    let cpus = sched_getaffinity(me).expect("known");
    let mut one = CpuSet::new();
    one.set(0).expect("a CPU");
    sched_setaffinity(me, &one).expect("set");
    // SAFETY: integers only.
    assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 7) }, 0);

    let log = BoundedLog::new(32 << 10).expect("made");
    let arguments: Vec<OsString> = ["sh", "-c", SCRIPT].map(OsString::from).into();
    let process = spawn(&Spawn {
        program: Path::new("/bin/busybox"),
        arguments: &arguments,
        join: &[],
        stderr: log.file().as_fd(),
        oom_score_adj: 500,
    })
    .expect("started (needs busybox-static)");
    sched_setaffinity(me, &cpus).expect("set");
    assert_eq!(process.ended().await.expect("told"), Exit::Code(0));
    let text = log.text(32 << 10).expect("read");
    let has = |what: &str| assert!(text.contains(what), "no {what:?} in {text}");

    has("SigBlk: 0000000000000000");
    has("SigIgn: 0000000000000000");
    let last = std::thread::available_parallelism().expect("known").get() - 1;
    if last > 0 {
        has(&format!("Cpus_allowed_list: 0-{last}"));
    }
    has("Umask: 0022");
    has("Max core file size        0                    0");
    assert!(
        !text.contains(&format!(" {open} ")),
        "file {open} in {text}"
    );
    // It leads its own group and session, and its niceness is 0.
    let pid = process.id().pid;
    has(&format!("500 {pid} {pid} {pid} 0 / "));
    assert!(!text.contains("CARGO"), "environment in {text}");
    close(open).expect("open");
}

#[test]
fn the_oom_score_is_never_lowered() {
    let own = raised(-1000).expect("readable");
    assert_eq!(raised(own - 1).expect("readable"), own);
    assert_eq!(raised(5000).expect("readable"), 1000);
}
