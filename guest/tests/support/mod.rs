//! A holder under test, in namespaces and a cgroup of its own, and the agent's side of its channel.
//!
//! Needs root, `unshare`, `setpriv` and a cgroup hierarchy that can be written to, on any Linux.
#![allow(dead_code, unreachable_pub)] // each test binary uses its own part
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is tests, which clippy sees in `#[test]` alone

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cloche_proto::frame::{
    Create, Data, Down, DownKind, Exit, ExitCause, Fault, Forget, Hello, HelloAck, Ping, Position,
    ReadOnlyRoot, Report, SessionSpec, Setup, SetupDone, Signal, SignalScope, Stdin, Stream,
    TerminalSize, Up, UpKind, VERSION,
    codec::{Decoder, encode},
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
const PATH: &[u8] = b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What container runtimes grant by custom, without `NET_RAW`.
pub const USUAL: u64 = 0xa804_05fb;

#[allow(clippy::disallowed_methods)] // the one place of this crate's tests
fn command(program: &str) -> Command {
    Command::new(program)
}

#[allow(clippy::disallowed_methods)] // tests wait for the real world
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// The agent's side of a channel.
pub struct Agent {
    down: Option<File>,
    up: File,
    decoder: Decoder,
    marker: Option<Vec<u8>>,
    /// Acknowledge output as it comes.
    pub acknowledge: bool,
    pub ack: Option<HelloAck>,
    pub reports: BTreeMap<String, Report>,
    pub output: BTreeMap<(String, i32), Vec<u8>>,
    pub pongs: Vec<u64>,
    pub faults: Vec<Fault>,
    pub set_up: Option<SetupDone>,
    /// Output frames seen, for tests of fairness.
    pub frames: Vec<(String, usize)>,
}

impl Agent {
    fn new(down: File, up: File) -> Self {
        Self {
            down: Some(down),
            up,
            decoder: Decoder::default(),
            marker: None,
            acknowledge: true,
            ack: None,
            reports: BTreeMap::new(),
            output: BTreeMap::new(),
            pongs: Vec::new(),
            faults: Vec::new(),
            set_up: None,
            frames: Vec::new(),
        }
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.down.as_mut().unwrap().write_all(bytes).unwrap();
    }

    pub fn send(&mut self, kind: DownKind) {
        let frame = encode(&Down { kind: Some(kind) }).unwrap();
        self.raw(&frame);
    }

    /// Opens an epoch, claiming to hold what `output` holds.
    pub fn hello(&mut self) {
        static NONCES: AtomicU32 = AtomicU32::new(1);
        let held = self
            .output
            .iter()
            .map(|((id, stream), data)| Position {
                command_id: id.clone(),
                stream: *stream,
                offset: data.len() as u64,
            })
            .collect();
        let mut nonce = vec![0xa5; 12];
        nonce.extend_from_slice(&NONCES.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        self.marker = Some(nonce.clone());
        self.ack = None;
        self.send(DownKind::Hello(Hello {
            nonce: nonce.clone(),
            version: VERSION + 7,
            held,
        }));
        self.until("the echo of the hello", |agent| agent.ack.is_some());
        let ack = self.ack.clone().unwrap();
        assert_eq!((ack.nonce, ack.version), (nonce, VERSION));
    }

    /// Reads once, if something comes within `limit`; false at the end of the channel.
    pub fn pump(&mut self, limit: Duration) -> bool {
        let mut fds = [PollFd::new(self.up.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::try_from(limit).unwrap()).unwrap() == 0 {
            return true;
        }
        let mut block = vec![0; 256 * 1024];
        let count = self.up.read(&mut block).unwrap();
        if count == 0 {
            return false;
        }
        self.take(&block[..count]);
        true
    }

    fn take(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
        if let Some(marker) = &self.marker {
            if !self.decoder.seek(marker) {
                return;
            }
            self.marker = None;
        }
        while let Some(up) = self.decoder.next::<Up>().unwrap() {
            match up.kind.unwrap() {
                UpKind::HelloAck(ack) => {
                    for report in &ack.sessions {
                        self.reports
                            .insert(report.command_id.clone(), report.clone());
                    }
                    self.ack = Some(ack);
                }
                UpKind::Report(report) => {
                    self.reports.insert(report.command_id.clone(), report);
                }
                UpKind::Data(data) => self.take_data(data),
                UpKind::Pong(ping) => self.pongs.push(ping.token),
                UpKind::Fault(fault) => self.faults.push(fault),
                UpKind::SetupDone(done) => self.set_up = Some(done),
            }
        }
    }

    fn take_data(&mut self, data: Data) {
        self.frames.push((data.command_id.clone(), data.data.len()));
        let key = (data.command_id.clone(), data.stream);
        let held = self.output.entry(key).or_default();
        assert_eq!(
            data.offset,
            held.len() as u64,
            "output of {} is doubled or lost",
            data.command_id
        );
        held.extend_from_slice(&data.data);
        let offset = held.len() as u64;
        if self.acknowledge {
            self.send(DownKind::Ack(Position {
                command_id: data.command_id,
                stream: data.stream,
                offset,
            }));
        }
    }

    pub fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let start = now();
        while !done(self) {
            assert!(
                start.elapsed() < PATIENCE && self.pump(Duration::from_millis(100)),
                "waited in vain for {what}; reports {:?}, faults {:?}, output {:?}",
                self.reports,
                self.faults,
                self.output
                    .iter()
                    .map(|(key, data)| (key, data.len()))
                    .collect::<Vec<_>>()
            );
        }
    }

    /// Takes in what comes until nothing came for `quiet`.
    pub fn settle(&mut self, quiet: Duration) {
        loop {
            let mut fds = [PollFd::new(self.up.as_fd(), PollFlags::POLLIN)];
            if poll(&mut fds, PollTimeout::try_from(quiet).unwrap()).unwrap() == 0 {
                return;
            }
            assert!(self.pump(quiet), "the channel ended");
        }
    }

    pub fn create(&mut self, id: &str, spec: SessionSpec) {
        self.send(DownKind::Create(Create {
            command_id: id.to_owned(),
            spec: Some(spec),
        }));
    }

    pub fn stdin(&mut self, id: &str, offset: u64, data: &[u8], end: bool) {
        self.send(DownKind::Stdin(Stdin {
            command_id: id.to_owned(),
            offset,
            data: data.to_vec(),
            end,
        }));
    }

    pub fn signal(&mut self, id: &str, signal: i32, scope: SignalScope) {
        self.send(DownKind::Signal(Signal {
            command_id: id.to_owned(),
            signal,
            scope: scope as i32,
        }));
    }

    pub fn forget(&mut self, id: &str) {
        self.send(DownKind::Forget(Forget {
            command_id: id.to_owned(),
        }));
        self.reports.remove(id);
        self.output.retain(|(known, _), _| known != id);
    }

    /// Sets up, and tells what failed; empty where nothing did.
    pub fn setup(&mut self, hostname: &str) -> String {
        self.setup_root(hostname, None).error
    }

    /// Sets up, with a root that is read-only but for these paths where there are any.
    pub fn setup_root(&mut self, hostname: &str, writable: Option<&[&str]>) -> SetupDone {
        let writable = writable.map(|paths| paths.iter().map(|path| (*path).to_owned()).collect());
        self.set_up = None;
        self.send(DownKind::Setup(Setup {
            hostname: hostname.to_owned(),
            read_only_root: writable.map(|writable| ReadOnlyRoot { writable }),
        }));
        self.until("the end of set-up", |agent| agent.set_up.is_some());
        self.set_up.clone().unwrap()
    }

    /// A round trip: what was sent before has been taken in.
    pub fn ping(&mut self) {
        static TOKENS: AtomicU32 = AtomicU32::new(1);
        let token = u64::from(TOKENS.fetch_add(1, Ordering::Relaxed));
        self.send(DownKind::Ping(Ping { token }));
        self.until("a pong", |agent| agent.pongs.contains(&token));
    }

    pub fn stdout(&self, id: &str) -> String {
        self.text(id, Stream::Stdout)
    }

    pub fn stderr(&self, id: &str) -> String {
        self.text(id, Stream::Stderr)
    }

    fn text(&self, id: &str, stream: Stream) -> String {
        let data = self.output.get(&(id.to_owned(), stream as i32));
        String::from_utf8_lossy(data.map_or(&[], Vec::as_slice)).into_owned()
    }

    pub fn until_stdout(&mut self, id: &str, text: &str) {
        self.until(text, |agent| agent.stdout(id).contains(text));
    }

    /// Waits for the end of the command and for all output of the command itself.
    pub fn finish(&mut self, id: &str) -> Exit {
        self.until(&format!("the end of {id}"), |agent| {
            let Some(report) = agent.reports.get(id) else {
                return false;
            };
            let reached = |at: Option<u64>, stream: Stream| {
                at.is_some_and(|at| {
                    let held = agent.output.get(&(id.to_owned(), stream as i32));
                    held.map_or(0, Vec::len) as u64 >= at
                })
            };
            report.exit.is_some()
                && reached(report.stdout_at_exit, Stream::Stdout)
                && reached(report.stderr_at_exit, Stream::Stderr)
        });
        self.reports[id].exit.clone().unwrap()
    }

    pub fn run(&mut self, id: &str, spec: SessionSpec) -> Exit {
        self.create(id, spec);
        self.finish(id)
    }

    /// Runs a shell command to its end and gives its code, stdout and stderr.
    pub fn shell(&mut self, id: &str, text: &str) -> (i32, String, String) {
        let exit = self.run(id, shell(text));
        (exit.code, self.stdout(id), self.stderr(id))
    }

    /// Dies as an agent does: both ends are closed.
    pub fn die(mut self) -> Self {
        self.down = None;
        self.decoder = Decoder::default();
        self
    }

    /// The same agent, started anew over other pipes, with what it had on disk.
    pub fn over(self, channel: (File, File)) -> Self {
        Self {
            output: self.output,
            acknowledge: self.acknowledge,
            ..Self::new(channel.0, channel.1)
        }
    }
}

pub fn shell(text: &str) -> SessionSpec {
    SessionSpec {
        argv: vec![text.as_bytes().to_vec()],
        shell: Some("/bin/sh".to_owned()),
        ..argv(&[])
    }
}

pub fn argv(argv: &[&str]) -> SessionSpec {
    SessionSpec {
        argv: argv.iter().map(|text| text.as_bytes().to_vec()).collect(),
        env: vec![PATH.to_vec()],
        cwd: b"/".to_vec(),
        capabilities: USUAL,
        ..SessionSpec::default()
    }
}

pub fn with_terminal(spec: SessionSpec) -> SessionSpec {
    SessionSpec {
        terminal: Some(TerminalSize {
            rows: 24,
            columns: 80,
        }),
        stdin: true,
        ..spec
    }
}

pub fn cause(exit: &Exit) -> ExitCause {
    ExitCause::try_from(exit.cause).unwrap()
}

/// A holder and its world.
pub struct Sandbox {
    child: Child,
    groups: PathBuf,
    pub root: tempfile::TempDir,
}

fn hierarchy() -> PathBuf {
    ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.join("cgroup.procs").exists())
        .expect("no cgroup hierarchy at /sys/fs/cgroup")
}

impl Sandbox {
    /// Starts a holder and opens the first epoch.
    pub fn start() -> (Self, Agent) {
        let (sandbox, mut agent) = Self::start_silent();
        agent.hello();
        (sandbox, agent)
    }

    /// Starts a holder.
    pub fn start_silent() -> (Self, Agent) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        assert!(
            nix::unistd::geteuid().is_root(),
            "tests of the holder need root"
        );
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let groups = hierarchy().join(format!("cloche-guest-{}-{count}", std::process::id()));
        fs::create_dir(&groups).unwrap_or_else(|error| {
            panic!(
                "making {}: {error}; tests of the holder need a cgroup",
                groups.display()
            )
        });
        let root = tempfile::tempdir().unwrap();
        for directory in ["etc", "run"] {
            fs::create_dir(root.path().join(directory)).unwrap();
        }
        fs::write(
            root.path().join("etc/passwd"),
            "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n",
        )
        .unwrap();
        fs::write(
            root.path().join("etc/group"),
            "root:x:0:\nann:x:1000:\nextra:x:2000:ann\n",
        )
        .unwrap();
        let (stdin, down) = pipe();
        let (up, stdout) = pipe();
        let child = command("/bin/sh")
            .args(["-euc", START, "sh"])
            .arg(&groups)
            .arg(root.path())
            .arg(env!("CARGO_BIN_EXE_cloche-init"))
            .stdin(Stdio::from(OwnedFd::from(stdin)))
            .stdout(Stdio::from(OwnedFd::from(stdout)))
            .spawn()
            .expect("starting /bin/sh");
        let sandbox = Self {
            child,
            groups,
            root,
        };
        (sandbox, Agent::new(down, up))
    }

    /// Brings the holder a new channel, as an agent does that was started anew.
    pub fn bridge(&self) -> (File, File) {
        let (stdin, down) = pipe();
        let (up, stdout) = pipe();
        let user = cloche_proto::frame::BRIDGE_USER.to_string();
        let status = command("/usr/bin/nsenter")
            .args(["--mount", "--target", &self.holder().to_string()])
            .args(["setpriv", "--reuid", &user, "--regid", &user])
            .args(["--clear-groups", "--bounding-set=-all"])
            .args([env!("CARGO_BIN_EXE_cloche-init"), "bridge"])
            .arg(self.run_directory())
            .stdin(Stdio::from(OwnedFd::from(stdin)))
            .stdout(Stdio::from(OwnedFd::from(stdout)))
            .status()
            .unwrap();
        assert!(status.success(), "the bridge failed");
        (down, up)
    }

    pub fn run_directory(&self) -> PathBuf {
        self.root.path().join("run")
    }

    /// The holder's pid on this machine: the child of the process that made its namespace.
    pub fn holder(&self) -> u32 {
        first_child(self.child.id()).expect("the holder runs")
    }

    /// The spawner's.
    pub fn spawner(&self) -> u32 {
        first_child(self.holder()).expect("the spawner runs")
    }

    /// Processor time of the holder, in clock ticks.
    pub fn holder_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.holder())).unwrap();
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// Groups that the holder has made and not removed.
    pub fn group_count(&self) -> usize {
        fs::read_dir(&self.groups)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().path().is_dir())
            .count()
    }
}

/// $1 a new cgroup, $2 a directory, $3 the init. The signal at the parent's death is for tests that are killed.
const START: &str = r#"
echo $$ >"$1/cgroup.procs"
exec setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child=KILL --cgroup --uts \
    /bin/sh -euc 'mount --bind "$2/etc" /etc; exec "$3" holder "$2/run"' sh "$@"
"#;

fn first_child(pid: u32) -> Option<u32> {
    let start = now();
    while start.elapsed() < PATIENCE {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        if let Some(child) = children.split_whitespace().next() {
            return child.parse().ok();
        }
        std::thread::yield_now();
    }
    None
}

fn pipe() -> (File, File) {
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
    (File::from(read), File::from(write))
}

/// Waits for a fact about the world.
pub fn eventually(what: &str, mut fact: impl FnMut() -> bool) {
    let start = now();
    while !fact() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::yield_now();
    }
}

/// Processes of this machine whose command line has `text` in it.
pub fn living(text: &str) -> usize {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok())
        .filter(|line| line.starts_with(b"sleep") && String::from_utf8_lossy(line).contains(text))
        .count()
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // With the child goes the namespace's first process, and with that one all of them.
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
