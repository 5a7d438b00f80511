//! What both sides have of each other's bytes. No I/O.

use std::collections::VecDeque;
use std::time::Duration;

use crate::agent::v1alpha1::session_request::Kind as Ask;
use crate::agent::v1alpha1::session_response::Kind as Reply;
use crate::agent::v1alpha1::{
    Exit, Kill, Open, SendSignal, SessionRequest, SessionResponse, Stream, TerminalSize,
};

use super::output::Cursor;
use super::stdin::Window;

/// A connection that stood for so long was one, whatever it brought.
const STANDS: Duration = Duration::from_secs(1);
/// Signals and the like that wait for a connection; more are dropped, the oldest first.
const CONTROLS: usize = 16;

/// One session, over all its connections.
#[derive(Debug)]
pub struct State {
    open: Open,
    stdout: Cursor,
    stderr: Cursor,
    stdin: Window,
    /// The agent has answered `opened` at least once: the command exists and must not be asked for again.
    exists: bool,
    connection: Connection,
    /// How often it was asked for the command.
    asked: u32,
    /// The command's name was made up by this program, and is nobody else's.
    made_up: bool,
    controls: VecDeque<Ask>,
}

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Connection {
    /// The agent has not answered on it.
    Opening,
    /// It has.
    Attached,
    /// Bytes came further over it, in either direction.
    Moved,
}

/// What to do with a reply.
#[derive(Debug, PartialEq)]
pub enum Received {
    /// Nothing.
    Nothing,
    /// The connection stands.
    Attached {
        /// The command was made by this request, with the terminal's size that it named.
        created: bool,
        /// The user named it, and there was one of that name before it was asked for.
        existed: bool,
    },
    /// Bytes to write after telling that some are lost.
    Output {
        /// Where to.
        stream: Stream,
        /// How many bytes before are lost.
        lost: u64,
        /// The bytes; may be empty.
        data: Vec<u8>,
    },
    /// Another client sends the command's stdin.
    TakenOver,
    /// The command's end.
    Exit(Exit),
}

impl State {
    /// A session that `open` asks for; its offsets are overwritten.
    pub fn new(open: Open) -> Self {
        Self {
            open,
            stdout: Cursor::from_start(),
            stderr: Cursor::from_start(),
            stdin: Window::default(),
            exists: false,
            connection: Connection::Opening,
            asked: 0,
            made_up: false,
            controls: VecDeque::new(),
        }
    }

    /// The same under a name that no other command has.
    pub fn made_up(open: Open) -> Self {
        Self {
            made_up: true,
            ..Self::new(open)
        }
    }

    /// A reader of output alone; `tail`: it begins wherever the first output begins.
    pub fn reader(tail: bool) -> Self {
        let mut state = Self::new(Open::default());
        if tail {
            state.stdout = Cursor::from_first();
            state.stderr = Cursor::from_first();
        }
        state
    }

    /// Name of the session.
    pub fn command_id(&self) -> &str {
        &self.open.command_id
    }

    /// Whether the command is known to have been taken by the agent.
    pub fn exists(&self) -> bool {
        self.exists
    }

    /// The connection is gone, which stood for so long. Whether it was one: the agent had answered on it, and then it stood for a
    /// while or bytes came further over it. Else it is part of the outage before it.
    pub fn detach(&mut self, stood: Duration) -> bool {
        match std::mem::replace(&mut self.connection, Connection::Opening) {
            Connection::Opening => false,
            Connection::Attached => stood >= STANDS,
            Connection::Moved => true,
        }
    }

    /// Where stdout and stderr go on; nothing of one that begins wherever it begins.
    pub fn offsets(&self) -> [Option<u64>; 2] {
        [self.stdout.next(), self.stderr.next()]
    }

    /// The first request of a new connection.
    pub fn open(&mut self) -> SessionRequest {
        self.connection = Connection::Opening;
        let mut open = self.open.clone();
        if self.exists {
            // Only attach: should the agent have forgotten the session it must say so and not run the command again.
            open.command = None;
            open.kill_on_detach_ms = 0;
        }
        self.asked += u32::from(open.command.is_some());
        open.stdout_offset = self.stdout.next().unwrap_or(0);
        open.stderr_offset = self.stderr.next().unwrap_or(0);
        ask(Ask::Open(open))
    }

    /// What the agent said. An error is a sentence about what it did wrong.
    pub fn receive(&mut self, response: SessionResponse) -> Result<Received, String> {
        // A kind that this build does not know is skipped, as protobuf wants it.
        let Some(kind) = response.kind else {
            return Ok(Received::Nothing);
        };
        match kind {
            Reply::Opened(opened) => {
                // Asked for the second time it may be the one of the first time, whose answer was lost.
                let existed = !self.exists && self.asked == 1 && !opened.created;
                if existed && self.made_up {
                    return Err(format!(
                        "it has another command of the name {}, which this program made up",
                        self.open.command_id
                    ));
                }
                match opened.stdin_offset.filter(|_| self.open.stdin) {
                    Some(offset) if self.exists => {
                        self.stdin.resume(offset).map_err(|wrong| {
                            format!(
                                "it wants stdin from byte {}, this program has bytes {} to {}",
                                wrong.offset,
                                wrong.kept.start(),
                                wrong.kept.end()
                            )
                        })?;
                    }
                    Some(offset) => self.stdin.begin(offset),
                    None => self.stdin.close(),
                }
                self.open.command_id = opened.command_id;
                self.open.input = opened.input;
                self.exists = true;
                self.connection = Connection::Attached;
                Ok(Received::Attached {
                    created: opened.created,
                    existed,
                })
            }
            Reply::Output(output) => {
                let stream = stream(output.stream)?;
                let new = self
                    .cursor(stream)
                    .take(output.offset, output.data)
                    .ok_or_else(|| format!("output at byte {} has no end", output.offset))?;
                self.moved(new.data.len());
                Ok(Received::Output {
                    stream,
                    lost: new.lost,
                    data: new.data,
                })
            }
            Reply::Gap(gap) => {
                let stream = stream(gap.stream)?;
                Ok(Received::Output {
                    stream,
                    lost: self.cursor(stream).skip(gap.offset, gap.end),
                    data: Vec::new(),
                })
            }
            Reply::StdinTaken(taken) if taken.taken_over => {
                // Not asked for again on a later connection either: two programs would take it from each other for ever.
                self.open.stdin = false;
                self.stdin.close();
                Ok(Received::TakenOver)
            }
            Reply::StdinTaken(taken) => {
                let further = self.stdin.acknowledge(taken.offset).map_err(|wrong| {
                    format!(
                        "it says that it has stdin up to byte {}, it was sent up to {}",
                        wrong.offset,
                        wrong.kept.end()
                    )
                })?;
                self.moved(further);
                if taken.closed {
                    self.stdin.close();
                }
                Ok(Received::Nothing)
            }
            Reply::Exit(exit) => Ok(Received::Exit(exit)),
        }
    }

    fn is_attached(&self) -> bool {
        self.connection != Connection::Opening
    }

    fn moved(&mut self, bytes: usize) {
        if self.is_attached() && bytes > 0 {
            self.connection = Connection::Moved;
        }
    }

    fn cursor(&mut self, stream: Stream) -> &mut Cursor {
        match stream {
            Stream::Stderr => &mut self.stderr,
            Stream::Stdout | Stream::Unspecified => &mut self.stdout,
        }
    }

    /// How many bytes of stdin may be read.
    pub fn room(&self) -> usize {
        if self.open.stdin {
            self.stdin.room()
        } else {
            0
        }
    }

    /// Whether more stdin can be of use: the command has one, this client sends it, and neither side has closed it.
    pub fn takes_stdin(&self) -> bool {
        self.open.stdin && self.stdin.is_open()
    }

    /// Stdin that was read; empty: its end. Where none is taken it goes nowhere.
    pub fn push_stdin(&mut self, data: &[u8]) {
        if !self.takes_stdin() {
            return;
        }
        if data.is_empty() {
            self.stdin.end();
        } else {
            self.stdin.push(data);
        }
    }

    /// Sends a signal to the command, now or when connected again.
    pub fn signal(&mut self, number: i32) {
        self.control(Ask::Signal(SendSignal { number }));
    }

    /// Kills the command's tree, now or when connected again.
    pub fn kill(&mut self) {
        self.control(Ask::Kill(Kill {}));
    }

    /// The terminal has another size. Only the last one counts.
    pub fn resize(&mut self, size: TerminalSize) {
        self.controls
            .retain(|control| !matches!(control, Ask::Resize(_)));
        self.control(Ask::Resize(size));
    }

    fn control(&mut self, control: Ask) {
        if self.controls.len() == CONTROLS {
            self.controls.pop_front();
        }
        self.controls.push_back(control);
    }

    /// Whether [`Self::next_request`] has something.
    pub fn has_next(&self) -> bool {
        self.is_attached()
            && (!self.controls.is_empty() || (self.open.stdin && self.stdin.has_next()))
    }

    /// The next request; nothing before the agent has answered.
    pub fn next_request(&mut self) -> Option<SessionRequest> {
        if !self.is_attached() {
            return None;
        }
        if let Some(control) = self.next_control() {
            return Some(control);
        }
        if !self.open.stdin {
            return None;
        }
        self.stdin.next().map(|stdin| ask(Ask::Stdin(stdin)))
    }

    /// The next request that is not stdin.
    pub fn next_control(&mut self) -> Option<SessionRequest> {
        if !self.is_attached() {
            return None;
        }
        self.controls.pop_front().map(ask)
    }
}

fn ask(kind: Ask) -> SessionRequest {
    SessionRequest { kind: Some(kind) }
}

fn stream(number: i32) -> Result<Stream, String> {
    match Stream::try_from(number) {
        Ok(Stream::Stdout) => Ok(Stream::Stdout),
        Ok(Stream::Stderr) => Ok(Stream::Stderr),
        Ok(Stream::Unspecified) | Err(_) => Err(format!("output of stream {number}")),
    }
}

#[cfg(test)]
mod tests {
    use crate::agent::v1alpha1::{Command, Gap, Opened, Output, Stdin, StdinTaken};

    use super::*;

    fn state() -> State {
        State::new(Open {
            command_id: "one".into(),
            command: Some(Command::default()),
            stdin: true,
            kill_on_detach_ms: 1,
            ..Open::default()
        })
    }

    fn opened(stdin_offset: u64) -> SessionResponse {
        reply(Reply::Opened(Opened {
            command_id: "one".into(),
            created: true,
            stdin_offset: Some(stdin_offset),
            input: 3,
        }))
    }

    fn reply(kind: Reply) -> SessionResponse {
        SessionResponse { kind: Some(kind) }
    }

    fn output(stream: Stream, offset: u64, data: &[u8]) -> SessionResponse {
        reply(Reply::Output(Output {
            stream: stream.into(),
            offset,
            data: data.to_vec(),
        }))
    }

    fn open(state: &mut State) -> Open {
        let Some(Ask::Open(open)) = state.open().kind else {
            panic!("open expected");
        };
        open
    }

    #[test]
    fn a_command_is_asked_for_until_it_exists_and_never_after() {
        let mut state = state();
        assert!(open(&mut state).command.is_some());
        assert!(open(&mut state).command.is_some());
        state.receive(opened(0)).unwrap();
        let again = open(&mut state);
        assert_eq!((again.command, again.kill_on_detach_ms), (None, 0));
        assert_eq!(again.command_id, "one");
    }

    #[test]
    fn a_connection_that_brings_nothing_is_part_of_the_outage() {
        let mut state = state();
        let short = STANDS / 2;
        assert!(!state.detach(STANDS), "nobody answered");
        open(&mut state);
        state.receive(opened(0)).unwrap();
        assert!(!state.detach(short));
        for reply in [
            output(Stream::Stdout, 0, b"x"),
            reply(Reply::StdinTaken(StdinTaken {
                offset: 1,
                ..StdinTaken::default()
            })),
        ] {
            open(&mut state);
            state.push_stdin(b"x");
            state.receive(opened(0)).unwrap();
            state.receive(reply).unwrap();
            assert!(state.detach(short));
        }
        open(&mut state);
        state.receive(opened(1)).unwrap();
        state.receive(output(Stream::Stdout, 0, b"x")).unwrap();
        assert!(!state.detach(short), "it was there before");
        open(&mut state);
        state.receive(opened(1)).unwrap();
        assert!(state.detach(STANDS));
    }

    #[test]
    fn a_command_that_was_there_before_is_told_or_refused() {
        let there = || {
            reply(Reply::Opened(Opened {
                command_id: "one".into(),
                ..Opened::default()
            }))
        };
        let attached = |existed| {
            Ok(Received::Attached {
                created: false,
                existed,
            })
        };
        let mut named = state();
        open(&mut named);
        assert_eq!(named.receive(there()), attached(true));
        open(&mut named);
        assert_eq!(named.receive(there()), attached(false), "told once");

        let command = || Open {
            command: Some(Command::default()),
            ..Open::default()
        };
        let mut made_up = State::made_up(command());
        open(&mut made_up);
        assert!(made_up.receive(there()).is_err());
        // Its first answer was lost: it is its own.
        let mut made_up = State::made_up(command());
        open(&mut made_up);
        open(&mut made_up);
        assert_eq!(made_up.receive(there()), attached(false));
    }

    #[test]
    fn a_second_connection_goes_on_at_the_next_bytes() {
        let mut state = state();
        state.receive(opened(4)).unwrap();
        state.push_stdin(b"hello");
        let first = state.next_request();
        state.receive(output(Stream::Stdout, 0, b"abc")).unwrap();
        state.receive(output(Stream::Stderr, 0, b"x")).unwrap();
        let again = open(&mut state);
        assert_eq!((again.stdout_offset, again.stderr_offset), (3, 1));
        assert_eq!(again.input, 3, "so that it is not taken from a later one");
        assert!(
            !state.has_next(),
            "nothing is sent before the agent answers"
        );
        state.receive(opened(6)).unwrap();
        let stdin = |offset, data: &[u8]| {
            Some(ask(Ask::Stdin(Stdin {
                offset,
                data: data.to_vec(),
                end: false,
            })))
        };
        assert_eq!(first, stdin(4, b"hello"));
        assert_eq!(state.next_request(), stdin(6, b"llo"));
    }

    #[test]
    fn what_the_agent_took_is_kept_until_the_sandbox_has_it() {
        let mut state = state();
        state.receive(opened(0)).unwrap();
        state.push_stdin(b"hello");
        state.next_request();
        // The connection breaks, and then the agent, which had all of it in its memory.
        state.receive(opened(5)).unwrap();
        assert_eq!(state.next_request(), None);
        state.receive(opened(2)).unwrap();
        let Some(Ask::Stdin(stdin)) = state.next_request().and_then(|next| next.kind) else {
            panic!("stdin expected");
        };
        assert_eq!((stdin.offset, &stdin.data[..]), (2, &b"llo"[..]));
    }

    #[test]
    fn stdin_that_another_client_took_over_is_not_sent_or_asked_for_again() {
        let mut state = state();
        state.receive(opened(0)).unwrap();
        state.push_stdin(b"hello");
        let taken = reply(Reply::StdinTaken(StdinTaken {
            closed: true,
            taken_over: true,
            ..StdinTaken::default()
        }));
        assert_eq!(state.receive(taken), Ok(Received::TakenOver));
        assert!(!state.has_next() && state.room() == 0);
        assert!(!open(&mut state).stdin);
    }

    #[test]
    fn the_stdin_of_a_command_that_has_ended_goes_nowhere() {
        let mut state = state();
        state.receive(opened(0)).unwrap();
        state.push_stdin(b"hello");
        let ended = reply(Reply::Opened(Opened {
            command_id: "one".into(),
            ..Opened::default()
        }));
        assert!(state.receive(ended).is_ok());
        assert_eq!(state.next_request(), None);
    }

    #[test]
    fn what_is_lost_is_told() {
        let mut state = state();
        let gap = reply(Reply::Gap(Gap {
            stream: Stream::Stderr.into(),
            offset: 0,
            end: 7,
        }));
        assert_eq!(
            state.receive(gap),
            Ok(Received::Output {
                stream: Stream::Stderr,
                lost: 7,
                data: Vec::new()
            })
        );
        assert_eq!(
            state.receive(output(Stream::Stdout, 5, b"x")),
            Ok(Received::Output {
                stream: Stream::Stdout,
                lost: 5,
                data: b"x".to_vec()
            })
        );
    }

    #[test]
    fn wrong_replies_are_errors() {
        let mut state = state();
        state.receive(opened(0)).unwrap();
        assert!(state.receive(output(Stream::Unspecified, 0, b"x")).is_err());
        let taken = reply(Reply::StdinTaken(StdinTaken {
            offset: 1,
            ..StdinTaken::default()
        }));
        assert!(state.receive(taken).is_err());
        assert!(state.receive(opened(9)).is_err());
        assert_eq!(
            state.receive(SessionResponse { kind: None }),
            Ok(Received::Nothing)
        );
    }

    #[test]
    fn controls_wait_for_a_connection_and_are_bounded() {
        let mut state = state();
        for rows in 0..100 {
            state.resize(TerminalSize { rows, columns: 1 });
            state.signal(2);
        }
        assert_eq!(state.next_request(), None);
        state.receive(opened(0)).unwrap();
        let mut sizes = 0;
        let mut count = 0;
        while let Some(next) = state.next_request() {
            sizes += usize::from(matches!(next.kind, Some(Ask::Resize(_))));
            count += 1;
        }
        assert_eq!((count, sizes), (CONTROLS, 1));
    }
}
