//! Processes: the only place that starts them, and the only place that ends them.
//!
//! Each one leads a process group of its own and has a time limit. It is waited for by its pidfd, beside the pipes that it
//! writes to and the signals that end xtask itself, so that neither a limit nor ^C leaves anything behind. Only groups that
//! were started here are ever signalled, and only while their leader is not yet reaped, so that the number is still theirs.

mod leader;

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;

use crate::clock::Stopwatch;
use leader::{Leader, Signals, wait_readable};

/// Where a caller names no limit.
const DEFAULT_LIMIT: Duration = Duration::from_mins(10);
/// What is kept of a captured output.
const CAPTURE_LIMIT: usize = 64 << 20;

/// What `cargo xtask` sets for xtask itself. Build scripts ask for them (ring's), so that a cargo which inherits them builds
/// again what one that was started by hand has built, and the other way round.
const OWN: [&str; 7] = [
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_LINKS",
    "CARGO_PKG_NAME",
    "CARGO_PKG_VERSION_MAJOR",
    "CARGO_PKG_VERSION_MINOR",
    "CARGO_PKG_VERSION_PATCH",
    "CARGO_PKG_VERSION_PRE",
];

/// Takes a piece of output.
type Sink<'a> = &'a mut dyn FnMut(&[u8]);

/// A program to run, with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    limit: Duration,
}

/// What a captured command wrote, and how it ended.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
}

impl Command {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            directory: None,
            limit: DEFAULT_LIMIT,
        }
    }

    /// The cargo that runs xtask.
    pub(crate) fn cargo() -> Self {
        Self::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub(crate) fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    pub(crate) fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    pub(crate) fn envs(
        mut self,
        pairs: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
    ) -> Self {
        for (name, value) in pairs {
            self = self.env(name, value);
        }
        self
    }

    pub(crate) fn directory(mut self, directory: impl AsRef<Path>) -> Self {
        self.directory = Some(directory.as_ref().to_owned());
        self
    }

    pub(crate) fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// As a shell would show it.
    pub(crate) fn line(&self) -> String {
        let quoted = |arg: &OsString| {
            let arg = arg.to_string_lossy();
            if arg.is_empty() || arg.contains(char::is_whitespace) {
                format!("{arg:?}")
            } else {
                arg.into_owned()
            }
        };
        let words: Vec<String> = [&self.program]
            .into_iter()
            .chain(&self.args)
            .map(quoted)
            .collect();
        words.join(" ")
    }

    /// Runs it with xtask's own output; anything but success is an error.
    pub(crate) fn run(self) -> Result<()> {
        let line = self.line();
        let status = self.execute(None)?;
        succeeded(status, &line)
    }

    /// Runs it and returns its stdout; stderr is xtask's.
    pub(crate) fn output(self) -> Result<Output> {
        let line = self.line();
        let mut stdout = Vec::new();
        let status = self.execute(Some(&mut |bytes| {
            stdout.extend_from_slice(bytes);
            stdout.truncate(CAPTURE_LIMIT);
        }))?;
        if stdout.len() == CAPTURE_LIMIT {
            bail!("{line}: wrote more than {CAPTURE_LIMIT} bytes");
        }
        Ok(Output { status, stdout })
    }

    /// Runs it and returns its stdout as text; anything but success is an error.
    pub(crate) fn text(self) -> Result<String> {
        let line = self.line();
        let output = self.output()?;
        succeeded(output.status, &line)?;
        String::from_utf8(output.stdout).with_context(|| format!("{line}: output"))
    }

    /// Runs it and gives each piece of its stdout to `sink` as it comes.
    pub(crate) fn stream(self, sink: Sink<'_>) -> Result<ExitStatus> {
        self.execute(Some(sink))
    }

    /// Starts it in the background, with stdout and stderr in a file.
    pub(crate) fn start(self, log: &Path) -> Result<Service> {
        let line = self.line();
        let file =
            std::fs::File::create(log).with_context(|| format!("create {}", log.display()))?;
        let mut command = self.prepare();
        command.stdout(file.try_clone().context("share the log")?);
        command.stderr(file);
        let leader = Leader::spawn(command, &line)?;
        Ok(Service { leader, line })
    }

    #[allow(clippy::disallowed_methods)]
    fn prepare(&self) -> std::process::Command {
        let mut command = std::process::Command::new(&self.program);
        for name in OWN {
            command.env_remove(name);
        }
        if let Some(path) = std::env::var_os("PATH") {
            // What a shell from a plain `su` lacks.
            let mut path = path;
            path.push(":/usr/sbin:/sbin");
            command.env("PATH", path);
        }
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .process_group(0);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command
    }

    fn execute(self, mut sink: Option<Sink<'_>>) -> Result<ExitStatus> {
        let line = self.line();
        let mut command = self.prepare();
        if sink.is_some() {
            command.stdout(Stdio::piped());
        }
        let mut leader = Leader::spawn(command, &line)?;
        // Not before: a child inherits the mask.
        let signals = Signals::block()?;
        let mut pipe = leader.child.stdout.take();
        if let Some(pipe) = &pipe {
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
                .with_context(|| format!("{line}: read its output without blocking"))?;
        }
        let watch = Stopwatch::start();
        loop {
            let left = self.limit.saturating_sub(watch.elapsed());
            if left.is_zero() {
                leader.end()?;
                bail!("{line}: not done after {} s, ended", self.limit.as_secs());
            }
            let mut fds = vec![leader.pidfd.as_fd(), signals.fd.as_fd()];
            fds.extend(pipe.as_ref().map(AsFd::as_fd));
            let ready = wait_readable(&fds, left)?;
            if ready[1] {
                signals.take()?;
                leader.end()?;
                bail!("{line}: ended, because xtask was interrupted");
            }
            if ready.get(2).is_some_and(|ready| *ready)
                && let (Some(source), Some(sink)) = (&mut pipe, &mut sink)
                && drain(source, *sink).with_context(|| format!("{line}: read its output"))?
            {
                pipe = None;
            }
            if ready[0] {
                // A grandchild may hold the pipe for ever: what was written by now is all that counts.
                if let (Some(source), Some(sink)) = (&mut pipe, &mut sink) {
                    drain(source, *sink).with_context(|| format!("{line}: read its output"))?;
                }
                return leader.reap();
            }
        }
    }
}

/// A process in the background. Dropped, it is ended.
#[derive(Debug)]
pub(crate) struct Service {
    leader: Leader,
    line: String,
}

impl Service {
    /// Waits until `condition` holds, looking every 20 ms; an error when the process ends or the time is over before it does.
    pub(crate) fn wait_until(
        &mut self,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut() -> bool,
    ) -> Result<()> {
        let watch = Stopwatch::start();
        loop {
            // First: what an earlier process of the kind left behind may hold the condition.
            if self.is_over(Duration::from_millis(20), what)? {
                let status = self.leader.reap()?;
                bail!("{}: {status} before {what}", self.line);
            }
            if condition() {
                return Ok(());
            }
            if watch.elapsed() > limit {
                bail!("{}: not {what} after {} s", self.line, limit.as_secs());
            }
        }
    }

    /// Waits for it to end by itself; an error unless it succeeds in time.
    pub(crate) fn finish(mut self, limit: Duration) -> Result<()> {
        if !self.is_over(limit, "its end")? {
            bail!("{}: not done after {} s", self.line, limit.as_secs());
        }
        let status = self.leader.reap()?;
        succeeded(status, &self.line)
    }

    /// Asks it to end, and waits.
    pub(crate) fn stop(mut self, limit: Duration) -> Result<()> {
        self.leader.signal(Signal::SIGTERM)?;
        if !self.is_over(limit, "its end")? {
            bail!(
                "{}: still there {} s after SIGTERM",
                self.line,
                limit.as_secs()
            );
        }
        let status = self.leader.reap()?;
        succeeded(status, &self.line)
    }

    fn is_over(&self, limit: Duration, before: &str) -> Result<bool> {
        let signals = Signals::block()?;
        let ready = wait_readable(&[self.leader.pidfd.as_fd(), signals.fd.as_fd()], limit)?;
        if ready[1] {
            signals.take()?;
            bail!("{}: interrupted before {before}", self.line);
        }
        Ok(ready[0])
    }
}

/// Reads what is there; true at the end of the pipe.
fn drain(source: &mut impl Read, sink: Sink<'_>) -> std::io::Result<bool> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(read) => sink(&buffer[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn succeeded(status: ExitStatus, line: &str) -> Result<()> {
    if status.success() {
        Ok(())
    } else {
        Err(anyhow!("{line}: {status}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        Command::new("/bin/sh").arg("-c").arg(script)
    }

    #[test]
    fn output_is_captured_whole() {
        let text = shell("i=0; while [ $i -lt 20000 ]; do echo 0123456789; i=$((i+1)); done")
            .text()
            .unwrap();
        assert_eq!(text.len(), 220_000);
    }

    #[test]
    fn a_failure_names_the_command_and_its_status() {
        let error = shell("exit 3").run().unwrap_err().to_string();
        assert_eq!(error, "/bin/sh -c \"exit 3\": exit status: 3");
        let error = Command::new("/nonexistent/x").run().unwrap_err();
        assert!(format!("{error:#}").starts_with("start /nonexistent/x: "));
    }

    #[test]
    fn a_limit_ends_the_whole_group() {
        let directory = tempfile::tempdir().unwrap();
        let pid_file = directory.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", pid_file.display());
        let watch = Stopwatch::start();
        let error = shell(&script)
            .limit(Duration::from_millis(300))
            .run()
            .unwrap_err()
            .to_string();
        assert!(error.contains("not done after"), "{error}");
        assert!(watch.elapsed() < Duration::from_secs(4));
        let pid: i32 = std::fs::read_to_string(&pid_file)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        wait_gone(pid);
    }

    #[test]
    fn what_a_finished_command_leaves_behind_is_killed_and_does_not_block() {
        let watch = Stopwatch::start();
        let text = shell("sleep 1000 & echo $!").text().unwrap();
        assert!(watch.elapsed() < Duration::from_secs(4));
        wait_gone(text.trim().parse().unwrap());
    }

    #[test]
    fn a_service_is_ended_when_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let mut service = shell("echo $$; exec sleep 1000").start(&log).unwrap();
        let read = || std::fs::read_to_string(&log).unwrap();
        service
            .wait_until("written", Duration::from_secs(5), || read().ends_with('\n'))
            .unwrap();
        let pid = read().trim().parse().unwrap();
        drop(service);
        wait_gone(pid);
    }

    #[test]
    fn a_service_that_dies_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let mut service = shell("exit 4")
            .start(&directory.path().join("log"))
            .unwrap();
        let error = service
            .wait_until("ready", Duration::from_secs(5), || false)
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("exit status: 4 before ready"), "{error}");
    }

    #[test]
    fn what_cargo_told_of_xtask_is_not_handed_on() {
        let print = "echo ${CARGO_PKG_NAME:-none} ${CARGO_MANIFEST_DIR:-none}";
        assert_eq!(shell(print).text().unwrap(), "none none\n");
        // Where a caller means another package's, it counts.
        let other = shell(print).env("CARGO_PKG_NAME", "b").text().unwrap();
        assert_eq!(other, "b none\n");
    }

    #[test]
    fn variables_are_set() {
        let text = shell("echo $A").env("A", "b").text().unwrap();
        assert_eq!(text, "b\n");
    }

    /// A killed grandchild stays for a moment, until whoever inherited it takes its status.
    fn wait_gone(pid: i32) {
        let watch = Stopwatch::start();
        loop {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z ") || stat.contains(") X ") {
                return;
            }
            assert!(
                watch.elapsed() < Duration::from_secs(5),
                "{pid} is still there"
            );
            std::thread::yield_now();
        }
    }
}
