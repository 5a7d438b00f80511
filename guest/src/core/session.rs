//! One session: what its reports say.

use cloche_proto::frame::{
    Exit, ExitCause, MAX_MESSAGE, MAX_STREAM_BUFFER, Report, SessionSpec, Stream,
};

use super::input::Input;
use super::output::Output;

/// Why a command never started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// One of the causes that say so.
    pub cause: ExitCause,
    /// One line for a person, without a line feed.
    pub message: String,
}

impl Failure {
    /// A failure with its message cut to [`MAX_MESSAGE`] and to one line.
    pub fn new(cause: ExitCause, message: impl Into<String>) -> Self {
        let message = message.into();
        let mut line: String = message
            .chars()
            .map(|char| if char.is_control() { ' ' } else { char })
            .collect();
        while line.len() > MAX_MESSAGE {
            line.pop();
        }
        Self {
            cause,
            message: line,
        }
    }

    /// The exit code that a shell would give.
    pub fn code(&self) -> i32 {
        match self.cause {
            ExitCause::NotFound => 127,
            _ => 126,
        }
    }

    pub(super) fn exit(&self, duration_ms: u64) -> Exit {
        Exit {
            code: self.code(),
            signal: 0,
            cause: self.cause as i32,
            message: self.message.clone(),
            duration_ms,
        }
    }
}

/// A command and its streams.
#[allow(clippy::struct_excessive_bools)] // facts that do not depend on one another
#[derive(Debug)]
pub struct Session {
    pub(super) id: String,
    terminal: bool,
    pid: i32,
    started: bool,
    exit: Option<Exit>,
    timed_out: bool,
    /// Running time of the holder at its creation, and when its tree is to be killed, in milliseconds.
    begun: u64,
    deadline: Option<u64>,
    pub(super) stdin: Input,
    stdout: Output,
    stderr: Output,
    /// A report is to be sent. One bit: reports are levels, so two that wait are one.
    pub(super) due: bool,
    reported_drained: u64,
}

/// A report about stdin alone is sent each time that this many bytes were drained, and when all were.
const DRAINED_STEP: u64 = MAX_STREAM_BUFFER as u64 / 4;

impl Session {
    pub(super) fn new(id: String, spec: &SessionSpec, now: u64) -> Self {
        let terminal = spec.terminal.is_some();
        let mut stderr = Output::default();
        if terminal {
            stderr.finish();
        }
        Self {
            id,
            terminal,
            pid: 0,
            started: false,
            exit: None,
            timed_out: false,
            begun: now,
            deadline: (spec.timeout_ms > 0).then(|| now.saturating_add(spec.timeout_ms)),
            stdin: if spec.stdin {
                Input::default()
            } else {
                Input::closed()
            },
            stdout: Output::default(),
            stderr,
            due: false,
            reported_drained: 0,
        }
    }

    /// Whether the command has neither ended nor failed to start.
    pub fn is_alive(&self) -> bool {
        self.exit.is_none()
    }

    /// Whether its streams are one terminal.
    pub fn has_terminal(&self) -> bool {
        self.terminal
    }

    /// Its stdin.
    pub fn stdin(&self) -> &Input {
        &self.stdin
    }

    /// One of its output streams.
    pub fn output(&self, stream: Stream) -> &Output {
        match stream {
            Stream::Stderr => &self.stderr,
            Stream::Stdout | Stream::Unspecified => &self.stdout,
        }
    }

    pub(super) fn output_mut(&mut self, stream: Stream) -> &mut Output {
        match stream {
            Stream::Stderr => &mut self.stderr,
            Stream::Stdout | Stream::Unspecified => &mut self.stdout,
        }
    }

    /// The running time, in milliseconds, at which the tree is to be killed.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.deadline
            .filter(|_| self.exit.is_none() && !self.timed_out)
    }

    /// Whether the time has just run out.
    pub(super) fn runs_out(&mut self, now: u64) -> bool {
        let out = self.deadline().is_some_and(|deadline| deadline <= now);
        self.timed_out |= out;
        out
    }

    pub(super) fn spawned(&mut self, pid: i32) {
        self.pid = pid;
    }

    pub(super) fn started(&mut self) {
        self.started = true;
        self.due = true;
    }

    pub(super) fn failed(&mut self, failure: &Failure, now: u64) {
        if self.exit.is_some() {
            return;
        }
        let line = format!("cloche-init: {}\n", failure.message);
        let stream = if self.terminal {
            Stream::Stdout
        } else {
            Stream::Stderr
        };
        self.output_mut(stream).push(line.as_bytes());
        self.pid = 0;
        let ran = now.saturating_sub(self.begun);
        self.end(failure.exit(ran), 0, 0);
        self.stdin.close();
        self.stdout.finish();
        self.stderr.finish();
    }

    /// The command ended with `status` of wait(2); so many bytes of its output are still to be read.
    pub(super) fn exited(
        &mut self,
        status: i32,
        stdout_pending: usize,
        stderr_pending: usize,
        now: u64,
    ) {
        if self.exit.is_some() {
            return;
        }
        let signal = status & 0x7f;
        let code = if signal == 0 {
            (status >> 8) & 0xff
        } else {
            128 + signal
        };
        let cause = if self.timed_out {
            ExitCause::TimedOut
        } else {
            ExitCause::Unspecified
        };
        let exit = Exit {
            code,
            signal,
            cause: cause as i32,
            message: String::new(),
            duration_ms: now.saturating_sub(self.begun),
        };
        self.end(exit, stdout_pending, stderr_pending);
    }

    fn end(&mut self, exit: Exit, stdout_pending: usize, stderr_pending: usize) {
        self.exit = Some(exit);
        self.stdout.exit(stdout_pending);
        self.stderr.exit(stderr_pending);
        self.due = true;
    }

    pub(super) fn drained(&mut self, count: usize) {
        self.stdin.drain(count);
        if self.stdin.pending().is_empty()
            || self.stdin.drained() - self.reported_drained >= DRAINED_STEP
        {
            self.due = true;
        }
    }

    pub(super) fn report(&mut self) -> Report {
        self.due = false;
        self.reported_drained = self.stdin.drained();
        Report {
            command_id: self.id.clone(),
            pid: if self.started { self.pid } else { 0 },
            exit: self.exit.clone(),
            stdin_offset: self.stdin.offset(),
            stdin_closed: self.stdin.is_closed(),
            stdout_end: self.stdout.ended_at(),
            stderr_end: self.stderr.ended_at(),
            stdout_at_exit: self.stdout.at_exit(),
            stderr_at_exit: self.stderr.at_exit(),
            stdin_drained: self.stdin.drained(),
            begun_ms: self.begun,
        }
    }
}
