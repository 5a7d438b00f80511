//! What the holder sends, checked.

use std::time::Duration;

use cloche_proto::frame::{self, MAX_SESSIONS, Up, UpKind, VERSION};

use super::{Epoch, Event, Fresh, Phase, STRIKES, forget};
use crate::session::identity::{CommandId, Stream};
use crate::session::state::SetUp;
use crate::session::wire::{Hold, Violation, Wire, one_line};

impl Epoch {
    /// Takes bytes as they were read.
    pub(in crate::session) fn on_bytes(&mut self, bytes: &[u8], events: &mut Vec<Event>) {
        if matches!(self.phase, Phase::Idle) {
            return;
        }
        self.decoder.push(bytes);
        if let Phase::Seeking(nonce) = self.phase {
            if !self.decoder.seek(&nonce) {
                return;
            }
            self.phase = Phase::Greeting(nonce);
        }
        loop {
            let result = match self.decoder.next::<Up>() {
                Ok(None) => return,
                Ok(Some(up)) => self.on_frame(up, events),
                Err(_) => Err(Violation::Frame),
            };
            let Err(violation) = result else {
                self.heard += 1;
                continue;
            };
            self.refused += 1;
            self.strikes += 1;
            let fatal = match violation {
                Violation::Frame
                | Violation::Gap
                | Violation::TooMuch
                | Violation::Greeting
                | Violation::TooMany => Some(violation),
                Violation::BeyondEnd | Violation::Unknown | Violation::Report => {
                    (self.strikes >= STRIKES).then_some(Violation::TooMany)
                }
            };
            if let Some(violation) = fatal {
                self.phase = Phase::Idle;
                self.decoder.clear();
                events.push(Event::Broken(violation));
                return;
            }
        }
    }

    fn on_frame(&mut self, up: Up, events: &mut Vec<Event>) -> Result<(), Violation> {
        // A kind that a newer holder knows and this agent does not.
        let Some(kind) = up.kind else { return Ok(()) };
        if let Phase::Greeting(nonce) = self.phase {
            return match kind {
                UpKind::HelloAck(ack) if ack.nonce == nonce => self.on_greeting(ack, events),
                _ => Err(Violation::Greeting),
            };
        }
        match kind {
            UpKind::HelloAck(_) => Err(Violation::Greeting),
            UpKind::Report(report) => self.on_report(&report, events),
            UpKind::Data(data) => self.on_data(data, events),
            UpKind::Pong(pong) => {
                if pong.token <= self.last_pong || pong.token >= self.next_ping {
                    return Err(Violation::Report);
                }
                self.last_pong = pong.token;
                for wire in self.sessions.values_mut() {
                    if matches!(wire.hold, Hold::Forgetting { after } if pong.token >= after) {
                        wire.hold = Hold::Gone;
                    }
                }
                events.push(Event::Pong(pong.token));
                Ok(())
            }
            UpKind::Fault(fault) => match fault.kind() {
                frame::FaultKind::SpawnerKilled => {
                    events.push(Event::SpawnerKilled(one_line(&fault.message)));
                    Ok(())
                }
                frame::FaultKind::Unspecified => Err(Violation::Unknown),
            },
            UpKind::SetupDone(done) => {
                let error = one_line(&done.error);
                // An init of another version may not know what it was told.
                let is_kept = done.read_only_root == self.setup.read_only_root.is_some();
                let outcome = match (done.error.is_empty(), done.path.is_empty()) {
                    (true, _) if is_kept => SetUp::Done,
                    (true, _) => SetUp::Failed("it does not keep the root read-only".to_owned()),
                    (false, true) => SetUp::Failed(error),
                    (false, false) => SetUp::BadPath(error),
                };
                events.push(Event::SetupDone(outcome));
                Ok(())
            }
        }
    }

    /// The epoch begins. What the holder has and we do not is not ours to end: an ended one it may forget, as it does when an
    /// agent was killed between dropping a record and saying so; a running one is left alone.
    fn on_greeting(
        &mut self,
        ack: frame::HelloAck,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        if ack.version == 0 || ack.version > VERSION || ack.sessions.len() > MAX_SESSIONS {
            return Err(Violation::Greeting);
        }
        self.phase = Phase::Open;
        self.strangers.clear();
        let mut lost = Vec::new();
        let mut changed = Vec::new();
        let mut strikes = 0;
        for report in ack.sessions {
            let Ok(id) = CommandId::parse(&report.command_id) else {
                strikes += 1;
                continue;
            };
            if let Some(wire) = self.sessions.get_mut(&id) {
                if wire.report(&report).is_err() {
                    strikes += 1;
                }
                // Told in an earlier epoch, but perhaps never read.
                wire.hold = Hold::Held;
                let age = Duration::from_millis(ack.clock_ms.saturating_sub(report.begun_ms));
                changed.push(Event::Changed { id, age: Some(age) });
            } else if report.exit.is_some() {
                self.send(forget(&id));
            } else {
                self.strangers.insert(report.command_id);
            }
        }
        for (id, wire) in &mut self.sessions {
            if !wire.unreported || wire.hold == Hold::Unrecorded {
                continue;
            }
            if matches!(wire.hold, Hold::Forgetting { .. }) || wire.recorded {
                wire.hold = Hold::Gone;
            } else if wire.seen && wire.hold != Hold::Gone {
                wire.hold = Hold::Gone;
                lost.push(id.clone());
            }
        }
        self.strikes += strikes;
        self.refused += u64::from(strikes);
        events.push(Event::Opened { lost });
        events.extend(changed);
        for id in self.sessions.keys().cloned().collect::<Vec<_>>() {
            self.enqueue(&id);
        }
        Ok(())
    }

    fn on_report(
        &mut self,
        report: &frame::Report,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let Some((id, wire)) = self.find(&report.command_id)? else {
            return Ok(());
        };
        let result = wire.report(report);
        self.enqueue(&id);
        events.push(Event::Changed { id, age: None });
        result
    }

    /// The session that a frame names. Nothing for one that is to be ignored.
    fn find(&mut self, id: &str) -> Result<Option<(CommandId, &mut Wire)>, Violation> {
        if self.strangers.contains(id) {
            return Ok(None);
        }
        let id = CommandId::parse(id).map_err(|_| Violation::Unknown)?;
        match self.sessions.get_mut(&id) {
            // The holder cannot speak of what it was not told to begin, or has let go of.
            None => Err(Violation::Unknown),
            Some(wire) if matches!(wire.hold, Hold::Unrecorded | Hold::Wanted | Hold::Gone) => {
                Err(Violation::Unknown)
            }
            Some(wire) => Ok(Some((id, wire))),
        }
    }

    fn on_data(&mut self, data: frame::Data, events: &mut Vec<Event>) -> Result<(), Violation> {
        if self.discarding {
            return Ok(());
        }
        let stream = Stream::from_wire(data.stream).ok_or(Violation::Unknown)?;
        let Some((id, wire)) = self.find(&data.command_id)? else {
            return Ok(());
        };
        let end = data.offset.saturating_add(data.data.len() as u64);
        if let Some(fresh) = wire.data(stream, data.offset, data.data)? {
            wire.seen = true;
            events.push(Event::Output(Fresh {
                id,
                stream,
                offset: end - fresh.len() as u64,
                data: fresh,
            }));
        }
        Ok(())
    }
}
