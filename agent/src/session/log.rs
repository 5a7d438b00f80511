//! Output on the node: `sessions/<command id>/{stdout,stderr}`.
//!
//! A file's length is the next offset that its stream expects, so after a restart the files alone tell how far each stream is
//! held. Nothing is synced: sessions die with the node. The caps are kept by punching holes at the head, so offsets stay true;
//! what was dropped is remembered in `heads` (two little-endian `u64`, in the order of [`Stream::ALL`]) and not derived from
//! the holes, since a file system may store a run of zeros that a command printed as a hole too.
//!
//! A head is written to `heads` and told to readers *before* its hole is punched: a reader that looks at the head after it has
//! read knows whether what it read was still there.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{FallocateFlags, fallocate};
use tokio::sync::{Semaphore, watch};

use super::epoch::Fresh;
use super::identity::{CommandId, Stream};

/// Batches of any sandbox that are written at the same time. Waiters are served in order and a sandbox has one batch in
/// flight, so sandboxes that flood share the disk evenly, and none can fill the runtime's blocking threads.
static WRITERS: Semaphore = Semaphore::const_new(4);

/// Files held open for one sandbox; beyond, all are closed and opened again when needed.
const OPEN_FILES: usize = 64;
/// Holes begin and end at multiples of this, in bytes, or at the file's end.
const BLOCK: u64 = 4096;
const HEADS: &str = "heads";

/// How much output is kept, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caps {
    /// Of one session, both streams together.
    pub(super) session: u64,
    /// Of all sessions of a sandbox.
    pub(super) sandbox: u64,
    /// Dropped at once when a cap is reached.
    pub(super) piece: u64,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            session: 64 << 20,
            sandbox: 256 << 20,
            piece: 4 << 20,
        }
    }
}

/// Output that could not be stored, or dropped.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {path}")]
pub struct LogError {
    operation: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl LogError {
    pub(super) fn new(operation: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self {
            operation,
            path: path.to_owned(),
            source: source.into(),
        }
    }

    fn is_full(&self) -> bool {
        matches!(
            self.source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }
}

/// What is kept of a stream: offsets from `head` up to `length`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) head: u64,
    pub(super) length: u64,
}

/// One stream's file, as its writer and its readers share it.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) path: PathBuf,
    /// Written by the [`Store`] alone.
    pub(super) span: watch::Sender<Span>,
}

/// Both files of a session.
#[derive(Debug)]
pub(super) struct Tails {
    directory: PathBuf,
    pub(super) streams: [Tail; 2],
}

impl Tails {
    /// Of a session that has no output yet. Touches nothing.
    pub(super) fn new(directory: &Path) -> Self {
        Self::with(directory, [Span::default(); 2])
    }

    fn with(directory: &Path, spans: [Span; 2]) -> Self {
        Self {
            directory: directory.to_owned(),
            streams: Stream::ALL.map(|stream| Tail {
                path: directory.join(stream.file_name()),
                span: watch::Sender::new(spans[stream.index()]),
            }),
        }
    }

    /// Of a session that an earlier agent began.
    pub(super) fn load(directory: &Path) -> Result<Self, LogError> {
        let mut spans = [Span::default(); 2];
        for stream in Stream::ALL {
            let path = directory.join(stream.file_name());
            match fs::symlink_metadata(&path) {
                Ok(metadata) => spans[stream.index()].length = metadata.len(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(LogError::new("look at", &path, error)),
            }
        }
        let path = directory.join(HEADS);
        match fs::read(&path) {
            Ok(bytes) => {
                for (span, bytes) in spans.iter_mut().zip(bytes.chunks(8)) {
                    // Cut short or beyond the end: what is left cannot be told from holes, so it counts as dropped.
                    span.head = <[u8; 8]>::try_from(bytes)
                        .map_or(span.length, u64::from_le_bytes)
                        .min(span.length);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(LogError::new("read", &path, error)),
        }
        Ok(Self::with(directory, spans))
    }

    pub(super) fn tail(&self, stream: Stream) -> &Tail {
        &self.streams[stream.index()]
    }

    pub(super) fn lengths(&self) -> [u64; 2] {
        Stream::ALL.map(|stream| self.tail(stream).span.borrow().length)
    }

    fn kept(&self) -> u64 {
        self.streams.iter().map(Tail::kept).sum()
    }
}

impl Tail {
    fn kept(&self) -> u64 {
        let span = *self.span.borrow();
        span.length - span.head
    }
}

/// One thing to do to the logs of a sandbox.
#[derive(Debug)]
pub(super) enum Job {
    /// Append output.
    Append {
        /// The session's files.
        tails: Arc<Tails>,
        /// What to append.
        fresh: Fresh,
    },
    /// Remove the session's directory.
    Remove(CommandId, Arc<Tails>),
}

/// What came of a batch.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Streams that grew, with their lengths now.
    pub(super) written: Vec<(CommandId, Stream, u64)>,
    /// Directories that are gone.
    pub(super) removed: Vec<CommandId>,
    /// Why the rest of the batch was thrown away. It is not acknowledged and comes again.
    pub(super) error: Option<LogError>,
}

#[derive(Debug)]
struct Open {
    tails: Arc<Tails>,
    streams: [Option<File>; 2],
    heads: Option<File>,
}

/// The writing side of all logs of one sandbox. Blocking; [`Store::run`] takes it to a thread.
#[derive(Debug)]
pub(super) struct Store {
    caps: Caps,
    sessions: BTreeMap<CommandId, Open>,
    /// Bytes kept of all sessions.
    kept: u64,
    open: usize,
}

impl Store {
    pub(super) fn new(caps: Caps) -> Self {
        Self {
            caps,
            sessions: BTreeMap::new(),
            kept: 0,
            open: 0,
        }
    }

    /// Lets what is already kept of a session count for the sandbox's cap.
    pub(super) fn add(&mut self, id: CommandId, tails: Arc<Tails>) {
        if let Entry::Vacant(entry) = self.sessions.entry(id) {
            self.kept += tails.kept();
            entry.insert(Open {
                tails,
                streams: [None, None],
                heads: None,
            });
        }
    }

    /// Does a batch on a blocking thread, when it is this sandbox's turn.
    pub(super) async fn run(self, batch: Vec<Job>) -> Result<(Self, Done), tokio::task::JoinError> {
        // Never closed.
        let permit = WRITERS.acquire().await;
        let result = tokio::task::spawn_blocking(move || {
            let mut store = self;
            let done = store.apply(batch);
            (store, done)
        })
        .await;
        drop(permit);
        result
    }

    fn apply(&mut self, batch: Vec<Job>) -> Done {
        let mut done = Done::default();
        for job in batch {
            match job {
                Job::Append { tails, fresh } => {
                    if done.error.is_some() {
                        continue;
                    }
                    let (id, stream) = (fresh.id.clone(), fresh.stream);
                    self.add(id.clone(), Arc::clone(&tails));
                    let before = tails.tail(stream).span.borrow().length;
                    done.error = self.append(&tails, &fresh).err();
                    let length = tails.tail(stream).span.borrow().length;
                    if length > before {
                        match done.written.last_mut() {
                            Some(last) if last.0 == id && last.1 == stream => last.2 = length,
                            _ => done.written.push((id, stream, length)),
                        }
                    }
                }
                Job::Remove(id, tails) => {
                    if self.sessions.remove(&id).is_some() {
                        self.kept -= tails.kept();
                    }
                    match fs::remove_dir_all(&tails.directory) {
                        Ok(()) => done.removed.push(id),
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {
                            done.removed.push(id);
                        }
                        Err(error) => {
                            let error = LogError::new("remove", &tails.directory, error);
                            tracing::warn!(error = %crate::told::chain(&error), "old output stays on disk");
                            // The agent's next start finds it and tries again.
                            done.removed.push(id);
                        }
                    }
                }
            }
        }
        done
    }

    fn append(&mut self, tails: &Tails, fresh: &Fresh) -> Result<(), LogError> {
        self.make_room(&fresh.id, fresh.data.len() as u64)?;
        let mut rest = fresh.data.as_slice();
        while !rest.is_empty() {
            match self.write(tails, &fresh.id, fresh.stream, rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.is_full() && self.drop_largest(None)? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes at the end. What was written counts at once, also when it is less than asked for.
    fn write(
        &mut self,
        tails: &Tails,
        id: &CommandId,
        stream: Stream,
        bytes: &[u8],
    ) -> Result<usize, LogError> {
        let tail = tails.tail(stream);
        let length = tail.span.borrow().length;
        let count = self
            .file(id, stream)?
            .write_at(bytes, length)
            .map_err(|error| LogError::new("append to", &tail.path, error))?;
        if count == 0 {
            return Err(LogError::new(
                "append to",
                &tail.path,
                io::ErrorKind::WriteZero,
            ));
        }
        tail.span
            .send_modify(|span| span.length = length + count as u64);
        self.kept += count as u64;
        Ok(count)
    }

    /// Drops old output until `more` bytes of the session `id` are within both caps.
    fn make_room(&mut self, id: &CommandId, more: u64) -> Result<(), LogError> {
        while self
            .sessions
            .get(id)
            .is_some_and(|open| open.tails.kept() + more > self.caps.session)
            && self.drop_largest(Some(id))?
        {}
        // Largest first: a session that prints little keeps all of it beside one that floods.
        while self.kept + more > self.caps.sandbox && self.drop_largest(None)? {}
        Ok(())
    }

    /// Drops a piece of the head of the largest stream, of one session or of all. False where nothing is left to drop.
    fn drop_largest(&mut self, of: Option<&CommandId>) -> Result<bool, LogError> {
        let largest = self
            .sessions
            .iter()
            .filter(|(id, _)| of.is_none_or(|of| of == *id))
            .max_by_key(|(_, open)| open.tails.kept())
            .and_then(|(id, open)| {
                let stream = Stream::ALL
                    .into_iter()
                    .max_by_key(|stream| open.tails.tail(*stream).kept())?;
                (open.tails.tail(stream).kept() > 0)
                    .then(|| (id.clone(), stream, Arc::clone(&open.tails)))
            });
        let Some((id, stream, tails)) = largest else {
            return Ok(false);
        };
        let tail = tails.tail(stream);
        let span = *tail.span.borrow();
        let head = (span.head + self.caps.piece)
            .next_multiple_of(BLOCK)
            .min(span.length);
        let mut heads = [0; 16];
        for (at, other) in Stream::ALL.into_iter().enumerate() {
            let offset = if other == stream {
                head
            } else {
                tails.tail(other).span.borrow().head
            };
            heads[at * 8..][..8].copy_from_slice(&offset.to_le_bytes());
        }
        let path = tails.directory.join(HEADS);
        self.heads(&id)?
            .write_all_at(&heads, 0)
            .map_err(|error| LogError::new("write", &path, error))?;
        tail.span.send_modify(|span| span.head = head);
        self.kept -= head - span.head;
        let from = span.head / BLOCK * BLOCK;
        // Both are lengths of real files.
        let (from, length) = (from.cast_signed(), (head - from).cast_signed());
        fallocate(
            self.file(&id, stream)?,
            FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE,
            from,
            length,
        )
        .map_err(|error| LogError::new("punch a hole into", &tail.path, error))?;
        Ok(true)
    }

    /// A stream's file. The file of heads is made with it, so that dropping needs no room on a full disk.
    fn file(&mut self, id: &CommandId, stream: Stream) -> Result<&File, LogError> {
        self.heads(id)?;
        let at = stream.index();
        let open = self.entry(id)?;
        if open.streams[at].is_none() {
            let file = open_at(&open.tails.streams[at].path)?;
            self.open += 1;
            self.entry(id)?.streams[at] = Some(file);
        }
        self.entry(id)?.streams[at]
            .as_ref()
            .ok_or_else(|| missing(id))
    }

    fn heads(&mut self, id: &CommandId) -> Result<&File, LogError> {
        if self.entry(id)?.heads.is_none() {
            if self.open >= OPEN_FILES {
                for open in self.sessions.values_mut() {
                    open.streams = [None, None];
                    open.heads = None;
                }
                self.open = 0;
            }
            let path = self.entry(id)?.tails.directory.join(HEADS);
            let file = open_at(&path)?;
            let length = file
                .metadata()
                .map_err(|error| LogError::new("look at", &path, error))?
                .len();
            if length == 0 {
                file.write_all_at(&[0; 16], 0)
                    .map_err(|error| LogError::new("write", &path, error))?;
            }
            self.open += 1;
            self.entry(id)?.heads = Some(file);
        }
        self.entry(id)?.heads.as_ref().ok_or_else(|| missing(id))
    }

    fn entry(&mut self, id: &CommandId) -> Result<&mut Open, LogError> {
        self.sessions.get_mut(id).ok_or_else(|| missing(id))
    }
}

fn missing(id: &CommandId) -> LogError {
    LogError::new("find", Path::new(id.as_str()), io::ErrorKind::NotFound)
}

/// Opens without truncating. The directory is ours alone; a link in it would be another's doing.
fn open_at(path: &Path) -> Result<File, LogError> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC)
        .open(path)
        .map_err(|error| LogError::new("open", path, error))
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
