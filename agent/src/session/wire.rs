//! What the protocol knows of one session: how far each stream is, and which claims of the holder can be true. Pure.

use cloche_proto::frame::{self, MAX_DATA, MAX_STREAM_BUFFER, TerminalSize};

use super::identity::Stream;
use super::state::NotStarted;
use super::stdin::Stdin;

/// How far beyond what was received a stream may be said to end: the holder's buffer and the command's pipe, twice over.
/// Whatever claims more is a lie that would let a reader wait for ever.
const FAR: u64 = 4 * MAX_STREAM_BUFFER as u64;

/// Longest line that is kept of what the guest says, in characters.
const MAX_MESSAGE: usize = 1024;

/// A claim of the holder that breaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    /// A frame that cannot be read.
    #[error("a frame that is not of the protocol")]
    Frame,
    /// Bytes are missing: resent in a new epoch.
    #[error("output that does not join on to what came before")]
    Gap,
    /// More than a frame may hold.
    #[error("an output frame longer than allowed")]
    TooMuch,
    /// Output beyond where its stream ended.
    #[error("output beyond the end of its stream")]
    BeyondEnd,
    /// A session or stream that does not exist.
    #[error("a session or stream that does not exist")]
    Unknown,
    /// A state that cannot follow the one before.
    #[error("a report that cannot follow the one before")]
    Report,
    /// A protocol version that this agent does not speak, or a second greeting.
    #[error("a greeting that was not asked for or in a version that is not spoken")]
    Greeting,
    /// More such claims than are put up with in one epoch.
    #[error("too many frames that break the protocol")]
    TooMany,
}

/// One output stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// The next offset expected; what lies before it was handed to the log.
    pub(super) received: u64,
    /// The log's length: what may be acknowledged.
    pub(super) written: u64,
    /// What was acknowledged in this epoch.
    acked: u64,
    /// Where the stream stood when the command ended.
    pub(super) at_exit: Option<u64>,
    /// Where the stream ended.
    pub(super) end: Option<u64>,
}

impl Flow {
    fn holding(length: u64) -> Self {
        Self {
            received: length,
            written: length,
            acked: length,
            ..Self::default()
        }
    }

    /// The part of `data` at `offset` that is new.
    fn data(&mut self, offset: u64, mut data: Vec<u8>) -> Result<Option<Vec<u8>>, Violation> {
        if data.len() > MAX_DATA {
            return Err(Violation::TooMuch);
        }
        let end = offset
            .checked_add(data.len() as u64)
            .ok_or(Violation::TooMuch)?;
        if self.end.is_some_and(|last| end > last) {
            return Err(Violation::BeyondEnd);
        }
        let Some(known) = self.received.checked_sub(offset) else {
            return Err(Violation::Gap);
        };
        if end <= self.received {
            return Ok(None);
        }
        // `known` is less than the data's length, since the data reach beyond `received`.
        data.drain(..usize::try_from(known).unwrap_or(usize::MAX).min(data.len()));
        self.received = end;
        Ok(Some(data))
    }

    /// Whether `offset` can be a place where this stream ends or ended.
    fn plausible(&self, offset: u64, at_least: u64) -> bool {
        offset >= at_least && offset <= self.received.saturating_add(FAR)
    }
}

impl NotStarted {
    fn of(cause: frame::ExitCause) -> Option<Self> {
        match cause {
            frame::ExitCause::Unspecified | frame::ExitCause::TimedOut => None,
            frame::ExitCause::NotFound => Some(Self::NotFound),
            frame::ExitCause::NotExecutable
            | frame::ExitCause::BadDirectory
            | frame::ExitCause::BadUser => Some(Self::NotExecutable),
            frame::ExitCause::NoResources | frame::ExitCause::SetupFailed => Some(Self::Failed),
        }
    }
}

/// How a command ended, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) code: i32,
    pub(super) signal: i32,
    pub(super) timed_out: bool,
    pub(super) not_started: Option<NotStarted>,
    pub(super) message: String,
    pub(super) duration_ms: u64,
}

impl Exit {
    fn check(exit: &frame::Exit) -> Option<Self> {
        let code_fits = if exit.signal == 0 {
            (0..=255).contains(&exit.code)
        } else {
            (1..=64).contains(&exit.signal) && exit.code == 128 + exit.signal
        };
        code_fits.then(|| Self {
            code: exit.code,
            signal: exit.signal,
            timed_out: exit.cause() == frame::ExitCause::TimedOut,
            not_started: NotStarted::of(exit.cause()),
            message: one_line(&exit.message),
            duration_ms: exit.duration_ms,
        })
    }
}

/// Text of the guest as one line that does not move a terminal's cursor.
pub(super) fn one_line(text: &str) -> String {
    text.chars()
        .take(MAX_MESSAGE)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// Whether the holder still has a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// Its record is being written; the holder is not to hear of it yet.
    Unrecorded,
    /// Not yet told of it, as far as is known: a create is to be sent.
    Wanted,
    /// A create was sent in this epoch and not answered yet.
    Asked,
    /// The holder has it.
    Held,
    /// The holder was told to forget it; it has, once a pong of this token or a later one has come.
    Forgetting {
        /// The token.
        after: u64,
    },
    /// The holder does not have it, and shall not.
    Gone,
}

/// The protocol's view of one session.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // facts that do not depend on each other
pub(super) struct Wire {
    /// The create frame; empty once the holder has the session.
    pub(super) create: Vec<u8>,
    pub(super) hold: Hold,
    /// The holder was seen to have it at some time: it must never be created again.
    pub(super) seen: bool,
    pub(super) flows: [Flow; 2],
    pub(super) pid: i32,
    pub(super) exit: Option<Exit>,
    /// The end is on this node's disk: the holder may be told to forget.
    pub(super) recorded: bool,
    pub(super) stdin: Stdin,
    /// Kill the whole tree; stays until it has ended.
    pub(super) kill: bool,
    /// Tell the command to end; stays until it has.
    pub(super) terminate: bool,
    /// Signals that were not sent yet, each once.
    pub(super) signals: Vec<i32>,
    /// The terminal's size where it was changed; sent again in every epoch.
    pub(super) size: Option<TerminalSize>,
    /// No report of it has come in this epoch.
    pub(super) unreported: bool,
    /// Is in the queue of those that have something to send.
    pub(super) queued: bool,
    /// A signal or a size was not sent in this epoch.
    pub(super) control_due: bool,
}

impl Wire {
    /// A session to be created by the frame `create`.
    pub(super) fn new(create: Vec<u8>, stdin: bool) -> Self {
        Self {
            create,
            hold: Hold::Wanted,
            seen: false,
            flows: [Flow::default(); 2],
            pid: 0,
            exit: None,
            recorded: false,
            stdin: Stdin::new(stdin),
            kill: false,
            terminate: false,
            signals: Vec::new(),
            size: None,
            unreported: true,
            queued: false,
            control_due: false,
        }
    }

    /// A session that an earlier agent recorded, with the lengths of its logs; `ended` if the record says so.
    pub(super) fn loaded(create: Vec<u8>, lengths: [u64; 2], ended: Option<[u64; 2]>) -> Self {
        let mut flows = lengths.map(Flow::holding);
        if let Some(ended) = ended {
            for (flow, at_exit) in flows.iter_mut().zip(ended) {
                flow.at_exit = Some(at_exit);
            }
        }
        Self {
            // Output proves that it ran.
            seen: ended.is_some() || lengths != [0, 0],
            flows,
            recorded: ended.is_some(),
            stdin: Stdin::unknown(),
            ..Self::new(create, true)
        }
    }

    /// All that the holder had of it is on this node, so it may forget.
    fn complete(&self) -> bool {
        self.recorded
            && self
                .flows
                .iter()
                .all(|flow| flow.end.is_some_and(|end| flow.written >= end))
    }

    /// Whether the holder is to be told to forget it now.
    pub(super) fn forgettable(&self) -> bool {
        self.hold == Hold::Held && self.complete()
    }

    /// Where each stream ended. What the holder has let go of, or lost, can grow no more.
    pub(super) fn closed(&self) -> [Option<u64>; 2] {
        let gone = self.hold == Hold::Gone && self.recorded;
        self.flows
            .map(|flow| flow.end.or(gone.then_some(flow.written)))
    }

    pub(super) fn flow(&self, stream: Stream) -> &Flow {
        &self.flows[stream.index()]
    }

    /// The streams of which more was written than acknowledged, with the offset to acknowledge; they count as acknowledged.
    pub(super) fn take_acks(&mut self) -> impl Iterator<Item = (Stream, u64)> {
        Stream::ALL.into_iter().filter_map(|stream| {
            let flow = &mut self.flows[stream.index()];
            (flow.written > flow.acked).then(|| {
                flow.acked = flow.written;
                (stream, flow.written)
            })
        })
    }

    /// A new epoch: the holder sends again from what is written.
    pub(super) fn begin_epoch(&mut self) {
        for flow in &mut self.flows {
            flow.acked = flow.written;
        }
        if self.hold == Hold::Asked {
            self.hold = Hold::Wanted;
        }
        self.stdin.begin_epoch();
        self.unreported = true;
        self.control_due = self.kill || self.terminate || self.size.is_some();
    }

    pub(super) fn data(
        &mut self,
        stream: Stream,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, Violation> {
        self.flows[stream.index()].data(offset, data)
    }

    /// Takes over what the holder says, as far as it can be true. The rest is refused and told.
    pub(super) fn report(&mut self, report: &frame::Report) -> Result<(), Violation> {
        self.seen = true;
        self.create = Vec::new();
        if matches!(self.hold, Hold::Wanted | Hold::Asked | Hold::Gone) {
            self.hold = Hold::Held;
        }
        let mut fine = self.stdin.report(
            report.stdin_offset,
            report.stdin_drained,
            report.stdin_closed,
            self.unreported,
        );
        self.unreported = false;
        if self.pid == 0 {
            self.pid = report.pid.max(0);
        } else if report.pid != self.pid {
            fine = false;
        }
        match (&self.exit, &report.exit) {
            (None, Some(exit)) => match Exit::check(exit) {
                Some(exit) => {
                    self.exit = Some(exit);
                    fine &= self.settle_exit(report);
                }
                None => fine = false,
            },
            (Some(known), Some(exit)) => fine &= Exit::check(exit).as_ref() == Some(known),
            (Some(_), None) => fine = false,
            (None, None) => {}
        }
        for (flow, end) in self
            .flows
            .iter_mut()
            .zip([report.stdout_end, report.stderr_end])
        {
            let at_least = flow.received.max(flow.at_exit.unwrap_or_default());
            match (flow.end, end) {
                (None, Some(end)) if flow.plausible(end, at_least) => flow.end = Some(end),
                (Some(known), Some(end)) if known == end => {}
                (None, None) => {}
                (None | Some(_), _) => fine = false,
            }
        }
        if fine { Ok(()) } else { Err(Violation::Report) }
    }

    /// Fixes where the command's own output ends. Where the holder tells no place that can be true, it is what has come.
    fn settle_exit(&mut self, report: &frame::Report) -> bool {
        let mut fine = true;
        for (flow, (at_exit, end)) in self.flows.iter_mut().zip([
            (report.stdout_at_exit, report.stdout_end),
            (report.stderr_at_exit, report.stderr_end),
        ]) {
            if flow.at_exit.is_some() {
                // The record of an earlier agent has told it.
                continue;
            }
            let claimed = at_exit.or(end);
            let offset = claimed.filter(|offset| flow.plausible(*offset, 0));
            fine &= claimed.is_none() || offset.is_some();
            flow.at_exit = Some(offset.unwrap_or(flow.received));
        }
        fine
    }
}
