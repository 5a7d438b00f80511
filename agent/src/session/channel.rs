//! The task that owns one sandbox's channel: pipes, logs, records. It decides nothing: [`Table`], [`Epoch`](super::epoch) and
//! [`Liveness`] do.
//!
//! Queues and what happens when they are full:
//! - requests of handles: [`REQUESTS`]; the handle waits.
//! - frames to the holder: bounded by the epoch's outbox; what does not fit waits as a level, signals once per number.
//! - output for the logs: one batch in flight and one of [`BATCH`] bytes; then the pipe is not read, so the holder blocks, so
//!   the command does.

mod pipes;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::net::unix::pipe;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use self::pipes::{readable, writable};
use super::bridge::{Bridge, BridgeError, Pipes};
use super::epoch::Event;
use super::identity::CommandId;
use super::liveness::{Act, Liveness};
use super::log::{Done, Store};
use super::record::{self, RecordError};
use super::request::Request;
use super::state::{Health, Link, Pauses};
use super::table::Table;
use crate::clock::{self, Now};
use crate::fault;

/// Requests that wait for the task.
pub(super) const REQUESTS: usize = 64;
/// Output gathered for one write, in bytes, before the pipe is left alone.
const BATCH: usize = 512 * 1024;
/// Read from the pipe at once, in bytes.
const READ: usize = 128 * 1024;
/// Reads in one turn of the task.
const READS: usize = 8;
/// How long a bridge may take to be made.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before output is asked for again that could not be stored.
const STORAGE_RETRY: Duration = Duration::from_secs(1);
/// Longest sleep. Timers stand still while the machine is suspended and deadlines do not, so they are looked at now and then.
const LONGEST_SLEEP: Duration = Duration::from_mins(1);

/// The sandbox has ended: reason, and whom to tell once every session's end is told.
pub(super) type EndAll = (String, oneshot::Sender<()>);

type Connecting = BoxFuture<'static, Result<Pipes, BridgeError>>;
type Writing = BoxFuture<'static, Result<(Store, Done), JoinError>>;
type Recorded = (CommandId, Result<(), RecordError>);

enum Finish {
    No,
    /// What is left in the pipes was read; the logs are being written.
    Draining(String),
    /// Every session was told to end.
    Ending,
    Done,
}

pub(super) struct Channel {
    pub(super) table: Table,
    liveness: Liveness,
    /// Nothing once all is over: it holds on to the instance.
    bridge: Option<Arc<dyn Bridge>>,
    requests: mpsc::Receiver<Request>,
    end_all: mpsc::Receiver<EndAll>,
    pauses: watch::Receiver<Pauses>,
    health: watch::Sender<Health>,
    attention: Arc<Notify>,
    cancel: CancellationToken,
    /// The sandbox stands still: it is waited for, and nothing that it leaves undone counts.
    is_paused: bool,
    pipes: Option<(pipe::Receiver, pipe::Sender)>,
    connecting: Option<Connecting>,
    /// Nothing while a batch is being written.
    store: Option<Store>,
    writing: Option<Writing>,
    recording: FuturesUnordered<BoxFuture<'static, Recorded>>,
    /// When a new epoch asks again for the output that could not be stored.
    storage_retry: Option<Duration>,
    /// Why output cannot be stored.
    log_full: Option<String>,
    buffer: Vec<u8>,
    events: Vec<Event>,
    finish: Finish,
    finished: Vec<oneshot::Sender<()>>,
}

/// What the task is made of.
pub(super) struct Parts {
    pub(super) table: Table,
    pub(super) store: Store,
    pub(super) bridge: Arc<dyn Bridge>,
    pub(super) requests: mpsc::Receiver<Request>,
    pub(super) end_all: mpsc::Receiver<EndAll>,
    pub(super) pauses: watch::Receiver<Pauses>,
    pub(super) health: watch::Sender<Health>,
    pub(super) attention: Arc<Notify>,
    pub(super) cancel: CancellationToken,
}

/// What woke the task.
enum Woken {
    Request(Request),
    EndAll(EndAll),
    Pauses(Pauses),
    Attention,
    Readable,
    Writable,
    Logged(Result<(Store, Done), JoinError>),
    Recorded(Recorded),
    Connected(Result<Pipes, BridgeError>),
    Timer,
    Cancelled,
}

impl Channel {
    pub(super) fn new(parts: Parts, pipes: Option<Pipes>) -> Self {
        let now = clock::now();
        let is_paused = parts.pauses.borrow().is_paused;
        let mut channel = Self {
            table: parts.table,
            liveness: Liveness::new(now.boot),
            bridge: Some(parts.bridge),
            requests: parts.requests,
            end_all: parts.end_all,
            is_paused,
            pauses: parts.pauses,
            health: parts.health,
            attention: parts.attention,
            cancel: parts.cancel,
            pipes: None,
            connecting: None,
            store: Some(parts.store),
            writing: None,
            recording: FuturesUnordered::new(),
            storage_retry: None,
            log_full: None,
            buffer: vec![0; READ],
            events: Vec::new(),
            finish: Finish::No,
            finished: Vec::new(),
        };
        if let Some(pipes) = pipes {
            channel.take_pipes(pipes, true, now);
        }
        channel
    }

    pub(super) async fn run(mut self) {
        loop {
            let now = clock::now();
            self.advance(now);
            match self.wait(now).await {
                Woken::Cancelled => break,
                woken => self.on_woken(woken, clock::now()),
            }
        }
        // A later agent, or a test, may open the same files: leave no write behind.
        if let Some(writing) = self.writing.take() {
            drop(writing.await);
        }
        while self.recording.next().await.is_some() {}
    }

    /// Everything that can be done without waiting.
    fn advance(&mut self, now: Now) {
        if !self.may_read() || self.is_paused {
            self.liveness.held_back(now.boot);
        }
        if !self.is_paused {
            self.table.due(now, self.storage_retry.is_some());
            let acts = self.liveness.due(now.boot, self.table.is_running());
            for act in acts {
                self.act(act, now);
            }
        }
        if self.storage_retry.is_some_and(|at| at <= now.boot) {
            self.storage_retry = None;
            if self.table.epoch.is_open() {
                self.act(Act::Hello, now);
            }
        }
        self.start_batch();
        self.finish(now);
        self.start_batch();
        self.start_records();
        self.table.epoch.pump();
        if self.table.epoch.take_asked() {
            self.liveness.asked(now.boot);
        }
        self.flush(now);
        self.show();
    }

    /// Whether there is room for more output.
    fn may_read(&self) -> bool {
        self.table.batch_bytes < BATCH
    }

    async fn wait(&mut self, now: Now) -> Woken {
        let running = self.table.is_running();
        let of_guest = [self.table.next_due(), self.liveness.next(running)];
        let sleep = of_guest
            .into_iter()
            .filter(|_| !self.is_paused)
            .chain([self.storage_retry])
            .flatten()
            .min()
            .map(|at| at.saturating_sub(now.boot).min(LONGEST_SLEEP));
        let may_read = self.may_read();
        let must_write = !self.table.epoch.outbox.is_empty();
        let pipes = self.pipes.as_ref();
        // Every arm is cancel safe: channels and notifications keep what was not taken, readiness is asked for again, and the
        // futures of work in flight are owned by `self` and polled by reference.
        tokio::select! {
            () = self.cancel.cancelled() => Woken::Cancelled,
            Some(request) = self.requests.recv() => Woken::Request(request),
            Some(end) = self.end_all.recv() => Woken::EndAll(end),
            Ok(()) = self.pauses.changed() => Woken::Pauses(*self.pauses.borrow_and_update()),
            () = self.attention.notified() => Woken::Attention,
            () = readable(pipes), if may_read && pipes.is_some() => Woken::Readable,
            () = writable(pipes), if must_write && pipes.is_some() => Woken::Writable,
            Some(logged) = optional(&mut self.writing) => Woken::Logged(logged),
            Some(recorded) = self.recording.next() => Woken::Recorded(recorded),
            Some(connected) = optional(&mut self.connecting) => Woken::Connected(connected),
            () = tokio::time::sleep(sleep.unwrap_or_default()), if sleep.is_some() => Woken::Timer,
        }
    }

    fn on_woken(&mut self, woken: Woken, now: Now) {
        match woken {
            Woken::Request(request) => {
                self.table.on_request(request, now);
                // Those that came meanwhile: one turn of the loop for all.
                for _ in 1..REQUESTS {
                    let Ok(request) = self.requests.try_recv() else {
                        break;
                    };
                    self.table.on_request(request, now);
                }
            }
            Woken::Pauses(pauses) => {
                self.is_paused = pauses.is_paused && matches!(self.finish, Finish::No);
                self.table.set_paused(pauses.before, now);
                // Whatever it owes, it has its time from now on.
                self.liveness.held_back(now.boot);
            }
            Woken::EndAll((reason, reply)) => {
                self.is_paused = false;
                self.finished.push(reply);
                if matches!(self.finish, Finish::No) {
                    self.drain(now);
                    self.lose_pipes();
                    self.connecting = None;
                    self.liveness.over();
                    self.finish = Finish::Draining(reason);
                }
            }
            Woken::Attention => self.table.watch(now),
            Woken::Readable => {
                // A full buffer means that there may be more: one wake for some of it. Not for all: frames that hold no output
                // fill no batch, and a sandbox that never stops sending them must not keep this task from all else.
                for _ in 0..READS {
                    if !self.may_read() || self.read(now) < READ {
                        break;
                    }
                }
            }
            Woken::Logged(result) => {
                self.writing = None;
                self.on_logged(result, now);
            }
            Woken::Recorded((id, result)) => {
                fault::point("session-recorded");
                self.table.on_recorded(&id, result, now);
            }
            Woken::Connected(result) => {
                self.connecting = None;
                match result {
                    Ok(pipes) => self.take_pipes(pipes, false, now),
                    // It was answered on other pipes meanwhile.
                    Err(error) if self.liveness.is_open() => {
                        tracing::debug!(error = %crate::told::chain(&error), "bridge given up");
                        // The holder may have taken the bridge's pipes all the same: a pong says that it did not.
                        self.table.epoch.ping_if_open();
                    }
                    Err(error) => self.fail(crate::told::chain(&error), now),
                }
            }
            // What is due, and what can be written, is looked at in every turn.
            Woken::Writable | Woken::Timer | Woken::Cancelled => {}
        }
    }

    fn act(&mut self, act: Act, now: Now) {
        let Some(bridge) = self.bridge.clone() else {
            return;
        };
        match act {
            Act::Ping => {
                self.table.epoch.ping_if_open();
            }
            Act::Hello if self.pipes.is_some() => self.greet(false, false, now),
            // The pipes broke meanwhile.
            Act::Hello => self.fail("its pipes are closed".to_owned(), now),
            Act::Fail => self.fail("its init does not answer".to_owned(), now),
            Act::Wake => {
                tokio::spawn(async move {
                    match tokio::time::timeout(CONNECT_TIMEOUT, bridge.wake()).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => {
                            tracing::debug!(error = %crate::told::chain(&error), "cloche-init not woken");
                        }
                        Err(_) => tracing::debug!("cloche-init not woken in time"),
                    }
                });
            }
            // The one under way does as well, and ends in time.
            Act::Bridge if self.connecting.is_some() => {}
            Act::Bridge => {
                self.connecting = Some(Box::pin(async move {
                    tokio::time::timeout(CONNECT_TIMEOUT, bridge.connect())
                        .await
                        .unwrap_or_else(|elapsed| {
                            Err(BridgeError {
                                operation: "bridge to",
                                source: elapsed.into(),
                            })
                        })
                }));
            }
        }
    }

    fn on_event(&mut self, event: Event, now: Now) {
        match &event {
            Event::Opened { .. } => {
                // Where it answered on the pipes that there were, a bridge may still be under way. It is waited for: the holder
                // listens to the bridge's pipes from the moment at which it has them, and to no others.
                self.liveness.opened(now.boot);
                if !self.liveness.is_unavailable() {
                    self.table.unavailable = None;
                }
                self.health.send_if_modified(|health| match health.link {
                    Link::Connecting | Link::Unavailable { .. }
                        if self.table.unavailable.is_none() =>
                    {
                        health.link = Link::Up;
                        true
                    }
                    _ => false,
                });
            }
            Event::SetupDone(outcome) => {
                self.health.send_if_modified(|health| {
                    let changed = health.setup.as_ref() != Some(outcome);
                    health.setup = Some(outcome.clone());
                    changed
                });
            }
            Event::SpawnerKilled(message) => {
                self.health.send_modify(|health| {
                    health.link = Link::SpawnerKilled {
                        message: message.clone(),
                    };
                });
            }
            Event::Broken(violation) => {
                tracing::debug!(%violation, refused = self.table.epoch.refused(), "epoch broken");
                for act in self.liveness.broken(now.boot) {
                    self.act(act, now);
                }
                if self.liveness.is_unavailable() {
                    self.table.unavailable = Some(format!("it breaks the protocol: {violation}"));
                }
            }
            Event::Changed { .. } | Event::Output(_) | Event::Pong(_) => {}
        }
        self.table.on_event(event, now);
    }

    fn start_batch(&mut self) {
        if self.table.batch.is_empty() {
            return;
        }
        if let Some(store) = self.store.take() {
            self.table.batch_bytes = 0;
            let batch = std::mem::take(&mut self.table.batch);
            self.writing = Some(Box::pin(store.run(batch)));
        }
    }

    fn on_logged(&mut self, result: Result<(Store, Done), JoinError>, now: Now) {
        match result {
            Ok((store, done)) => {
                fault::point("session-output-written");
                self.store = Some(store);
                if let Some(error) = &done.error {
                    self.storage_retry = Some(now.boot + STORAGE_RETRY);
                    let error = crate::told::chain(error);
                    if self.log_full.is_none() {
                        tracing::warn!(%error, "output cannot be stored; commands that print are blocked");
                    }
                    self.log_full = Some(error);
                } else if !done.written.is_empty() {
                    self.log_full = None;
                }
                self.table.on_logged(&done);
            }
            // A panic in the log writer is a bug. The task ends, and every handle says so.
            Err(error) => {
                tracing::error!(%error, "the log writer died");
                self.cancel.cancel();
            }
        }
    }

    fn start_records(&mut self) {
        for write in std::mem::take(&mut self.table.writes) {
            fault::point("session-record");
            self.recording.push(Box::pin(async move {
                let id = write.id;
                let result = tokio::task::spawn_blocking(move || {
                    record::store(&write.directory, &write.bytes)
                })
                .await
                .unwrap_or_else(|error| {
                    Err(RecordError::Malformed {
                        path: record::FILE.into(),
                        what: format!("was not written: {error}"),
                    })
                });
                (id, result)
            }));
        }
    }

    /// The steps of the end, each once the one before is done.
    fn finish(&mut self, now: Now) {
        let written = self.table.batch.is_empty() && self.writing.is_none();
        if let Finish::Draining(reason) = &self.finish
            && written
        {
            let reason = reason.clone();
            self.table.end_all(&reason, now);
            self.finish = Finish::Ending;
        }
        if matches!(self.finish, Finish::Ending) && self.table.all_ended() {
            self.finish = Finish::Done;
            // This task stays for those who read what is kept, for as long as the sandbox's object does.
            self.bridge = None;
            self.buffer = Vec::new();
            self.health.send_modify(|health| health.link = Link::Ended);
        }
        if matches!(self.finish, Finish::Done) {
            for reply in self.finished.drain(..) {
                // Whoever asked may have gone.
                reply.send(()).unwrap_or_default();
            }
        }
    }

    /// Shows what became of the link and the storage of records.
    fn show(&mut self) {
        let unavailable = self.table.unavailable.as_ref();
        let full = self.log_full.as_ref().or(self.table.record_full.as_ref());
        self.health.send_if_modified(|health| {
            let before = health.clone();
            match (&health.link, unavailable) {
                (Link::Connecting | Link::Up | Link::Unavailable { .. }, Some(why)) => {
                    health.link = Link::Unavailable { why: why.clone() };
                }
                (Link::Unavailable { .. }, None) if self.table.epoch.is_open() => {
                    health.link = Link::Up;
                }
                _ => {}
            }
            if health.storage_full.as_ref() != full {
                health.storage_full = full.cloned();
            }
            *health != before
        });
    }
}

/// The outcome of work that may be in flight. It stays where it is until it is done; the caller then takes it away.
async fn optional<T>(work: &mut Option<BoxFuture<'static, T>>) -> Option<T> {
    match work {
        Some(work) => Some(work.await),
        None => None,
    }
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
