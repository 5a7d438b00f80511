//! The sessions of one sandbox and what is to become of them. No I/O and no clock: what it wants done lies in
//! [`Table::batch`] (logs) and [`Table::writes`] (records) for the channel's task, which owns it.
//!
//! One session:
//! ```text
//!   create ─► record written ─► holder told ─► report with exit ─► record written with end ─► end told ─► 1 h ─► forgotten
//!             (may have begun)                                      (final)              and all output closed   and removed
//! ```

mod ending;
mod request;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cloche_proto::frame;
use tokio::sync::{Notify, oneshot, watch};

use self::ending::{missing, outcome};
use self::request::create_frame;
use super::epoch::{Epoch, Event};
use super::error::SessionError;
use super::identity::CommandId;
use super::life::{Due, Life, SETTLE};
use super::log::{Done, Job, Tails};
use super::record::Record;
use super::state::{Ended, Outcome, SessionState};
use super::wire::Wire;
use crate::clock::Now;

/// Ended sessions kept at once; beyond, the oldest whose output is closed and that nobody is attached to goes before its time.
const MAX_KEPT: usize = 1024;

/// What the handles of a session share with the table.
#[derive(Debug)]
pub(in crate::session) struct Shared {
    pub(in crate::session) id: CommandId,
    pub(in crate::session) terminal: bool,
    pub(in crate::session) tails: Arc<Tails>,
    pub(in crate::session) attached: AtomicU32,
    /// Told when a client comes or the last one leaves.
    pub(in crate::session) attention: Arc<Notify>,
}

/// What a request gets of a session.
#[derive(Debug)]
pub(in crate::session) struct Found {
    pub(in crate::session) shared: Arc<Shared>,
    pub(in crate::session) state: watch::Receiver<SessionState>,
    pub(in crate::session) created: bool,
}

type Waiter = oneshot::Sender<Result<Found, SessionError>>;

#[derive(Debug)]
enum Recording {
    /// Nothing is being written.
    No,
    /// The first record is; the first of those who wait made it.
    First(Vec<Waiter>),
    /// The end is.
    End(Arc<Ended>),
}

#[derive(Debug)]
struct Entry {
    record: Record,
    shared: Arc<Shared>,
    state: watch::Sender<SessionState>,
    life: Life,
    recording: Recording,
    /// When the command began to run, as far as this agent has heard.
    started: Option<Now>,
    /// The number of the client that may send stdin; 0: none has asked for it in this agent's life.
    input: u64,
}

impl Entry {
    fn found(&self, created: bool) -> Found {
        Found {
            shared: Arc::clone(&self.shared),
            state: self.state.subscribe(),
            created,
        }
    }
}

/// A record to be written.
#[derive(Debug)]
pub(in crate::session) struct Write {
    pub(in crate::session) id: CommandId,
    pub(in crate::session) directory: PathBuf,
    pub(in crate::session) bytes: Vec<u8>,
}

/// All sessions of a sandbox.
#[derive(Debug)]
pub(in crate::session) struct Table {
    directory: PathBuf,
    pub(in crate::session) epoch: Epoch,
    entries: BTreeMap<CommandId, Entry>,
    /// What the logs are to do next.
    pub(in crate::session) batch: Vec<Job>,
    /// Output in `batch`, in bytes.
    pub(in crate::session) batch_bytes: usize,
    /// Records to be written.
    pub(in crate::session) writes: Vec<Write>,
    attention: Arc<Notify>,
    /// How long the sandbox was paused until now.
    paused: Duration,
    /// Why nothing can be asked of init now.
    pub(in crate::session) unavailable: Option<String>,
    /// The sandbox's end reason, once it has ended.
    ended: Option<String>,
    /// Why records cannot be written.
    pub(in crate::session) record_full: Option<String>,
    /// The earliest deadline of any session.
    next_due: Option<Duration>,
    running: bool,
    /// A session changed since these two were computed.
    stale: bool,
}

impl Table {
    pub(in crate::session) fn new(
        directory: PathBuf,
        setup: frame::Setup,
        attention: Arc<Notify>,
    ) -> Self {
        Self {
            directory,
            epoch: Epoch::new(setup),
            entries: BTreeMap::new(),
            batch: Vec::new(),
            batch_bytes: 0,
            writes: Vec::new(),
            attention,
            paused: Duration::ZERO,
            unavailable: None,
            ended: None,
            record_full: None,
            next_due: None,
            running: false,
            stale: false,
        }
    }

    /// Adds a session that an earlier agent recorded.
    pub(in crate::session) fn load(&mut self, record: Record, tails: Arc<Tails>, now: Now) {
        let ended = record.ended.clone();
        let create = if ended.is_some() {
            Vec::new()
        } else {
            // It was encoded before it was recorded.
            create_frame(&record).unwrap_or_default()
        };
        let offsets = ended.as_ref().map(|ended| [ended.stdout, ended.stderr]);
        let wire = Wire::loaded(create, tails.lengths(), offsets);
        self.epoch.insert(&record.id, wire);
        let mut life = Life::new(
            now.boot,
            record.deadline(self.paused),
            record.kill_on_detach,
            ended.as_ref().map(|ended| ended.at.boot),
        );
        if ended.is_some_and(|ended| missing(&ended, &tails)) {
            life.settle = Some(now.boot + SETTLE);
        }
        self.add(record, tails, life, Recording::No);
    }

    fn add(&mut self, record: Record, tails: Arc<Tails>, mut life: Life, recording: Recording) {
        let id = record.id.clone();
        let shared = Arc::new(Shared {
            id: id.clone(),
            terminal: record.spec.terminal.is_some(),
            tails,
            attached: AtomicU32::new(0),
            attention: Arc::clone(&self.attention),
        });
        let state = SessionState {
            ended: record.ended.clone(),
            stdin: self.epoch.wire(&id).and_then(|wire| wire.stdin.state()),
            ..SessionState::default()
        };
        // What the sandbox's own command said is asked for as long as the sandbox's object is there.
        life.permanent = id.is_own();
        self.entries.insert(
            id,
            Entry {
                record,
                shared,
                state: watch::Sender::new(state),
                life,
                recording,
                started: None,
                input: 0,
            },
        );
        self.stale = true;
    }

    /// The sandbox was paused for so long until now: all that waits for time to pass waits so much longer.
    pub(in crate::session) fn set_paused(&mut self, paused: Duration, now: Now) {
        let by = paused.saturating_sub(self.paused);
        self.paused = paused;
        for entry in self.entries.values_mut() {
            entry.life.wait_longer(by, now.boot);
        }
        self.stale = true;
    }

    /// Whether there are sessions whose end would be missed if init fell silent.
    pub(in crate::session) fn is_running(&mut self) -> bool {
        self.refresh();
        self.running
    }

    /// What came from the holder. `SetupDone` and `SpawnerKilled` are the channel's.
    pub(in crate::session) fn on_event(&mut self, event: Event, now: Now) {
        match event {
            Event::Opened { lost } => {
                for id in lost {
                    let message = "the sandbox's init no longer knows this command; how it ended cannot be told";
                    self.end(
                        &id,
                        Outcome::Lost {
                            message: message.to_owned(),
                        },
                        now,
                    );
                }
                self.collect_forgotten();
                // What the old epoch did not bring is sent again in this one.
                for entry in self.entries.values_mut() {
                    entry.life.settle = entry.life.settle.map(|_| now.boot + SETTLE);
                }
                self.stale = true;
                let ended: Vec<_> = self
                    .entries
                    .iter()
                    .filter(|(_, entry)| entry.record.ended.is_some())
                    .map(|(id, _)| id.clone())
                    .collect();
                for id in ended {
                    self.publish(&id);
                }
            }
            Event::Pong(_) => self.collect_forgotten(),
            Event::Changed { id, age } => self.on_changed(&id, age, now),
            Event::Output(fresh) => {
                let Some(entry) = self.entries.get_mut(&fresh.id) else {
                    return;
                };
                if entry.life.settle.is_some() {
                    entry.life.settle = Some(now.boot + SETTLE);
                    self.stale = true;
                }
                self.batch_bytes += fresh.data.len();
                self.batch.push(Job::Append {
                    tails: Arc::clone(&entry.shared.tails),
                    fresh,
                });
            }
            Event::SetupDone(_) | Event::SpawnerKilled(_) | Event::Broken(_) => {}
        }
    }

    fn on_changed(&mut self, id: &CommandId, age: Option<Duration>, now: Now) {
        let (Some(entry), Some(wire)) = (self.entries.get_mut(id), self.epoch.wire(id)) else {
            return;
        };
        // It was not begun before it was recorded, whatever the sandbox says.
        let earliest = entry.record.created;
        let began = age.map(|age| now.before(age).max(earliest));
        if wire.pid > 0 && entry.started.is_none() {
            entry.started = Some(began.unwrap_or(now));
        }
        if let Some(exit) = &wire.exit {
            let ran = Duration::from_millis(exit.duration_ms);
            let at = began.map_or(now, |began| began.after(ran).min(now));
            let timeout_ms = entry.record.spec.timeout_ms;
            let outcome = outcome(exit, timeout_ms, entry.life.timed_out);
            self.end(id, outcome, at);
        }
        self.publish(id);
    }

    /// The logs did a batch.
    pub(in crate::session) fn on_logged(&mut self, done: &Done) {
        for (id, stream, length) in &done.written {
            self.epoch.written(id, *stream, *length);
            if let Some(entry) = self.entries.get_mut(id)
                && entry.life.settle.is_some()
                && entry
                    .record
                    .ended
                    .as_ref()
                    .is_some_and(|ended| !missing(ended, &entry.shared.tails))
            {
                entry.life.settle = None;
                self.stale = true;
            }
        }
        for id in &done.removed {
            self.entries.remove(id);
            self.epoch.remove(id);
            self.stale = true;
        }
        if done.error.is_some() {
            // What waits would leave a gap now. It was not acknowledged, so it comes again.
            self.batch.retain(|job| matches!(job, Job::Remove(..)));
            self.batch_bytes = 0;
            self.epoch.discard();
        }
    }

    /// Shows a session's state to those who watch it.
    fn publish(&mut self, id: &CommandId) {
        let (Some(entry), Some(wire)) = (self.entries.get_mut(id), self.epoch.wire(id)) else {
            return;
        };
        let closed = if self.ended.is_some() && entry.record.ended.is_some() {
            entry.shared.tails.lengths().map(Some)
        } else {
            wire.closed()
        };
        // What was found ended is not shown as running while its end is being recorded.
        let is_ending = wire.exit.is_some() && entry.record.ended.is_none();
        let now = SessionState {
            pid: wire.pid,
            started: entry.started.filter(|_| !is_ending),
            ended: entry.record.ended.clone(),
            stdin: wire.stdin.state(),
            input: entry.input,
            closed,
        };
        let all_closed = closed.iter().all(Option::is_some);
        if entry.life.closed != all_closed {
            entry.life.closed = all_closed;
            self.stale = true;
        }
        entry.state.send_if_modified(|state| {
            let started = state.started.or(now.started);
            let now = SessionState { started, ..now };
            let changed = *state != now;
            *state = now;
            changed
        });
    }

    /// When [`Self::due`] is to be called, at the latest.
    pub(in crate::session) fn next_due(&mut self) -> Option<Duration> {
        self.refresh();
        self.next_due
    }

    fn refresh(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let lives = self.entries.values().map(|entry| &entry.life);
        self.next_due = lives.filter_map(Life::next).map(|(at, _)| at).min();
        self.running = self.entries.values().any(|entry| {
            entry.record.ended.is_none() || entry.life.settle.is_some() || entry.life.collecting
        });
    }

    /// Does what is due.
    pub(in crate::session) fn due(&mut self, now: Now, storage_full: bool) {
        if self.next_due().is_none_or(|at| at > now.boot) {
            return;
        }
        let due: Vec<_> = self
            .entries
            .iter()
            .filter_map(|(id, entry)| {
                let (at, due) = entry.life.next()?;
                (at <= now.boot).then(|| (id.clone(), due))
            })
            .collect();
        for (id, due) in due {
            match due {
                Due::Kill => {
                    if let Some(entry) = self.entries.get_mut(&id) {
                        entry.life.kill_due(now.boot);
                    }
                    self.kill(&id);
                }
                Due::Record => self.record_again(&id),
                Due::Settle => self.settle(&id, now, storage_full),
                Due::Collect => self.collect(&id),
            }
        }
        self.stale = true;
    }

    /// Someone came or left.
    pub(in crate::session) fn watch(&mut self, now: Now) {
        for entry in self.entries.values_mut() {
            let attached = entry.shared.attached.load(Ordering::Acquire) > 0;
            entry.life.watch(now.boot, attached);
        }
        self.stale = true;
    }
}

#[cfg(test)]
mod tests;
