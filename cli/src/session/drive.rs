//! Moves bytes between the agent and the local side until the command ends.

use std::collections::VecDeque;
use std::time::Duration;

use cloche_proto::agent::v1alpha1::{Exit, SessionResponse, Stream};
use cloche_proto::session::{Received, State};
use tokio::signal::unix::SignalKind;
use tokio::time::Instant;

use super::insistence::Insistence;
use crate::backend::{Backend, Connection, Failure, Outage};
use crate::error::Error;
use crate::terminal::{self, Event, Events, INPUT_CHUNK, Input, Piece, Sink, notice};

/// How long the agent gets to confirm the last request of a user who leaves.
const FAREWELL: Duration = Duration::from_secs(1);

/// ^C, as a terminal in raw mode sends it.
const INTERRUPT: u8 = 3;

/// How it went.
#[derive(Debug)]
pub(crate) enum Left {
    /// The command ended.
    Exit(Exit),
    /// The user left before, by this signal.
    Detached(i32),
}

/// The local side.
#[derive(Debug)]
pub(crate) struct Local {
    /// stdin.
    pub(crate) input: Input,
    /// stdout and stderr.
    pub(crate) sink: Sink,
    /// Signals and sizes.
    pub(crate) events: Events,
    /// The command has a terminal: sizes are passed on.
    pub(crate) tty: bool,
    /// A command that the user leaves is killed.
    pub(crate) kill_when_left: bool,
}

/// Why a connection ended without the command's end.
enum Broken {
    /// It broke; the agent may come back.
    Gone(String),
    /// There was none to break, and there may be one soon.
    Absent(Error),
    /// Nothing helps.
    Final(Error),
}

/// Runs a session in sandbox `name` to its end, and writes all of its output. `operation` is what to call it in an error: verb and
/// object.
pub(crate) async fn drive(
    backend: &Backend,
    name: &str,
    state: State,
    local: &mut Local,
    operation: &str,
) -> Result<Left, Error> {
    let mut session = Session {
        backend,
        name,
        state,
        local,
        operation,
        insistence: Insistence::default(),
        away: false,
        reached: false,
        overtaken: false,
        held: VecDeque::new(),
    };
    let left = session.run().await;
    match left {
        // A reader that stands still must not keep a user who leaves.
        Ok(Left::Detached(signal)) if signal != SignalKind::pipe().as_raw_value() => {
            let written = tokio::time::timeout(FAREWELL, session.finish()).await;
            written.unwrap_or(Ok(()))?;
        }
        // Also after an error, so that its message comes after the output.
        Ok(_) | Err(_) => session.finish().await?,
    }
    left
}

struct Session<'a> {
    backend: &'a Backend,
    name: &'a str,
    state: State,
    local: &'a mut Local,
    operation: &'a str,
    insistence: Insistence,
    /// A connection broke and there is no other yet.
    away: bool,
    /// There was a connection, by which the command may have been begun.
    reached: bool,
    /// Another client sends the command's stdin.
    overtaken: bool,
    /// Output, and what there is to say of it, that waits for room; meanwhile no more is taken from the agent, which then waits
    /// too. It counts as received, so it outlives the connection that it came by.
    held: VecDeque<Piece>,
}

impl Session<'_> {
    async fn run(&mut self) -> Result<Left, Error> {
        let mut outage: Option<Outage> = None;
        loop {
            let begun = Instant::now();
            let (last, absent) = match self.once(outage.is_none()).await {
                Ok(left) => return Ok(left),
                Err(Broken::Final(problem)) => return Err(problem),
                Err(Broken::Gone(last)) => (last, None),
                Err(Broken::Absent(problem)) => (problem.to_string(), Some(problem)),
            };
            if self.state.detach(begun.elapsed()) {
                outage = None;
            }
            self.away = true;
            let outage = outage.get_or_insert_with(Outage::begin);
            if let Some(problem) = absent.filter(|_| !self.reached && outage.is_an_absence()) {
                return Err(problem);
            }
            if outage.is_too_long() {
                return Err(Error::Lost {
                    operation: self.operation.to_owned(),
                    seconds: outage.seconds(),
                    last,
                    left: self.what_is_left(),
                });
            }
            if outage.is_worth_a_word() {
                self.local
                    .sink
                    .say(&format!("the agent does not answer, trying on ({last})"));
            }
            let pause = tokio::time::sleep(outage.pause());
            if let Err(left) = self.meanwhile(pause).await {
                return Ok(left);
            }
        }
    }

    /// One connection. An agent that is not there at the `first` one is more likely a wrong path than a restart.
    async fn once(&mut self, first: bool) -> Result<Left, Broken> {
        let attempt = self.backend.session(self.name, self.state.open());
        let connection = match self.meanwhile(attempt).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(Failure::Unconnected(problem))) if first => return Err(Broken::Final(problem)),
            Ok(Err(failure)) => return Err(self.broken(failure)),
            Err(left) => return Ok(left),
        };
        self.reached = true;
        self.pass(connection).await
    }

    /// Waits for `work` while the user may type and send signals. The error: the user left.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Left> {
        let mut work = std::pin::pin!(work);
        loop {
            let typed = tokio::select! {
                done = &mut work => return Ok(done),
                // Cancel safe as their documentation says.
                event = self.local.events.next() => {
                    if let Some(signal) = self.on_event(event) {
                        return Err(Left::Detached(signal));
                    }
                    continue;
                }
                read = self.local.input.next(), if self.wants_input() => read,
            };
            if let Some(signal) = self.on_keys(&typed) {
                return Err(Left::Detached(signal));
            }
            self.on_input(typed);
        }
    }

    /// Whether input is read: there is room for it, or it is a terminal in raw mode, which says by a key that the user leaves.
    fn wants_input(&self) -> bool {
        self.state.room() >= INPUT_CHUNK || (self.overtaken && self.local.tty)
    }

    /// The signal by which the user leaves, if so. In raw mode ^C is a key, and the only one that means this program while keys
    /// do not reach the command.
    fn on_keys(&mut self, read: &std::io::Result<Vec<u8>>) -> Option<i32> {
        let keys = read.as_deref().unwrap_or_default();
        let is_interrupt = |key: &&u8| self.local.tty && **key == INTERRUPT;
        let interrupts = keys.iter().filter(is_interrupt).count();
        let signal = SignalKind::interrupt().as_raw_value();
        (0..interrupts).find_map(|_| self.insist(signal))
    }

    /// Passes everything on over a connection, to the command's end or the connection's.
    async fn pass(&mut self, mut connection: Connection) -> Result<Left, Broken> {
        loop {
            // Every arm is cancel safe: a half received reply stays in its stream, and the others are channels.
            tokio::select! {
                reply = connection.replies.next(), if self.held.is_empty() => {
                    let reply = match reply {
                        Ok(Some(reply)) => reply,
                        Ok(None) => return Err(Broken::Gone("it closed the stream".to_owned())),
                        Err(failure) => return Err(self.broken(failure)),
                    };
                    match self.receive(reply)? {
                        Received::Attached { created, existed } => self.on_attached(created, existed),
                        Received::Nothing => {}
                        Received::TakenOver => self.on_taken_over(),
                        Received::Output { stream, lost, data } => {
                            if lost > 0 {
                                self.held.push_back(notice(&format!(
                                    "{lost} bytes of {} are lost: they are no longer kept",
                                    name(stream)
                                )));
                            }
                            if !data.is_empty() {
                                self.held.push_back((stream, data));
                            }
                        }
                        Received::Exit(exit) => return Ok(Left::Exit(exit)),
                    }
                }
                room = self.local.sink.room(), if !self.held.is_empty() => {
                    let Some(room) = room else {
                        // As a local writer to a pipe without readers would feel it. Why it failed, `finish` tells.
                        let pipe = SignalKind::pipe().as_raw_value();
                        self.state.signal(pipe);
                        self.farewell(connection).await;
                        return Ok(Left::Detached(pipe));
                    };
                    if let Some(piece) = self.held.pop_front() {
                        drop(room.send(piece));
                    }
                }
                permit = connection.requests.clone().reserve_owned(), if self.state.has_next() => {
                    let Ok(permit) = permit else {
                        return Err(Broken::Gone("it closed the stream".to_owned()));
                    };
                    if let Some(request) = self.state.next_request() {
                        drop(permit.send(request));
                    }
                }
                event = self.local.events.next() => {
                    if let Some(signal) = self.on_event(event) {
                        return Ok(self.leave(connection, signal).await);
                    }
                }
                read = self.local.input.next(), if self.wants_input() => {
                    if self.overtaken && let Some(signal) = self.on_keys(&read) {
                        return Ok(self.leave(connection, signal).await);
                    }
                    self.on_input(read);
                }
            }
        }
    }

    fn on_attached(&mut self, created: bool, existed: bool) {
        self.away = false;
        // One that was there before has the size of whoever was attached last.
        if self.local.tty && !created {
            self.state.resize(terminal::size());
        }
        if existed {
            self.held.push_back(notice(&format!(
                "attached to command {}, which was there already: the one given now is not run",
                self.state.command_id()
            )));
        }
    }

    fn on_taken_over(&mut self) {
        self.overtaken = true;
        self.held.push_back(notice(
            "standard input was taken over by another client: none is passed on from here any more",
        ));
    }

    fn receive(&mut self, reply: SessionResponse) -> Result<Received, Broken> {
        self.state.receive(reply).map_err(|message| {
            Broken::Final(Error::Wrong {
                operation: self.operation.to_owned(),
                message,
            })
        })
    }

    /// Leaves a command that runs. One that another client has taken over is that client's.
    async fn leave(&mut self, connection: Connection, signal: i32) -> Left {
        if self.local.kill_when_left && !self.overtaken {
            self.state.kill();
        }
        self.farewell(connection).await;
        Left::Detached(signal)
    }

    /// Sends what still waits to be sent, but not stdin, and gives the agent a moment to act on it.
    async fn farewell(&mut self, mut connection: Connection) {
        let last = async {
            while let Some(request) = self.state.next_control() {
                if connection.requests.send(request).await.is_err() {
                    return;
                }
            }
            while let Ok(Some(reply)) = connection.replies.next().await {
                if matches!(self.state.receive(reply), Ok(Received::Exit(_)) | Err(_)) {
                    return;
                }
            }
        };
        // Late or not: the user leaves.
        drop(tokio::time::timeout(FAREWELL, last).await);
    }

    /// The signal by which the user leaves, if so.
    fn on_event(&mut self, event: Event) -> Option<i32> {
        match event {
            Event::Resized => {
                if self.local.tty {
                    self.state.resize(terminal::size());
                }
                None
            }
            Event::Signal(number) => {
                self.state.signal(number);
                if terminal::is_hangup(number) {
                    return Some(number);
                }
                if terminal::asks_to_go(number) {
                    return self.insist(number);
                }
                None
            }
        }
    }

    fn insist(&mut self, signal: i32) -> Option<i32> {
        let insists = self.insistence.ask(Instant::now());
        let nothing_yet = self.away && !self.state.exists();
        (nothing_yet || insists).then_some(signal)
    }

    fn on_input(&mut self, read: std::io::Result<Vec<u8>>) {
        let data = read.unwrap_or_else(|problem| {
            self.held.push_back(notice(&format!(
                "cannot read standard input, it ends here for the command: {problem}"
            )));
            Vec::new()
        });
        self.state.push_stdin(&data);
    }

    fn broken(&self, failure: Failure) -> Broken {
        match failure {
            Failure::Broken(message) => Broken::Gone(message),
            Failure::Unconnected(problem) => Broken::Gone(problem.to_string()),
            Failure::Absent(problem) => Broken::Absent(problem),
            failure @ (Failure::Refused(_) | Failure::Wrong(_)) => {
                Broken::Final(failure.error(self.operation))
            }
        }
    }

    fn what_is_left(&self) -> String {
        if !self.state.exists() {
            return "whether the command was started is not known".to_owned();
        }
        format!(
            "the command may still run: attach with --command-id {}",
            self.state.command_id()
        )
    }

    /// Waits until all output is written; a user who insists need not wait.
    async fn finish(&mut self) -> Result<(), Error> {
        loop {
            tokio::select! {
                outcome = self.local.sink.finish(&mut self.held) => return outcome,
                event = self.local.events.next() => {
                    if self.on_event(event).is_some() {
                        return Ok(());
                    }
                }
            }
        }
    }
}

fn name(stream: Stream) -> &'static str {
    match stream {
        Stream::Stderr => "standard error",
        Stream::Stdout | Stream::Unspecified => "standard output",
    }
}
