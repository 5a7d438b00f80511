//! A real cloche-init in namespaces and a cgroup of its own on this machine, without runsc.
//!
//! Needs root, `unshare`, `nsenter`, `setpriv`, a cgroup hierarchy that can be written to, and `cloche-init` beside the test
//! programs (`cargo build -p cloche-init`, done by a build of the workspace).
#![allow(dead_code, unreachable_pub)] // each test binary uses its own part

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cloche_agent::session::{Bridge, BridgeError, NewSession, Pipes};
use cloche_proto::frame::{BRIDGE_USER, SessionSpec};
use futures::FutureExt;
use futures::future::BoxFuture;

const PATIENCE: Duration = Duration::from_secs(30);

#[allow(clippy::disallowed_methods)] // the one place of this crate's tests
pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    Command::new(program)
}

#[allow(clippy::disallowed_methods)] // tests measure the real world
pub fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// The program under test: beside this test's own program.
fn init() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.ancestors().nth(2).unwrap().join("cloche-init");
    assert!(
        path.exists(),
        "{} is missing: cargo build -p cloche-init",
        path.display()
    );
    path
}

fn pipe() -> (OwnedFd, OwnedFd) {
    nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap()
}

fn hierarchy() -> PathBuf {
    ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.join("cgroup.procs").exists())
        .expect("no cgroup hierarchy at /sys/fs/cgroup")
}

/// A holder that runs.
pub struct Sandbox {
    child: Child,
    groups: PathBuf,
    pub root: tempfile::TempDir,
}

/// $1 a new cgroup, $2 a directory, $3 the init. The signal at the parent's death is for tests that are killed.
const START: &str = r#"
echo $$ >"$1/cgroup.procs"
exec setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child=KILL --cgroup --uts \
    /bin/sh -euc 'mount --bind "$2/etc" /etc; exec "$3" holder "$2/run"' sh "$@"
"#;

impl Sandbox {
    /// Starts a holder; the agent's ends of its donated pipes.
    pub fn start() -> (Self, Pipes) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        assert!(
            nix::unistd::geteuid().is_root(),
            "run as root: this test makes namespaces"
        );
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let groups = hierarchy().join(format!("cloche-session-{}-{count}", std::process::id()));
        fs::create_dir(&groups).unwrap();
        let root = tempfile::tempdir().unwrap();
        for directory in ["etc", "run", "sessions"] {
            fs::create_dir(root.path().join(directory)).unwrap();
        }
        fs::write(
            root.path().join("etc/passwd"),
            "root:x:0:0:root:/root:/bin/sh\n",
        )
        .unwrap();
        fs::write(root.path().join("etc/group"), "root:x:0:\n").unwrap();
        let (stdin, to_guest) = pipe();
        let (from_guest, stdout) = pipe();
        let child = command("/bin/sh")
            .args(["-euc", START, "sh"])
            .arg(&groups)
            .arg(root.path())
            .arg(init())
            .stdin(Stdio::from(stdin))
            .stdout(Stdio::from(stdout))
            .spawn()
            .unwrap();
        let sandbox = Self {
            child,
            groups,
            root,
        };
        (
            sandbox,
            Pipes {
                from_guest,
                to_guest,
            },
        )
    }

    pub fn sessions(&self) -> PathBuf {
        self.root.path().join("sessions")
    }

    /// A bridge to this holder.
    pub fn bridge(&self) -> Nsenter {
        Nsenter {
            holder: first_child(self.child.id()),
            run: self.root.path().join("run"),
        }
    }

    /// The sandbox's death, from outside.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn first_child(pid: u32) -> u32 {
    let start = now();
    while start.elapsed() < PATIENCE {
        let children =
            fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        if let Some(child) = children.split_whitespace().next() {
            return child.parse().unwrap();
        }
        std::thread::yield_now();
    }
    panic!("the holder does not run");
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        let start = now();
        while start.elapsed() < PATIENCE && self.groups.exists() {
            remove_groups(&self.groups);
        }
    }
}

fn remove_groups(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            drop(fs::remove_dir(entry.path()));
        }
    }
    drop(fs::remove_dir(path));
}

/// Enters the holder's mount namespace, as the sentry's exec does.
pub struct Nsenter {
    pub holder: u32,
    pub run: PathBuf,
}

impl Nsenter {
    fn connect_now(&self) -> std::io::Result<Pipes> {
        let (stdin, to_guest) = pipe();
        let (from_guest, stdout) = pipe();
        let user = BRIDGE_USER.to_string();
        let output = command("/usr/bin/nsenter")
            .args(["--mount", "--target", &self.holder.to_string()])
            .args(["setpriv", "--reuid", &user, "--regid", &user])
            .args(["--clear-groups", "--bounding-set=-all"])
            .arg(init())
            .arg("bridge")
            .arg(&self.run)
            .stdin(Stdio::from(stdin))
            .stdout(Stdio::from(stdout))
            .stderr(Stdio::piped())
            .output()?;
        if output.status.success() {
            Ok(Pipes {
                from_guest,
                to_guest,
            })
        } else {
            Err(std::io::Error::other(
                String::from_utf8_lossy(&output.stderr).into_owned(),
            ))
        }
    }
}

impl Bridge for Nsenter {
    fn connect(&self) -> BoxFuture<'_, Result<Pipes, BridgeError>> {
        let this = Self {
            holder: self.holder,
            run: self.run.clone(),
        };
        async move {
            tokio::task::spawn_blocking(move || this.connect_now())
                .await
                .unwrap()
                .map_err(|source| BridgeError {
                    operation: "bridge to",
                    source: source.into(),
                })
        }
        .boxed()
    }

    fn wake(&self) -> BoxFuture<'_, Result<(), BridgeError>> {
        let pid = nix::unistd::Pid::from_raw(self.holder.cast_signed());
        let result = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT);
        async move {
            result.map_err(|source| BridgeError {
                operation: "wake",
                source: source.into(),
            })
        }
        .boxed()
    }
}

/// A shell command line.
pub fn shell(line: &str) -> NewSession {
    NewSession {
        spec: SessionSpec {
            argv: vec![line.as_bytes().to_vec()],
            shell: Some("/bin/sh".to_owned()),
            env: vec![
                b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_vec(),
            ],
            cwd: b"/".to_vec(),
            stdin: true,
            capabilities: 0xa804_05fb,
            ..SessionSpec::default()
        },
        kill_on_detach: None,
        fingerprint: None,
    }
}

/// What `/proc/self/status` says of this process, in KiB.
pub fn status_kib(field: &str) -> u64 {
    fs::read_to_string("/proc/self/status")
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap()
}
