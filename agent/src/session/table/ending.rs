//! How sessions end, and what becomes of them then.

use std::sync::Arc;
use std::time::Duration;

use super::{Recording, Table, Write};
use crate::clock::Now;
use crate::session::error::SessionError;
use crate::session::identity::{CommandId, Stream};
use crate::session::life::{RETRY, SETTLE};
use crate::session::log::{Job, Tails};
use crate::session::record::RecordError;
use crate::session::state::{Ended, Outcome};
use crate::session::wire::Exit;
use crate::told::chain;

impl Table {
    /// The record of a session was written, or not.
    pub(in crate::session) fn on_recorded(
        &mut self,
        id: &CommandId,
        result: Result<(), RecordError>,
        now: Now,
    ) {
        self.stale = true;
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        match (
            std::mem::replace(&mut entry.recording, Recording::No),
            result,
        ) {
            (Recording::No, _) => {}
            (Recording::First(waiters), Ok(())) => {
                let mut created = true;
                for waiter in waiters {
                    drop(waiter.send(Ok(entry.found(created))));
                    created = false;
                }
                self.record_full = None;
                self.epoch.release(id);
                if let Some(reason) = self.ended.clone() {
                    self.end(id, Outcome::SandboxEnded { reason }, now);
                }
            }
            (Recording::First(waiters), Err(error)) => {
                let error = Arc::new(error);
                for waiter in waiters {
                    drop(waiter.send(Err(SessionError::Record(Arc::clone(&error)))));
                }
                self.entries.remove(id);
                self.epoch.remove(id);
            }
            (Recording::End(ended), Err(error)) if self.ended.is_none() => {
                let text = chain(&error);
                tracing::error!(command = %id, error = %text, "the end of a command cannot be recorded; trying again");
                self.record_full = Some(text);
                entry.life.retry = Some(now.boot + RETRY);
                entry.recording = Recording::End(ended);
            }
            (Recording::End(ended), result) => {
                match result {
                    Ok(()) => self.record_full = None,
                    // The sandbox is gone: there is nothing to hold back any more.
                    Err(error) => {
                        tracing::error!(command = %id, error = %chain(&error), "the end of a command is not recorded");
                    }
                }
                entry.life.ended = Some(ended.at.boot);
                let patience = if self.ended.is_some() {
                    Duration::ZERO
                } else {
                    SETTLE
                };
                entry.life.settle =
                    missing(&ended, &entry.shared.tails).then_some(now.boot + patience);
                entry.record.end(ended);
                self.epoch.recorded(id);
                self.publish(id);
            }
        }
    }

    /// Records the end of a session, unless it has one. Its end is told once it is recorded.
    pub(super) fn end(&mut self, id: &CommandId, outcome: Outcome, now: Now) {
        let (Some(entry), Some(wire)) = (self.entries.get_mut(id), self.epoch.wire(id)) else {
            return;
        };
        if entry.record.ended.is_some() || !matches!(entry.recording, Recording::No) {
            return;
        }
        let offset = |stream| {
            let flow = wire.flow(stream);
            match outcome {
                Outcome::Exited { .. } => flow.at_exit.unwrap_or(flow.received),
                Outcome::SandboxEnded { .. } | Outcome::Lost { .. } => flow.received,
            }
        };
        let ended = Ended {
            at: now,
            stdout: offset(Stream::Stdout),
            stderr: offset(Stream::Stderr),
            lost: false,
            outcome,
        };
        self.record_end(id, ended);
    }

    pub(super) fn record_end(&mut self, id: &CommandId, ended: Ended) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        let ended = Arc::new(ended);
        let mut record = entry.record.clone();
        record.end(Arc::clone(&ended));
        match record.encode() {
            Ok(bytes) => {
                entry.recording = Recording::End(ended);
                self.writes.push(Write {
                    id: id.clone(),
                    directory: id.directory(&self.directory),
                    bytes,
                });
            }
            // It was encoded once, before it was created.
            Err(error) => tracing::error!(%error, command = %id, "a record cannot be encoded"),
        }
    }

    pub(super) fn record_again(&mut self, id: &CommandId) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.life.retry = None;
            if let Recording::End(ended) = &entry.recording {
                let ended = Ended::clone(ended);
                self.record_end(id, ended);
            }
        }
    }

    /// The rest of a command's output stays away. While init can be heard and output be stored, it never comes: say so by
    /// ending the output where it is. What has come and is on its way to the disk is waited for, however long that takes.
    pub(super) fn settle(&mut self, id: &CommandId, now: Now, storage_full: bool) {
        let ended_sandbox = self.ended.is_some();
        let hopeless = (self.epoch.is_open() && !storage_full) || ended_sandbox;
        let (Some(entry), Some(wire)) = (self.entries.get_mut(id), self.epoch.wire(id)) else {
            return;
        };
        let unwritten = Stream::ALL
            .into_iter()
            .zip(entry.shared.tails.lengths())
            .any(|(stream, length)| wire.flow(stream).received > length);
        let hopeless = hopeless && !unwritten;
        let Some(ended) = entry.record.ended.clone().filter(|_| hopeless) else {
            entry.life.settle = Some(now.boot + SETTLE);
            return;
        };
        entry.life.settle = None;
        let [stdout, stderr] = entry.shared.tails.lengths();
        tracing::warn!(command = %id, "output that the sandbox's init announced did not come");
        let mut ended = Ended {
            stdout: ended.stdout.min(stdout),
            stderr: ended.stderr.min(stderr),
            lost: true,
            ..Ended::clone(&ended)
        };
        if let Outcome::Exited { message, .. } = &mut ended.outcome
            && message.is_empty()
        {
            "the end of its output is lost: the sandbox announced more than it sent"
                .clone_into(message);
        }
        self.epoch.settle(id);
        self.record_end(id, ended);
    }

    /// Removes a session once the holder has certainly forgotten it: before, a new session of the same id could be taken for
    /// the old one.
    pub(super) fn collect(&mut self, id: &CommandId) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        entry.life.collecting = true;
        self.stale = true;
        if self.ended.is_some() || self.epoch.forget(id) {
            self.batch
                .push(Job::Remove(id.clone(), Arc::clone(&entry.shared.tails)));
        } else {
            self.epoch.ping_if_open();
        }
    }

    pub(super) fn collect_forgotten(&mut self) {
        let collecting: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.life.collecting)
            .map(|(id, _)| id.clone())
            .collect();
        for id in collecting {
            let removing = self
                .batch
                .iter()
                .any(|job| matches!(job, Job::Remove(other, _) if *other == id));
            if !removing {
                self.collect(&id);
            }
        }
    }

    /// The sandbox has ended, and all that was left in its pipes is in the logs: so every session ends.
    pub(in crate::session) fn end_all(&mut self, reason: &str, now: Now) {
        self.ended = Some(reason.to_owned());
        self.epoch.close();
        let ids: Vec<_> = self.entries.keys().cloned().collect();
        for id in ids {
            self.end(
                &id,
                Outcome::SandboxEnded {
                    reason: reason.to_owned(),
                },
                now,
            );
            if self
                .entries
                .get(&id)
                .is_some_and(|entry| entry.life.settle.is_some())
            {
                self.settle(&id, now, false);
            }
            self.publish(&id);
        }
        self.collect_forgotten();
    }

    /// Whether every session's end is told.
    pub(in crate::session) fn all_ended(&self) -> bool {
        self.entries.values().all(|entry| {
            entry.record.ended.is_some()
                && entry.life.settle.is_none()
                && matches!(entry.recording, Recording::No)
        })
    }
}

/// Whether output of the command itself is not in the logs yet.
pub(super) fn missing(ended: &Ended, tails: &Tails) -> bool {
    let [stdout, stderr] = tails.lengths();
    ended.stdout > stdout || ended.stderr > stderr
}

/// What a holder's exit means. A tree that the agent had to kill at its deadline, since the holder did not, timed out too: by its own
/// word, or, where another agent did it, by how long it ran.
pub(super) fn outcome(exit: &Exit, timeout_ms: u64, killed_for_it: bool) -> Outcome {
    let is_late = killed_for_it || (timeout_ms > 0 && exit.duration_ms >= timeout_ms);
    let killed_late = is_late && exit.signal == nix::libc::SIGKILL;
    Outcome::Exited {
        code: exit.code,
        signal: exit.signal,
        timed_out: exit.timed_out || killed_late,
        not_started: exit.not_started,
        message: exit.message.clone(),
        duration_ms: exit.duration_ms,
    }
}
