//! The agent's side of the protocol with cloche-init. Pure: bytes in, events and frames out.
//!
//! ```text
//!   Idle ──begin──► Seeking ──marker──► Greeting ──HelloAck──► Open
//!                      ▲                    │                   │
//!                      └────────begin───────┴─── Broken ────────┘
//! ```
//!
//! Everything that comes in was written by the sandbox. A claim that cannot be true is refused and counted; what cannot be
//! refused alone (a frame that cannot be read, missing bytes) ends the epoch, and so does the [`STRIKES`]th claim. Nothing
//! here allocates by what a frame claims, but by what it holds.

mod incoming;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use cloche_proto::frame::codec::{self, Decoder};
use cloche_proto::frame::{self, Down, DownKind, NONCE, VERSION};

use super::identity::{CommandId, Stream};
use super::outbox::Outbox;
use super::state::SetUp;
use super::stdin::StdinError;
use super::wire::{Hold, Violation, Wire};

/// Refused claims that are put up with in one epoch.
pub(in crate::session) const STRIKES: u32 = 16;
/// Levels (acknowledgements, stdin, creates) are turned into frames while less than this waits to be written, in bytes.
const OUTBOX_LOW: usize = 256 * 1024;

/// Output that is new: to be appended to the log.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::session) struct Fresh {
    pub(in crate::session) id: CommandId,
    pub(in crate::session) stream: Stream,
    /// Offset of the first byte.
    pub(in crate::session) offset: u64,
    pub(in crate::session) data: Vec<u8>,
}

/// What came of bytes from the holder.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::session) enum Event {
    /// The epoch is open. The sessions named had begun, and the holder no longer has them.
    Opened { lost: Vec<CommandId> },
    /// A session's state changed: see its [`Wire`].
    Changed {
        id: CommandId,
        /// Told by a greeting: it may have changed at any time since the command was begun, so long ago. Otherwise it has just
        /// changed.
        age: Option<Duration>,
    },
    /// Output.
    Output(Fresh),
    /// The answer to the set-up.
    SetupDone(SetUp),
    /// The spawner was killed.
    SpawnerKilled(String),
    /// Everything sent before this ping was processed.
    Pong(u64),
    /// The epoch is over; nothing is taken until the next begins.
    Broken(Violation),
}

#[derive(Debug)]
enum Phase {
    /// Nothing is read.
    Idle,
    /// Reads up to the marker.
    Seeking([u8; NONCE]),
    /// Reads the greeting.
    Greeting([u8; NONCE]),
    Open,
}

/// The protocol's state for one sandbox. Outlives epochs and pipes.
#[derive(Debug)]
pub(in crate::session) struct Epoch {
    phase: Phase,
    decoder: Decoder,
    sessions: BTreeMap<CommandId, Wire>,
    /// Running sessions that the holder named in its greeting and this node has no record of: what they say is ignored.
    strangers: BTreeSet<String>,
    /// Sessions that have something to send.
    queue: VecDeque<CommandId>,
    pub(in crate::session) outbox: Outbox,
    setup: frame::Setup,
    strikes: u32,
    /// Claims refused since the agent began.
    refused: u64,
    /// The log is full: output is thrown away unacknowledged, so that ends and answers still come through.
    discarding: bool,
    /// Token of the next ping.
    next_ping: u64,
    /// Token of the last pong.
    last_pong: u64,
    /// Frames taken since the agent began.
    heard: u64,
    /// A frame that must be answered was put into the outbox since [`Self::take_asked`].
    asked: bool,
}

impl Epoch {
    pub(in crate::session) fn new(setup: frame::Setup) -> Self {
        Self {
            phase: Phase::Idle,
            decoder: Decoder::default(),
            sessions: BTreeMap::new(),
            strangers: BTreeSet::new(),
            queue: VecDeque::new(),
            outbox: Outbox::default(),
            setup,
            strikes: 0,
            refused: 0,
            discarding: false,
            next_ping: 1,
            last_pong: 0,
            heard: 0,
            asked: false,
        }
    }

    pub(in crate::session) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    pub(in crate::session) fn wire(&self, id: &CommandId) -> Option<&Wire> {
        self.sessions.get(id)
    }

    pub(in crate::session) fn heard(&self) -> u64 {
        self.heard
    }

    pub(in crate::session) fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether a frame that must be answered was queued since the last call.
    pub(in crate::session) fn take_asked(&mut self) -> bool {
        std::mem::take(&mut self.asked)
    }

    /// Sessions that the holder has, as far as is known, or is about to have.
    pub(in crate::session) fn held(&self) -> usize {
        self.sessions
            .values()
            .filter(|wire| match wire.hold {
                Hold::Unrecorded | Hold::Held => true,
                Hold::Wanted | Hold::Asked => !wire.recorded,
                Hold::Forgetting { .. } | Hold::Gone => false,
            })
            .count()
    }

    /// Adds a session. The holder hears of it as soon as there is an epoch.
    pub(in crate::session) fn insert(&mut self, id: &CommandId, wire: Wire) {
        self.sessions.insert(id.clone(), wire);
        self.enqueue(id);
    }

    /// Adds a session that the holder is not to hear of before [`Self::release`].
    pub(in crate::session) fn prepare(&mut self, id: CommandId, mut wire: Wire) {
        wire.hold = Hold::Unrecorded;
        self.sessions.insert(id, wire);
    }

    /// The record of a prepared session is on disk.
    pub(in crate::session) fn release(&mut self, id: &CommandId) {
        if let Some(wire) = self.sessions.get_mut(id)
            && wire.hold == Hold::Unrecorded
        {
            wire.hold = Hold::Wanted;
            self.enqueue(id);
        }
    }

    /// Drops what is known of a session that the holder does not have any more.
    pub(in crate::session) fn remove(&mut self, id: &CommandId) {
        self.sessions.remove(id);
    }

    /// Opens an epoch: queues hello and set-up. With `new_pipes`, nothing of the old ones counts any more.
    pub(in crate::session) fn begin(&mut self, nonce: [u8; NONCE], new_pipes: bool) {
        if new_pipes {
            self.outbox.clear();
            self.decoder.clear();
        } else {
            self.outbox.drop_unbegun();
        }
        self.phase = Phase::Seeking(nonce);
        self.strikes = 0;
        self.discarding = false;
        self.queue.clear();
        let mut held = Vec::new();
        for (id, wire) in &mut self.sessions {
            wire.begin_epoch();
            wire.queued = false;
            if !matches!(wire.hold, Hold::Gone | Hold::Unrecorded) {
                for stream in Stream::ALL {
                    held.push(position(id, stream, wire.flow(stream).written));
                }
            }
        }
        self.send(DownKind::Hello(frame::Hello {
            nonce: nonce.to_vec(),
            version: VERSION,
            held,
        }));
        self.send(DownKind::Setup(self.setup.clone()));
        self.asked = true;
    }

    /// The pipes are gone: nothing is read or sent until the next [`Self::begin`].
    pub(in crate::session) fn close(&mut self) {
        self.phase = Phase::Idle;
        self.outbox.clear();
        self.decoder.clear();
    }

    /// The log is full: output is thrown away until the next epoch, in which the holder sends it again.
    pub(in crate::session) fn discard(&mut self) {
        self.discarding = true;
        for wire in self.sessions.values_mut() {
            for flow in &mut wire.flows {
                flow.received = flow.written;
            }
        }
    }

    /// A stream's log now has this length.
    pub(in crate::session) fn written(&mut self, id: &CommandId, stream: Stream, length: u64) {
        if let Some(wire) = self.sessions.get_mut(id) {
            let flow = &mut wire.flows[stream.index()];
            flow.written = flow.written.max(length);
            self.enqueue(id);
        }
    }

    /// A session's end is on disk.
    pub(in crate::session) fn recorded(&mut self, id: &CommandId) {
        if let Some(wire) = self.sessions.get_mut(id) {
            wire.recorded = true;
            self.enqueue(id);
        }
    }

    /// Gives up waiting for the rest of a command's own output: what is there is all.
    pub(in crate::session) fn settle(&mut self, id: &CommandId) {
        if let Some(wire) = self.sessions.get_mut(id) {
            for flow in &mut wire.flows {
                flow.at_exit = flow.at_exit.map(|at| at.min(flow.written));
            }
        }
    }

    /// Takes stdin; see [`crate::session::stdin::Stdin::accept`].
    pub(in crate::session) fn stdin(
        &mut self,
        id: &CommandId,
        offset: u64,
        bytes: &[u8],
        end: bool,
    ) -> Result<u64, StdinError> {
        let Some(wire) = self.sessions.get_mut(id) else {
            return Err(StdinError::Closed);
        };
        let accepted = wire.stdin.accept(offset, bytes, end)?;
        self.enqueue(id);
        Ok(accepted)
    }

    /// Has the whole tree killed, in this epoch and every later one until it has ended.
    pub(in crate::session) fn kill(&mut self, id: &CommandId) {
        if let Some(wire) = self.sessions.get_mut(id) {
            wire.kill = true;
            wire.control_due = true;
            self.enqueue(id);
        }
    }

    /// Has the command itself told to end (SIGTERM), in this epoch and every later one until it has: one that is lost with its epoch
    /// is sent again, so a command may get it twice.
    pub(in crate::session) fn terminate(&mut self, id: &CommandId) {
        if let Some(wire) = self.sessions.get_mut(id) {
            wire.terminate = true;
            wire.control_due = true;
            self.enqueue(id);
        }
    }

    /// Sets the size of a terminal, in this epoch and every later one.
    pub(in crate::session) fn resize(&mut self, id: &CommandId, size: frame::TerminalSize) {
        if let Some(wire) = self.sessions.get_mut(id) {
            wire.size = Some(size);
            wire.control_due = true;
            self.enqueue(id);
        }
    }

    /// Sends a signal, as a key press would: once, in this epoch or else the next. Like the kernel's own, those that wait count
    /// once each, so there are never more than there are signals; the newest goes last, so that a SIGCONT after a SIGSTOP stays
    /// after it.
    pub(in crate::session) fn signal(&mut self, id: &CommandId, signal: i32) {
        if let Some(wire) = self.sessions.get_mut(id) {
            wire.signals.retain(|waiting| *waiting != signal);
            wire.signals.push(signal);
            self.enqueue(id);
        }
    }

    /// Asks whether the holder lives; the token of the pong.
    pub(in crate::session) fn ping(&mut self) -> u64 {
        let token = self.next_ping;
        self.next_ping += 1;
        self.send(DownKind::Ping(frame::Ping { token }));
        self.asked = true;
        token
    }

    /// The same, where there is an epoch to do it in.
    pub(in crate::session) fn ping_if_open(&mut self) {
        if self.is_open() {
            self.ping();
        }
    }

    /// Whether the holder certainly does not have this session; if not, it is told to forget it, so that a pong will tell.
    pub(in crate::session) fn forget(&mut self, id: &CommandId) -> bool {
        let Some(wire) = self.sessions.get_mut(id) else {
            return true;
        };
        match wire.hold {
            Hold::Gone => true,
            Hold::Wanted | Hold::Asked | Hold::Held if matches!(self.phase, Phase::Open) => {
                wire.hold = Hold::Forgetting {
                    after: self.next_ping,
                };
                self.send(forget(id));
                false
            }
            Hold::Unrecorded
            | Hold::Wanted
            | Hold::Asked
            | Hold::Held
            | Hold::Forgetting { .. } => false,
        }
    }

    /// Turns what sessions want said into frames, as far as there is room.
    pub(in crate::session) fn pump(&mut self) {
        if !self.is_open() {
            return;
        }
        while self.outbox.len() < OUTBOX_LOW
            && let Some(id) = self.queue.pop_front()
        {
            self.emit(&id);
        }
    }

    /// One session's turn: no more than one frame of stdin, so that none starves the others.
    fn emit(&mut self, id: &CommandId) {
        let Some(wire) = self.sessions.get_mut(id) else {
            return;
        };
        wire.queued = false;
        let mut frames = Vec::new();
        let mut create = None;
        if wire.hold == Hold::Wanted && !wire.create.is_empty() && !wire.seen {
            wire.hold = Hold::Asked;
            create = Some(wire.create.clone());
        }
        if wire.control_due && wire.exit.is_none() {
            wire.control_due = false;
            if let Some(size) = wire.size {
                frames.push(DownKind::Resize(frame::Resize {
                    command_id: id.to_string(),
                    size: Some(size),
                }));
            }
            let signals = [
                (
                    wire.terminate,
                    nix::libc::SIGTERM,
                    frame::SignalScope::Leader,
                ),
                (wire.kill, nix::libc::SIGKILL, frame::SignalScope::Tree),
            ];
            for (_, signal, scope) in signals.into_iter().filter(|(wanted, ..)| *wanted) {
                frames.push(DownKind::Signal(frame::Signal {
                    command_id: id.to_string(),
                    signal,
                    scope: scope as i32,
                }));
            }
        }
        for signal in std::mem::take(&mut wire.signals) {
            frames.push(DownKind::Signal(frame::Signal {
                command_id: id.to_string(),
                signal,
                scope: frame::SignalScope::Foreground as i32,
            }));
        }
        for (stream, offset) in wire.take_acks() {
            frames.push(DownKind::Ack(position(id, stream, offset)));
        }
        let piece = wire.stdin.next();
        let more = piece.is_some();
        if let Some((offset, data, end)) = piece {
            frames.push(DownKind::Stdin(frame::Stdin {
                command_id: id.to_string(),
                offset,
                data,
                end,
            }));
        }
        if wire.forgettable() {
            wire.hold = Hold::Forgetting {
                after: self.next_ping,
            };
            frames.push(forget(id));
        }
        if let Some(create) = create {
            self.outbox.push(create);
            self.asked = true;
        }
        for frame in frames {
            self.send(frame);
        }
        if more {
            self.enqueue(id);
        }
    }

    fn enqueue(&mut self, id: &CommandId) {
        if let Some(wire) = self.sessions.get_mut(id)
            && !wire.queued
        {
            wire.queued = true;
            self.queue.push_back(id.clone());
        }
    }

    fn send(&mut self, kind: DownKind) {
        match codec::encode(&Down { kind: Some(kind) }) {
            Ok(frame) => self.outbox.push(frame),
            // Only a create can come near the bound, and it is encoded and checked before it gets here.
            Err(error) => tracing::error!(%error, "a frame to cloche-init cannot be encoded"),
        }
    }
}

fn position(id: &CommandId, stream: Stream, offset: u64) -> frame::Position {
    frame::Position {
        command_id: id.to_string(),
        stream: stream.wire(),
        offset,
    }
}

fn forget(id: &CommandId) -> DownKind {
    DownKind::Forget(frame::Forget {
        command_id: id.to_string(),
    })
}
