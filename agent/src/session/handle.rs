//! What drivers and the api hold: [`Sessions`] of a sandbox, and each [`Session`].

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cloche_proto::frame;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::bridge::{Bridge, Pipes};
use super::channel::{Channel, EndAll, Parts, REQUESTS};
use super::error::SessionError;
use super::identity::{CommandId, Stream};
use super::input::Input;
use super::log::{Caps, Store, Tails};
use super::reader::{OutputReader, Until};
use super::record::Record;
use super::request::{NewSession, Request};
use super::state::{Ended, Health, Outcome, Pauses, SessionState};
use super::table::{Found, Shared, Table};
use crate::clock;

/// The sessions of one sandbox. Cheap to clone; the channel's task goes on when all clones are dropped, until cancelled.
#[derive(Clone, Debug)]
pub struct Sessions {
    requests: mpsc::Sender<Request>,
    end_all: mpsc::Sender<EndAll>,
    pauses: watch::Sender<Pauses>,
    health: watch::Receiver<Health>,
}

impl Sessions {
    /// Loads what an earlier agent left in `directory` (`sessions` of the sandbox; made where it is missing) and starts the
    /// channel's task, which lives until `cancel`. `pauses` are those of the sandbox until now. `pipes` are those donated at the
    /// sandbox's start; after a restart of the agent there are none, and `bridge` gets new ones.
    pub async fn open(
        directory: &Path,
        pipes: Option<Pipes>,
        bridge: Arc<dyn Bridge>,
        setup: frame::Setup,
        pauses: Pauses,
        cancel: CancellationToken,
    ) -> Result<Self, SessionError> {
        let caps = Caps::default();
        Self::open_with(directory, pipes, bridge, setup, pauses, cancel, caps).await
    }

    pub(super) async fn open_with(
        directory: &Path,
        pipes: Option<Pipes>,
        bridge: Arc<dyn Bridge>,
        setup: frame::Setup,
        pauses: Pauses,
        cancel: CancellationToken,
        caps: Caps,
    ) -> Result<Self, SessionError> {
        let directory = directory.to_owned();
        let (loaded, directory) =
            tokio::task::spawn_blocking(move || (load(&directory), directory))
                .await
                .map_err(|_| SessionError::ShuttingDown)?;
        let now = clock::now();
        let attention = Arc::new(Notify::new());
        let mut table = Table::new(directory, setup, Arc::clone(&attention));
        table.set_paused(pauses.before, now);
        let mut store = Store::new(caps);
        for (record, tails) in loaded? {
            let tails = Arc::new(tails);
            store.add(record.id.clone(), Arc::clone(&tails));
            table.load(record, tails, now);
        }
        let (request_sender, requests) = mpsc::channel(REQUESTS);
        let (end_sender, end_all) = mpsc::channel(1);
        let (health, health_receiver) = watch::channel(Health::default());
        let (pauses, pauses_receiver) = watch::channel(pauses);
        let parts = Parts {
            table,
            store,
            bridge,
            requests,
            end_all,
            pauses: pauses_receiver,
            health,
            attention,
            cancel,
        };
        tokio::spawn(Channel::new(parts, pipes).run());
        Ok(Self {
            requests: request_sender,
            end_all: end_sender,
            pauses,
            health: health_receiver,
        })
    }

    /// Gets the session `id` or creates it; whether it was created. Returns once its record is on disk and the command is on its
    /// way to the sandbox: that it could not be started is told by its end (127, 126).
    ///
    /// Dropping the future does not take the request back.
    pub async fn create(
        &self,
        id: CommandId,
        new: NewSession,
    ) -> Result<(Session, bool), SessionError> {
        let found = self
            .ask(|reply| Request::Create { id, new, reply })
            .await??;
        let created = found.created;
        Ok((self.session(found), created))
    }

    /// The session `id`, running or ended.
    pub async fn get(&self, id: &CommandId) -> Result<Session, SessionError> {
        let id = id.clone();
        let found = self.ask(|reply| Request::Get { id, reply }).await??;
        Ok(self.session(found))
    }

    /// All sessions, running and ended, ordered by id.
    pub async fn list(&self) -> Result<Vec<Session>, SessionError> {
        let found = self.ask(|reply| Request::List { reply }).await?;
        Ok(found.into_iter().map(|found| self.session(found)).collect())
    }

    /// Whether init answers, and output can be stored.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// The sandbox stands still from now on, or goes on. While it does, what is asked of its init waits.
    pub fn set_pauses(&self, pauses: Pauses) {
        self.pauses.send_replace(pauses);
    }

    /// The sandbox has ended by `reason`: takes what the pipes still hold, then ends every session that has not ended.
    /// Returns once all ends are told. Output and ends can still be read; nothing can be created. Idempotent.
    pub async fn end_all(&self, reason: &str) -> Result<(), SessionError> {
        let (reply, done) = oneshot::channel();
        self.end_all
            .send((reason.to_owned(), reply))
            .await
            .map_err(|_| SessionError::ShuttingDown)?;
        done.await.map_err(|_| SessionError::ShuttingDown)
    }

    /// Waits until the channel's task has ended: only then may others open the folder.
    pub async fn closed(&self) {
        self.requests.closed().await;
    }

    fn session(&self, found: Found) -> Session {
        Session {
            shared: found.shared,
            state: found.state,
            requests: self.requests.clone(),
        }
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, SessionError> {
        ask(&self.requests, request).await
    }
}

async fn ask<T>(
    requests: &mpsc::Sender<Request>,
    request: impl FnOnce(oneshot::Sender<T>) -> Request,
) -> Result<T, SessionError> {
    let (reply, answer) = oneshot::channel();
    requests
        .send(request(reply))
        .await
        .map_err(|_| SessionError::ShuttingDown)?;
    answer.await.map_err(|_| SessionError::ShuttingDown)
}

/// One session of a sandbox.
#[derive(Clone, Debug)]
pub struct Session {
    shared: Arc<Shared>,
    state: watch::Receiver<SessionState>,
    requests: mpsc::Sender<Request>,
}

impl Session {
    /// Its id.
    pub fn id(&self) -> &CommandId {
        &self.shared.id
    }

    /// Whether it has a terminal.
    pub fn has_terminal(&self) -> bool {
        self.shared.terminal
    }

    /// Its state, and every later one.
    pub fn state(&self) -> watch::Receiver<SessionState> {
        self.state.clone()
    }

    /// Waits for its end. All output of the command itself may not be in the log yet: an [`OutputReader`] waits for that.
    pub async fn ended(&self) -> Result<Arc<Ended>, SessionError> {
        let mut state = self.state.clone();
        let state = state
            .wait_for(|state| state.ended.is_some())
            .await
            .map_err(|_| SessionError::ShuttingDown)?;
        state.ended.clone().ok_or(SessionError::ShuttingDown)
    }

    /// Waits for its end, and until all output of the command itself is in the log. Where the rest of it never comes, its end
    /// says so and names less. Cancel safe.
    ///
    /// A command's end may be known long before its output is here: init tells the end first, and an agent may be killed between
    /// the two.
    pub async fn settled(&self) -> Result<Arc<Ended>, SessionError> {
        let mut state = self.state.clone();
        let [mut stdout, mut stderr] =
            Stream::ALL.map(|stream| self.shared.tails.tail(stream).span.subscribe());
        loop {
            let here = [&mut stdout, &mut stderr].map(|span| span.borrow_and_update().length);
            let ended = state.borrow_and_update().ended.clone();
            if let Some(ended) = ended
                && ended.stdout <= here[0]
                && ended.stderr <= here[1]
            {
                return Ok(ended);
            }
            // All are levels, looked at above.
            tokio::select! {
                changed = state.changed() => changed,
                changed = stdout.changed() => changed,
                changed = stderr.changed() => changed,
            }
            .map_err(|_| SessionError::ShuttingDown)?;
        }
    }

    /// Counts as a client until the guard is dropped.
    pub fn attach(&self) -> Attachment {
        self.shared.attached.fetch_add(1, Ordering::AcqRel);
        self.shared.attention.notify_one();
        Attachment(Arc::clone(&self.shared))
    }

    /// Reads `stream` from `offset` on.
    pub fn read(&self, stream: Stream, offset: u64, until: Until) -> OutputReader {
        OutputReader::new(
            Arc::clone(&self.shared.tails),
            self.state.clone(),
            stream,
            offset,
            until,
        )
    }

    /// The offsets of `stream` that are kept: the first, and the one after the last.
    pub fn kept(&self, stream: Stream) -> (u64, u64) {
        let span = *self.shared.tails.tail(stream).span.borrow();
        (span.head, span.length)
    }

    /// Takes over the session's stdin from whoever has sent it before: what a client that has gone left behind must not keep the
    /// next one out. Who comes again under the number that is `known` takes it from nobody who came later.
    pub async fn take_input(&self, known: Option<u64>) -> Result<Input, SessionError> {
        let id = self.id().clone();
        let number = self
            .ask(|reply| Request::TakeInput { id, known, reply })
            .await??;
        Ok(Input::new(self.clone(), number))
    }

    /// Sends a signal, 1 to 64, as a key press would: to the foreground process group of its terminal; without one, to the
    /// command's process group. While init cannot be talked to it waits, once per number; one that is on its way is lost if the
    /// channel breaks.
    pub async fn signal(&self, signal: i32) -> Result<(), SessionError> {
        if !(1..=64).contains(&signal) {
            return Err(SessionError::BadSignal { signal });
        }
        let id = self.id().clone();
        self.ask(|reply| Request::Signal { id, signal, reply })
            .await?
    }

    /// Sends SIGTERM to the command itself, not to its children: what it is asked to do is its own to pass on. Holds through
    /// breaks of the channel, after which the command may get it once more.
    pub async fn terminate(&self) -> Result<(), SessionError> {
        let id = self.id().clone();
        self.ask(|reply| Request::Terminate { id, reply }).await?
    }

    /// Sets the size of its terminal.
    pub async fn resize(&self, size: frame::TerminalSize) -> Result<(), SessionError> {
        if !self.has_terminal() {
            return Err(SessionError::NoTerminal {
                id: self.id().clone(),
            });
        }
        let id = self.id().clone();
        self.ask(|reply| Request::Resize { id, size, reply })
            .await?
    }

    /// Kills its whole tree, also what called setsid. Holds through breaks of the channel; its end tells when it is done.
    pub async fn kill(&self) -> Result<(), SessionError> {
        let id = self.id().clone();
        self.ask(|reply| Request::Kill { id, reply }).await?
    }

    pub(super) async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, SessionError> {
        ask(&self.requests, request).await
    }
}

#[cfg(test)]
impl Session {
    /// The way to the task, to wait for its end.
    pub(super) fn requests(&self) -> &mpsc::Sender<Request> {
        &self.requests
    }
}

/// Counts as one client of a session while it lives.
#[derive(Debug)]
pub struct Attachment(Arc<Shared>);

impl Drop for Attachment {
    fn drop(&mut self) {
        self.0.attached.fetch_sub(1, Ordering::AcqRel);
        self.0.attention.notify_one();
    }
}

/// Whether the session `main` of the sandbox whose sessions lie in `directory` has ended, as far as an agent has written down. Blocking.
pub fn main_has_ended(directory: &Path) -> bool {
    let main = CommandId::main();
    let record = Record::load(&main.directory(directory), &main);
    matches!(record, Ok(Some(record)) if record.ended.is_some())
}

/// What is on disk. A directory without a record is of a session that nobody was told of, and is removed.
fn load(directory: &Path) -> Result<Vec<(Record, Tails)>, SessionError> {
    let fail = |source| SessionError::Directory {
        path: directory.to_owned(),
        source,
    };
    std::fs::create_dir_all(directory).map_err(fail)?;
    let mut loaded = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name();
        let Some(Ok(id)) = name.to_str().map(CommandId::parse) else {
            tracing::warn!(path = %entry.path().display(), "not a session; left alone");
            continue;
        };
        let record = match Record::load(&entry.path(), &id) {
            Ok(Some(record)) => record,
            Ok(None) => {
                std::fs::remove_dir_all(entry.path()).map_err(fail)?;
                continue;
            }
            Err(error) => unreadable(id, &error),
        };
        loaded.push((record, Tails::load(&entry.path())?));
    }
    Ok(loaded)
}

/// A record that cannot be read may be of a command that runs. It is never run again, and its end says what is wrong.
fn unreadable(id: CommandId, error: &super::record::RecordError) -> Record {
    let message = crate::told::chain(error);
    tracing::error!(command = %id, error = %message, "session lost");
    let now = clock::now();
    Record {
        id,
        spec: Arc::default(),
        created: now,
        paused: std::time::Duration::ZERO,
        kill_on_detach: None,
        fingerprint: None,
        ended: Some(Arc::new(Ended {
            outcome: Outcome::Lost { message },
            at: now,
            stdout: 0,
            stderr: 0,
            lost: false,
        })),
    }
}
