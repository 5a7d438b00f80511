//! What handles ask of the table, and what keeps it from growing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cloche_proto::frame::codec;
use cloche_proto::frame::{self, Down, DownKind, MAX_SESSIONS};

use super::{Found, MAX_KEPT, Recording, Table, Waiter, Write};
use crate::clock::Now;
use crate::session::error::SessionError;
use crate::session::identity::CommandId;
use crate::session::life::Life;
use crate::session::log::Tails;
use crate::session::record::Record;
use crate::session::request::{NewSession, Request};
use crate::session::stdin::StdinError;
use crate::session::wire::Wire;

impl Table {
    pub(in crate::session) fn on_request(&mut self, request: Request, now: Now) {
        // A reply that nobody waits for any more is no failure: the request stands, as it does after a crash of the client.
        match request {
            Request::Create { id, new, reply } => self.create(id, new, reply, now),
            Request::Get { id, reply } => drop(reply.send(self.get(&id))),
            Request::List { reply } => drop(
                reply.send(
                    self.entries
                        .values()
                        .filter(|entry| {
                            !entry.life.collecting
                                && !matches!(entry.recording, Recording::First(_))
                        })
                        .map(|entry| entry.found(false))
                        .collect(),
                ),
            ),
            Request::TakeInput { id, known, reply } => {
                let result = self.usable(&id).map(|()| self.take_input(&id, known, now));
                self.publish(&id);
                drop(reply.send(result));
            }
            Request::Stdin {
                id,
                input,
                offset,
                bytes,
                end,
                reply,
            } => {
                let newest = self.entries.get(&id).map(|entry| entry.input);
                let result = self.usable(&id).and_then(|()| {
                    let accepted = if newest == Some(input) {
                        self.epoch.stdin(&id, offset, &bytes, end)
                    } else {
                        Err(StdinError::TakenOver)
                    };
                    accepted.map_err(SessionError::from)
                });
                self.publish(&id);
                drop(reply.send(result));
            }
            Request::Signal { id, signal, reply } => {
                let result = self.usable(&id);
                if result.is_ok() {
                    self.epoch.signal(&id, signal);
                    // Tells whether init is there to do it.
                    self.epoch.ping_if_open();
                }
                drop(reply.send(result));
            }
            Request::Resize { id, size, reply } => {
                let result = self.usable(&id);
                if result.is_ok() {
                    self.epoch.resize(&id, size);
                }
                drop(reply.send(result));
            }
            Request::Terminate { id, reply } => {
                let result = self.usable(&id);
                if result.is_ok() {
                    self.epoch.terminate(&id);
                    self.epoch.ping_if_open();
                }
                drop(reply.send(result));
            }
            Request::Kill { id, reply } => {
                let result = self.usable(&id);
                if result.is_ok() {
                    self.kill(&id);
                }
                drop(reply.send(result));
            }
        }
    }

    /// Numbers grow over restarts of the agent too, as the boot clock does, so that who was the newest still is.
    pub(super) fn take_input(&mut self, id: &CommandId, known: Option<u64>, now: Now) -> u64 {
        let clock = u64::try_from(now.boot.as_micros()).unwrap_or(u64::MAX);
        self.entries.get_mut(id).map_or(0, |entry| {
            let next = clock.max(entry.input + 1);
            // None of ours is from the future.
            let number = known.filter(|known| *known < next).unwrap_or(next);
            entry.input = entry.input.max(number);
            number
        })
    }

    pub(super) fn away(&self) -> SessionError {
        SessionError::Unavailable {
            why: self
                .unavailable
                .clone()
                .unwrap_or_else(|| "the connection to it is being made".to_owned()),
        }
    }

    pub(super) fn kill(&mut self, id: &CommandId) {
        self.epoch.kill(id);
        self.epoch.ping_if_open();
        if let Some(entry) = self.entries.get_mut(id) {
            entry.life.killing = true;
            self.stale = true;
        }
    }

    /// Whether something may be asked of a session: it is there and has not ended.
    pub(super) fn usable(&self, id: &CommandId) -> Result<(), SessionError> {
        let entry = self
            .entries
            .get(id)
            .ok_or_else(|| SessionError::NotFound { id: id.clone() })?;
        if entry.record.ended.is_some() || matches!(entry.recording, Recording::End(_)) {
            return Err(SessionError::Ended { id: id.clone() });
        }
        Ok(())
    }

    pub(super) fn get(&self, id: &CommandId) -> Result<Found, SessionError> {
        self.entries
            .get(id)
            .filter(|entry| {
                !entry.life.collecting && !matches!(entry.recording, Recording::First(_))
            })
            .map(|entry| entry.found(false))
            .ok_or_else(|| SessionError::NotFound { id: id.clone() })
    }

    pub(super) fn create(&mut self, id: CommandId, new: NewSession, reply: Waiter, now: Now) {
        if let Some(entry) = self.entries.get_mut(&id) {
            let known = entry.record.fingerprint.as_ref();
            let is_another = |asked| known.is_some_and(|known| known != asked);
            if new.fingerprint.as_ref().is_some_and(is_another) {
                drop(reply.send(Err(SessionError::Another { id })));
            } else if entry.life.collecting {
                drop(reply.send(Err(SessionError::Removing { id })));
            } else if let Recording::First(waiters) = &mut entry.recording {
                waiters.push(reply);
            } else {
                drop(reply.send(Ok(entry.found(false))));
            }
            return;
        }
        let record = Record {
            id: id.clone(),
            spec: Arc::new(new.spec),
            created: now,
            paused: self.paused,
            kill_on_detach: new.kill_on_detach,
            fingerprint: new.fingerprint,
            ended: None,
        };
        let (create, bytes) = match self.admit(&record) {
            Ok(accepted) => accepted,
            Err(error) => {
                drop(reply.send(Err(error)));
                return;
            }
        };
        let directory = id.directory(&self.directory);
        self.writes.push(Write {
            id: id.clone(),
            directory: directory.clone(),
            bytes,
        });
        // The holder hears of it once it is recorded.
        self.epoch.prepare(
            id,
            Wire::new(create, record.spec.stdin || record.spec.terminal.is_some()),
        );
        let life = Life::new(
            now.boot,
            record.deadline(self.paused),
            record.kill_on_detach,
            None,
        );
        let tails = Arc::new(Tails::new(&directory));
        self.add(record, tails, life, Recording::First(vec![reply]));
    }

    /// Whether one more session may be made; its create frame and its record.
    pub(super) fn admit(&mut self, record: &Record) -> Result<(Vec<u8>, Vec<u8>), SessionError> {
        if let Some(reason) = &self.ended {
            return Err(SessionError::SandboxEnded {
                reason: reason.clone(),
            });
        }
        if self.unavailable.is_some() {
            return Err(self.away());
        }
        if self.epoch.held() >= MAX_SESSIONS {
            return Err(SessionError::TooMany);
        }
        let create = create_frame(record)?;
        let bytes = record.encode()?;
        if self.entries.len() >= MAX_KEPT {
            self.evict()?;
        }
        Ok((create, bytes))
    }

    pub(super) fn evict(&mut self) -> Result<(), SessionError> {
        let oldest = self
            .entries
            .iter()
            .filter(|(_, entry)| {
                entry.life.collectable() && entry.shared.attached.load(Ordering::Relaxed) == 0
            })
            .filter_map(|(id, entry)| Some((entry.life.ended?, id.clone())))
            .min()
            .ok_or(SessionError::TooMany)?
            .1;
        self.collect(&oldest);
        // Those that wait to be forgotten by an init that does not answer must not pile up.
        if self.entries.len() >= MAX_KEPT + MAX_SESSIONS {
            return Err(SessionError::TooMany);
        }
        Ok(())
    }
}

pub(super) fn create_frame(record: &Record) -> Result<Vec<u8>, SessionError> {
    let create = Down {
        kind: Some(DownKind::Create(frame::Create {
            command_id: record.id.to_string(),
            spec: Some(frame::SessionSpec::clone(&record.spec)),
        })),
    };
    codec::encode(&create).map_err(|_| SessionError::TooLong {
        id: record.id.clone(),
        length: prost::Message::encoded_len(&create),
    })
}
