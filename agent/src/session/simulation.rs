//! A holder for tests: what cloche-init does on its side of the channel, without processes. Bytes in, bytes out.

use std::collections::{BTreeMap, VecDeque};

use cloche_proto::frame::codec::{self, Decoder};
use cloche_proto::frame::{self, DownKind, MAX_STREAM_BUFFER, Up, UpKind};

#[derive(Debug, Default)]
pub(super) struct Output {
    /// All that the command ever printed.
    pub(super) printed: Vec<u8>,
    pub(super) acked: u64,
    sent: u64,
    pub(super) end: Option<u64>,
    pub(super) at_exit: Option<u64>,
}

impl Output {
    fn room(&self) -> usize {
        MAX_STREAM_BUFFER - (self.printed.len() - usize::try_from(self.acked).unwrap())
    }
}

#[derive(Debug, Default)]
pub(super) struct Command {
    pub(super) outputs: [Output; 2],
    pub(super) exit: Option<frame::Exit>,
    pub(super) stdin: Vec<u8>,
    pub(super) stdin_end: bool,
    drained: u64,
    begun_ms: u64,
    pub(super) signals: Vec<(i32, i32)>,
    pub(super) dirty: bool,
}

/// The holder.
#[derive(Debug, Default)]
pub(super) struct Holder {
    decoder: Decoder,
    pub(super) commands: BTreeMap<String, Command>,
    /// How often a session of each id was begun.
    pub(super) begun: BTreeMap<String, u32>,
    /// Bytes that are to go into the pipe.
    pub(super) out: VecDeque<u8>,
    greeted: bool,
    /// Its running time; a test lets it pass.
    pub(super) clock_ms: u64,
    pub(super) setups: u32,
    /// A test has it send what is not so: what the agent makes of that is not checked here.
    pub(super) lies: bool,
    /// Ended sessions that the agent had forgotten.
    pub(super) forgotten: Vec<(String, Command)>,
}

impl Holder {
    /// Another pair of pipes.
    pub(super) fn new_pipes(&mut self) {
        self.decoder = Decoder::default();
        self.out.clear();
        self.greeted = false;
    }

    pub(super) fn send(&mut self, kind: UpKind) {
        self.out
            .extend(codec::encode(&Up { kind: Some(kind) }).unwrap());
    }

    pub(super) fn on_bytes(&mut self, bytes: &[u8]) {
        // In pieces, as it may be read.
        for piece in bytes.chunks(64 * 1024) {
            self.decoder.push(piece);
            while let Some(down) = self
                .decoder
                .next::<frame::Down>()
                .expect("the agent's frames")
            {
                self.on_frame(down.kind.expect("a kind"));
            }
        }
        self.pump();
    }

    fn on_frame(&mut self, kind: DownKind) {
        match kind {
            DownKind::Hello(hello) => {
                self.out.clear();
                self.out.extend(&hello.nonce);
                for command in self.commands.values_mut() {
                    for output in &mut command.outputs {
                        output.sent = output.acked;
                    }
                }
                for held in &hello.held {
                    if let Some(output) = self.output(held) {
                        let offset = held.offset.min(output.printed.len() as u64);
                        output.acked = output.acked.max(offset);
                        output.sent = offset;
                    }
                }
                let sessions = self.commands.iter().map(|(id, c)| c.report(id)).collect();
                self.send(UpKind::HelloAck(frame::HelloAck {
                    nonce: hello.nonce,
                    version: 1,
                    sessions,
                    clock_ms: self.clock_ms,
                }));
                self.greeted = true;
            }
            DownKind::Create(create) => {
                let (begun, begun_ms) = (&mut self.begun, self.clock_ms);
                let command = self
                    .commands
                    .entry(create.command_id.clone())
                    .or_insert_with(|| {
                        *begun.entry(create.command_id.clone()).or_default() += 1;
                        Command {
                            begun_ms,
                            ..Command::default()
                        }
                    });
                command.dirty = true;
            }
            DownKind::Stdin(stdin) => {
                if let Some(command) = self.commands.get_mut(&stdin.command_id) {
                    if stdin.offset == command.stdin.len() as u64 {
                        command.stdin.extend(&stdin.data);
                        assert!(
                            command.stdin.len() as u64 - command.drained
                                <= MAX_STREAM_BUFFER as u64,
                            "beyond the window"
                        );
                        command.stdin_end |= stdin.end;
                    }
                    command.dirty = true;
                }
            }
            DownKind::Ack(ack) => {
                let lies = self.lies;
                if let Some(output) = self.output(&ack) {
                    let printed = output.printed.len() as u64;
                    assert!(lies || ack.offset <= printed, "acknowledged too much");
                    output.acked = output.acked.max(ack.offset.min(printed));
                }
            }
            DownKind::Signal(signal) => {
                if let Some(command) = self.commands.get_mut(&signal.command_id) {
                    command.signals.push((signal.signal, signal.scope));
                }
            }
            DownKind::Resize(_) => {}
            DownKind::Forget(forget) => {
                if self
                    .commands
                    .get(&forget.command_id)
                    .is_some_and(|command| command.exit.is_some())
                {
                    let command = self.commands.remove(&forget.command_id).unwrap();
                    self.forgotten.push((forget.command_id, command));
                }
            }
            DownKind::Ping(ping) => self.send(UpKind::Pong(ping)),
            DownKind::Setup(_) => {
                self.setups += 1;
                self.send(UpKind::SetupDone(frame::SetupDone::default()));
            }
        }
    }

    fn output(&mut self, at: &frame::Position) -> Option<&mut Output> {
        let stream = usize::try_from(at.stream - 1).unwrap();
        Some(&mut self.commands.get_mut(&at.command_id)?.outputs[stream])
    }

    /// Reports and output that are due.
    pub(super) fn pump(&mut self) {
        if !self.greeted {
            return;
        }
        let mut ups = Vec::new();
        for (id, command) in &mut self.commands {
            if std::mem::take(&mut command.dirty) {
                ups.push(UpKind::Report(command.report(id)));
            }
            for (at, output) in command.outputs.iter_mut().enumerate() {
                let from = usize::try_from(output.sent).unwrap();
                for piece in output.printed[from..].chunks(8 * 1024) {
                    ups.push(UpKind::Data(frame::Data {
                        command_id: id.clone(),
                        stream: i32::try_from(at).unwrap() + 1,
                        offset: output.sent,
                        data: piece.to_vec(),
                    }));
                    output.sent += piece.len() as u64;
                }
            }
        }
        for up in ups {
            self.send(up);
        }
    }

    /// The command prints as much of `bytes` as the buffer takes; how much that was.
    pub(super) fn print(&mut self, id: &str, stream: usize, bytes: &[u8]) -> usize {
        let Some(command) = self.commands.get_mut(id) else {
            return 0;
        };
        let output = &mut command.outputs[stream];
        if output.end.is_some() {
            return 0;
        }
        let count = bytes.len().min(output.room());
        output.printed.extend(&bytes[..count]);
        self.pump();
        count
    }

    /// The command ends; its background children too if `close`.
    pub(super) fn exit(&mut self, id: &str, code: i32, close: bool) {
        if let Some(command) = self.commands.get_mut(id) {
            if command.exit.is_none() {
                command.exit = Some(frame::Exit {
                    code,
                    duration_ms: self.clock_ms - command.begun_ms,
                    ..frame::Exit::default()
                });
                for output in &mut command.outputs {
                    output.at_exit = Some(output.printed.len() as u64);
                }
            }
            if close {
                for output in &mut command.outputs {
                    output.end.get_or_insert(output.printed.len() as u64);
                }
            }
            command.dirty = true;
        }
        self.pump();
    }

    /// The command reads all of its stdin.
    pub(super) fn drain_stdin(&mut self, id: &str) {
        if let Some(command) = self.commands.get_mut(id) {
            command.drained = command.stdin.len() as u64;
            command.dirty = true;
        }
        self.pump();
    }
}

impl Holder {
    /// The same; whether stdin has ended.
    pub(super) fn drain_stdin_end(&mut self, id: &str) -> bool {
        self.drain_stdin(id);
        self.commands[id].stdin_end
    }
}

impl Command {
    fn report(&self, id: &str) -> frame::Report {
        frame::Report {
            command_id: id.to_owned(),
            pid: 7,
            exit: self.exit.clone(),
            stdin_offset: self.stdin.len() as u64,
            stdin_closed: self.stdin_end,
            stdout_end: self.outputs[0].end,
            stderr_end: self.outputs[1].end,
            stdout_at_exit: self.outputs[0].at_exit,
            stderr_at_exit: self.outputs[1].at_exit,
            stdin_drained: self.drained,
            begun_ms: self.begun_ms,
        }
    }
}
