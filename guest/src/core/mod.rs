//! What the holder knows and decides, without a file descriptor or a process: frames and events go in, frames and
//! [`Effect`]s come out. `now` is the holder's running time in milliseconds ([`crate::clock`]).

mod input;
mod output;
mod session;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use cloche_proto::frame::{
    Create, Down, DownKind, ExitCause, Fault, FaultKind, Hello, HelloAck, MAX_DATA, MAX_SESSIONS,
    NONCE, Ping, Position, Report, SessionSpec, Setup, SetupDone, SignalScope, Stream,
    TerminalSize, Up, UpKind, VERSION,
    codec::{Decoder, FrameError, encode, encode_data},
    is_command_id,
};

pub use input::Input;
pub use output::Output;
pub use session::{Failure, Session};

/// Names a session for as long as the holder lives; a `command_id` may come back after it was forgotten.
pub type Serial = u64;

/// Something to be done in the world.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Start the command of a new session.
    Spawn(Serial, Box<SessionSpec>),
    /// Send a signal.
    Signal(Serial, i32, SignalScope),
    /// Kill every process that came from the command, and let it make no more.
    Kill(Serial),
    /// Set the size of its terminal.
    Resize(Serial, TerminalSize),
    /// Let go of everything held for a session; its record is gone already.
    Drop(Serial),
    /// Set up the sandbox.
    Setup(Setup),
}

/// Bytes of frames made at once; more are made when the channel has taken these. Small, so that answers overtake output.
const OUTBOX: usize = 256 * 1024;
/// Answers kept for sessions that could not be made.
const REFUSALS: usize = 64;

/// The sessions and the channel's state.
#[derive(Debug, Default)]
pub struct Core {
    sessions: BTreeMap<Serial, Session>,
    by_id: BTreeMap<String, Serial>,
    last: Serial,
    /// Where the round over the sessions' output goes on.
    cursor: Serial,
    decoder: Decoder,
    /// An epoch is open: frames count, and frames are sent.
    open: bool,
    /// The bytes read break the rules; nothing more of this channel counts.
    broken: bool,
    outbox: Vec<u8>,
    written: usize,
    pong: Option<Ping>,
    setup_done: Option<SetupDone>,
    fault: Option<Fault>,
    fault_due: bool,
    refusals: VecDeque<Report>,
}

impl Core {
    /// A new pair of pipes, or none: what an old one left half said is forgotten, and nothing is sent until a [`Hello`].
    pub fn reset_channel(&mut self) {
        self.decoder.clear();
        self.open = false;
        self.broken = false;
        self.outbox = Vec::new();
        self.written = 0;
    }

    /// Takes in bytes that the agent sent. After an error nothing of this channel counts until [`Self::reset_channel`].
    pub fn receive(&mut self, bytes: &[u8], now: u64) -> Result<Vec<Effect>, FrameError> {
        let mut effects = Vec::new();
        if self.broken {
            return Ok(effects);
        }
        self.decoder.push(bytes);
        loop {
            match self.decoder.next::<Down>() {
                Ok(Some(Down { kind: Some(kind) })) => self.apply(kind, now, &mut effects),
                Ok(Some(Down { kind: None })) => {}
                Ok(None) => return Ok(effects),
                Err(error) => {
                    self.broken = true;
                    self.decoder.clear();
                    return Err(error);
                }
            }
        }
    }

    fn apply(&mut self, kind: DownKind, now: u64, effects: &mut Vec<Effect>) {
        if let DownKind::Hello(hello) = kind {
            self.hello(&hello, now);
            return;
        }
        if !self.open {
            return;
        }
        match kind {
            DownKind::Hello(_) => {}
            DownKind::Create(create) => self.create(create, now, effects),
            DownKind::Stdin(stdin) => {
                if let Some((_, session)) = self.find(&stdin.command_id)
                    && (!session.stdin.accept(stdin.offset, &stdin.data, stdin.end) || stdin.end)
                {
                    session.due = true;
                }
            }
            DownKind::Ack(position) => self.acknowledge(&position),
            DownKind::Signal(signal) => {
                let Ok(scope) = SignalScope::try_from(signal.scope) else {
                    return;
                };
                let kill = scope == SignalScope::Tree && signal.signal == nix::libc::SIGKILL;
                match self.find(&signal.command_id) {
                    Some((serial, _)) if kill => effects.push(Effect::Kill(serial)),
                    Some((serial, session))
                        if (1..=64).contains(&signal.signal)
                            && scope != SignalScope::Unspecified
                            && (session.is_alive() || scope == SignalScope::Tree) =>
                    {
                        effects.push(Effect::Signal(serial, signal.signal, scope));
                    }
                    _ => {}
                }
            }
            DownKind::Resize(resize) => {
                if let (Some(size), Some((serial, session))) =
                    (resize.size, self.find(&resize.command_id))
                    && session.has_terminal()
                {
                    effects.push(Effect::Resize(serial, size));
                }
            }
            DownKind::Forget(forget) => {
                if let Some((serial, session)) = self.find(&forget.command_id)
                    && !session.is_alive()
                {
                    self.sessions.remove(&serial);
                    self.by_id.remove(&forget.command_id);
                    effects.push(Effect::Drop(serial));
                }
            }
            DownKind::Ping(ping) => self.pong = Some(ping),
            DownKind::Setup(setup) => effects.push(Effect::Setup(setup)),
        }
    }

    fn find(&mut self, id: &str) -> Option<(Serial, &mut Session)> {
        let serial = *self.by_id.get(id)?;
        Some((serial, self.sessions.get_mut(&serial)?))
    }

    fn hello(&mut self, hello: &Hello, now: u64) {
        if hello.nonce.len() != NONCE {
            return;
        }
        let mut held: BTreeMap<(&str, i32), u64> = BTreeMap::new();
        for position in &hello.held {
            held.insert((&position.command_id, position.stream), position.offset);
        }
        for session in self.sessions.values_mut() {
            for stream in [Stream::Stdout, Stream::Stderr] {
                let held = held.get(&(session.id.as_str(), stream as i32)).copied();
                session.output_mut(stream).rewind(held);
            }
        }
        self.pong = None;
        self.setup_done = None;
        self.refusals.clear();
        self.fault_due = self.fault.is_some();
        self.cursor = 0;
        let ack = HelloAck {
            nonce: hello.nonce.clone(),
            version: hello.version.min(VERSION),
            sessions: self.sessions.values_mut().map(Session::report).collect(),
            clock_ms: now,
        };
        self.outbox.clear();
        self.written = 0;
        self.outbox.extend_from_slice(&hello.nonce);
        self.open = true;
        self.send(UpKind::HelloAck(ack));
    }

    fn acknowledge(&mut self, position: &Position) {
        if let (Ok(stream @ (Stream::Stdout | Stream::Stderr)), Some((_, session))) = (
            Stream::try_from(position.stream),
            self.find(&position.command_id),
        ) {
            session.output_mut(stream).acknowledge(position.offset);
        }
    }

    fn create(&mut self, create: Create, now: u64, effects: &mut Vec<Effect>) {
        if let Some((_, session)) = self.find(&create.command_id) {
            session.due = true;
            return;
        }
        if !is_command_id(&create.command_id) {
            return;
        }
        let refusal = if self.fault.is_some() {
            Failure::new(
                ExitCause::NoResources,
                "the sandbox's init was killed from inside",
            )
        } else if self.sessions.len() >= MAX_SESSIONS {
            Failure::new(
                ExitCause::NoResources,
                format!("the sandbox holds {MAX_SESSIONS} sessions already"),
            )
        } else if let Some(spec) = create.spec {
            self.last += 1;
            let session = Session::new(create.command_id.clone(), &spec, now);
            self.sessions.insert(self.last, session);
            self.by_id.insert(create.command_id, self.last);
            effects.push(Effect::Spawn(self.last, Box::new(spec)));
            return;
        } else {
            Failure::new(ExitCause::SetupFailed, "nothing was said of what to run")
        };
        self.refusals.truncate(REFUSALS - 1);
        self.refusals.push_back(Report {
            command_id: create.command_id,
            exit: Some(refusal.exit(0)),
            stdin_closed: true,
            stdout_end: Some(0),
            stderr_end: Some(0),
            stdout_at_exit: Some(0),
            stderr_at_exit: Some(0),
            ..Report::default()
        });
    }

    /// The session, if it is not forgotten.
    pub fn session(&self, serial: Serial) -> Option<&Session> {
        self.sessions.get(&serial)
    }

    /// Every session and what names it.
    pub fn sessions(&self) -> impl Iterator<Item = (Serial, &Session)> {
        self.sessions
            .iter()
            .map(|(serial, session)| (*serial, session))
    }

    /// The command has this pid in the guest's eyes; whether it runs is not known yet.
    pub fn spawned(&mut self, serial: Serial, pid: i32) {
        self.change(serial, |session| session.spawned(pid));
    }

    /// The command runs.
    pub fn started(&mut self, serial: Serial) {
        self.change(serial, Session::started);
    }

    /// The command could not be started.
    pub fn failed(&mut self, serial: Serial, failure: &Failure, now: u64) {
        self.change(serial, |session| session.failed(failure, now));
    }

    /// The command ended with `status` of wait(2), while so many bytes of its streams lay unread.
    pub fn exited(&mut self, serial: Serial, status: i32, pending: [usize; 2], now: u64) {
        self.change(serial, |session| {
            session.exited(status, pending[0], pending[1], now);
        });
    }

    /// The command wrote; at most the stream's room may be pushed.
    pub fn output(&mut self, serial: Serial, stream: Stream, bytes: &[u8]) {
        self.change(serial, |session| {
            session.output_mut(stream).push(bytes);
        });
    }

    /// Every writer of the stream has closed it.
    pub fn output_ended(&mut self, serial: Serial, stream: Stream) {
        self.change(serial, |session| {
            session.output_mut(stream).finish();
            session.due = true;
        });
    }

    /// The command took this much of its pending stdin.
    pub fn stdin_drained(&mut self, serial: Serial, count: usize) {
        self.change(serial, |session| session.drained(count));
    }

    /// The command's stdin was closed, by either side.
    pub fn stdin_closed(&mut self, serial: Serial) {
        self.change(serial, |session| {
            session.stdin.close();
            session.due = true;
        });
    }

    fn change(&mut self, serial: Serial, change: impl FnOnce(&mut Session)) {
        if let Some(session) = self.sessions.get_mut(&serial) {
            change(session);
        }
    }

    /// Set-up was done, or what of it failed.
    pub fn set_up(&mut self, outcome: SetupDone) {
        self.setup_done = Some(outcome);
    }

    /// The process that all sessions lived under is gone.
    pub fn spawner_killed(&mut self, message: String, now: u64) {
        self.fault = Some(Fault {
            kind: FaultKind::SpawnerKilled as i32,
            message,
        });
        self.fault_due = true;
        for session in self.sessions.values_mut() {
            session.exited(nix::libc::SIGKILL, 0, 0, now);
        }
    }

    /// Sessions whose time has run out.
    pub fn overdue(&mut self, now: u64) -> Vec<Effect> {
        self.sessions
            .iter_mut()
            .filter_map(|(serial, session)| session.runs_out(now).then_some(Effect::Kill(*serial)))
            .collect()
    }

    /// The next running time at which [`Self::overdue`] has something to say.
    pub fn next_deadline(&self) -> Option<u64> {
        self.sessions.values().filter_map(Session::deadline).min()
    }

    /// Bytes to be written to the channel, made up to a bound from what waits: answers and reports first, then output of the
    /// sessions in turn.
    pub fn unwritten(&mut self) -> &[u8] {
        if self.open {
            self.fill();
        }
        &self.outbox[self.written..]
    }

    /// The channel took this many of the unwritten bytes.
    pub fn wrote(&mut self, count: usize) {
        self.written = (self.written + count).min(self.outbox.len());
        if self.written == self.outbox.len() {
            self.outbox.clear();
            self.written = 0;
        }
    }

    fn fill(&mut self) {
        if !self.outbox.is_empty() {
            return;
        }
        if let Some(ping) = self.pong.take() {
            self.send(UpKind::Pong(ping));
        }
        if let Some(done) = self.setup_done.take() {
            self.send(UpKind::SetupDone(done));
        }
        if let Some(fault) = self.fault.clone().filter(|_| self.fault_due) {
            self.fault_due = false;
            self.send(UpKind::Fault(fault));
        }
        while let Some(report) = self.refusals.pop_front() {
            self.send(UpKind::Report(report));
        }
        let due: Vec<Report> = self
            .sessions
            .values_mut()
            .filter(|session| session.due)
            .map(Session::report)
            .collect();
        for report in due {
            self.send(UpKind::Report(report));
        }
        self.fill_output();
    }

    /// One block per stream and session in each round, beginning behind the session that came last.
    fn fill_output(&mut self) {
        loop {
            let start = self.cursor;
            let round = [
                (Bound::Excluded(start), Bound::Unbounded),
                (Bound::Unbounded, Bound::Included(start)),
            ];
            let mut sent = false;
            for range in round {
                for (serial, session) in self.sessions.range_mut(range) {
                    for stream in [Stream::Stdout, Stream::Stderr] {
                        if let Some((offset, data)) = session.output(stream).unsent(MAX_DATA) {
                            let count = data.len();
                            // An error would mean a frame beyond the bound, which MAX_DATA rules out.
                            sent |=
                                encode_data(&mut self.outbox, &session.id, stream, offset, data)
                                    .is_ok();
                            session.output_mut(stream).mark_sent(count);
                        }
                    }
                    self.cursor = *serial;
                    if self.outbox.len() >= OUTBOX {
                        return;
                    }
                }
            }
            if !sent {
                return;
            }
        }
    }

    fn send(&mut self, kind: UpKind) {
        // What is said here is bounded well below a frame: MAX_SESSIONS reports with MAX_MESSAGE each.
        if let Ok(frame) = encode(&Up { kind: Some(kind) }) {
            self.outbox.extend_from_slice(&frame);
        }
    }
}

#[cfg(test)]
mod tests;
