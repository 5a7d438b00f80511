//! The manifest directory: watched, and changed by request.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cloche_crds::rules::{Violations, check_update};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::desired::FileState;
use super::folder::{Folder, FolderError};
use super::scan::{Change, Scan};
use super::{DecodeError, Desired, Remembered, SandboxKey, decode, is_manifest};
use crate::sys::inotify::Events;
use crate::{clock, status};

/// When a directory that could not be listed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Why the directory cannot be watched. Each ends the agent: without its desired state it must not guess.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It cannot be opened, listed or swept.
    #[error("cannot use the manifest directory")]
    Folder(#[from] FolderError),
    /// What was taken over earlier cannot be read.
    #[error("cannot read what was taken over earlier")]
    Remembered(#[from] serde_json::Error),
    /// inotify does not work.
    #[error("cannot watch the manifest directory {}", path.display())]
    Watch {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It was deleted, moved or unmounted.
    #[error(
        "the manifest directory {} is gone; every sandbox goes on: put the directory back, then start the agent", path.display()
    )]
    Gone {
        /// Which.
        path: PathBuf,
    },
}

/// Why a manifest was not put.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// It is no valid Sandbox.
    #[error("cannot apply the manifest: {0}")]
    Invalid(#[from] DecodeError),
    /// It changes what cannot change.
    #[error("cannot apply the manifest of sandbox {}: {violations}", key.name)]
    Immutable {
        /// Which sandbox.
        key: SandboxKey,
        /// What.
        violations: Violations,
    },
    /// There is one, and it was not to be replaced.
    #[error("sandbox {} already exists, by {file}: ask for a replacement, or use another name", key.name)]
    Exists {
        /// Which sandbox.
        key: SandboxKey,
        /// Its manifest.
        file: String,
    },
    /// The file that it would go to holds something else.
    #[error("cannot apply the manifest of sandbox {}: {file} holds something else: rename or remove that file", key.name)]
    FileTaken {
        /// Which sandbox.
        key: SandboxKey,
        /// Which file.
        file: String,
    },
    /// The directory cannot be read or written.
    #[error("cannot apply the manifest")]
    Folder(#[from] FolderError),
}

/// Why a manifest was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// There is none of that name.
    #[error("there is no sandbox {}", .0.name)]
    NotFound(SandboxKey),
    /// The directory cannot be read or written.
    #[error("cannot delete the manifest")]
    Folder(#[from] FolderError),
}

/// A manifest directory. [`run`](Self::run) follows what others do to it; what is done through it is seen at once.
#[derive(Debug)]
pub struct ManifestDirectory {
    folder: Folder,
    /// Held over a whole look or change, so that each sees the directory as the one before left it. Never over an await.
    state: Mutex<State>,
    desired: watch::Sender<Desired>,
    inotify: Mutex<Option<Inotify>>,
}

#[derive(Debug)]
struct State {
    scan: Scan,
    next_incarnation: u64,
    look_again_at: Option<Duration>,
}

impl ManifestDirectory {
    /// Opens the directory at `path` and looks at it for the first time: [`desired`](Self::desired) is whole from the start.
    /// `remembered` is what an earlier run had taken over. Blocks on the disk.
    pub fn open(path: &Path, remembered: Vec<Remembered>) -> Result<Self, SourceError> {
        let folder = Folder::open(path)?;
        folder.sweep()?;
        let mut next_incarnation = 1;
        let desired = Desired::remembered(remembered, &mut next_incarnation)?;
        let watch = |errno: Errno| SourceError::Watch {
            path: path.to_owned(),
            source: errno.into(),
        };
        let inotify =
            Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).map_err(watch)?;
        // Before the first look: what happens between the two is seen twice, never not at all.
        let what = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        inotify
            .add_watch(folder.magic_path().as_c_str(), what)
            .map_err(watch)?;
        let directory = Self {
            folder,
            state: Mutex::new(State {
                scan: Scan::default(),
                next_incarnation,
                look_again_at: None,
            }),
            desired: watch::Sender::new(desired),
            inotify: Mutex::new(Some(inotify)),
        };
        directory.look(&mut directory.state(), &BTreeSet::new())?;
        Ok(directory)
    }

    /// What is desired, now and from now on.
    pub fn desired(&self) -> watch::Receiver<Desired> {
        self.desired.subscribe()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Puts a manifest, YAML or JSON: into the file of its sandbox where there is one, else into `NAME.yaml`. When it returns the
    /// file is on disk and the sandbox desired. Blocks on the disk.
    pub fn put(&self, bytes: &[u8], replace: bool) -> Result<SandboxKey, PutError> {
        let manifest = decode(bytes)?;
        let key = manifest.key;
        let mut state = self.state();
        self.look(&mut state, &BTreeSet::new())?;
        let held = self.desired.borrow().sandboxes.get(&key).cloned();
        let file = match held {
            Some(held) if !replace => {
                return Err(PutError::Exists {
                    key,
                    file: held.file.clone(),
                });
            }
            Some(held) => {
                let violations = check_update(&held.object, &manifest.object);
                if !violations.is_empty() {
                    let violations = Violations(violations);
                    return Err(PutError::Immutable { key, violations });
                }
                held.file.clone()
            }
            None => {
                let names = self.folder.names()?;
                let taken = names
                    .into_iter()
                    .find(|name| is_manifest(name) && status::stem(name) == key.name);
                match taken {
                    Some(file) => return Err(PutError::FileTaken { key, file }),
                    None => format!("{}.yaml", key.name),
                }
            }
        };
        self.folder.replace(&file, bytes, true)?;
        state.scan.note(&file, Change::Settled, clock::boot_time());
        self.look(&mut state, &BTreeSet::new())?;
        Ok(key)
    }

    /// Takes every manifest of a sandbox away. When it returns the sandbox is no longer desired. Blocks on the disk.
    pub fn remove(&self, key: &SandboxKey) -> Result<(), RemoveError> {
        let mut state = self.state();
        let files = self.look(&mut state, &BTreeSet::new())?;
        let held = self
            .desired
            .borrow()
            .sandboxes
            .get(key)
            .map(|held| held.file.clone());
        let claims = files.into_iter().filter_map(|(file, state)| match state {
            FileState::Valid(manifest) if manifest.key == *key => Some(file),
            FileState::Valid(_) | FileState::Invalid(_) | FileState::Unsettled => None,
        });
        let all: BTreeSet<String> = claims.chain(held).collect();
        if all.is_empty() {
            return Err(RemoveError::NotFound(key.clone()));
        }
        for file in &all {
            self.folder.remove(file)?;
        }
        self.folder.sync()?;
        self.look(&mut state, &BTreeSet::from([key.clone()]))?;
        Ok(())
    }

    /// Follows the directory until `stop`. To be called once.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) -> Result<(), SourceError> {
        let watch = |source| SourceError::Watch {
            path: self.path().to_owned(),
            source,
        };
        let inotify = self
            .inotify
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let inotify =
            inotify.ok_or_else(|| watch(std::io::Error::other("it is already followed")))?;
        let inotify = Events::register(inotify).map_err(watch)?;
        loop {
            let look_again_at = self.state().look_again_at;
            // Every arm is cancel safe: events stay in the kernel until they are taken, time and token keep themselves.
            let events = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                events = inotify.next() => events.map_err(watch)?,
                () = at(look_again_at) => Vec::new(),
            };
            if !events.is_empty() && events.iter().all(is_of_others) {
                // Such as our own status files, of which each change of a sandbox writes one.
                continue;
            }
            let directory = Arc::clone(&self);
            let handled = tokio::task::spawn_blocking(move || directory.follow(&events)).await;
            handled.map_err(|error| watch(std::io::Error::other(error)))??;
        }
    }

    /// Takes in what inotify told, and looks.
    fn follow(&self, events: &[InotifyEvent]) -> Result<(), SourceError> {
        let mut state = self.state();
        let now = clock::boot_time();
        let mut matters = state.look_again_at.is_some_and(|at| at <= now);
        for event in events {
            let mask = event.mask;
            if mask.intersects(
                AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_UNMOUNT | AddWatchFlags::IN_IGNORED,
            ) {
                return Err(SourceError::Gone {
                    path: self.path().to_owned(),
                });
            }
            if mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                state.scan.forget();
                matters = true;
            }
            let change = if mask.intersects(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MODIFY) {
                Change::Writing
            } else if mask.contains(AddWatchFlags::IN_ATTRIB) {
                Change::Touched
            } else {
                Change::Settled
            };
            if let Some(name) = event.name.as_ref().and_then(|name| name.to_str()) {
                matters |= state.scan.note(name, change, now);
            }
        }
        // Its removal is told by DELETE_SELF only when the last descriptor is closed, which is ours.
        if self.folder.is_removed()? {
            return Err(SourceError::Gone {
                path: self.path().to_owned(),
            });
        }
        if !matters {
            return Ok(());
        }
        match self.look(&mut state, &BTreeSet::new()) {
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "everything that was desired stays so"
                );
                state.look_again_at = Some(now + RETRY);
            }
        }
        Ok(())
    }

    /// Looks at the directory and publishes what it wants now.
    fn look(
        &self,
        state: &mut State,
        removed: &BTreeSet<SandboxKey>,
    ) -> Result<BTreeMap<String, FileState>, FolderError> {
        // A copy, so that no reader of the channel waits for the disk.
        let before = self.desired.borrow().clone();
        let held = before
            .sandboxes
            .iter()
            .filter(|(key, _)| !removed.contains(key))
            .map(|(_, held)| held.file.clone())
            .collect();
        let now = clock::now();
        let seen = state.scan.look(&self.folder, &held, now.boot)?;
        state.look_again_at = seen.look_again_at;
        let next = before.next(&seen.files, removed, &mut state.next_incarnation, now.wall);
        self.desired.send_if_modified(|desired| {
            let changed = *desired != next;
            *desired = next;
            changed
        });
        Ok(seen.files)
    }

    /// A look that panicked left nothing half-done that the next one does not do anew.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an event is of a file in the directory that is no manifest.
fn is_of_others(event: &InotifyEvent) -> bool {
    let name = event.name.as_ref().and_then(|name| name.to_str());
    name.is_some_and(|name| !is_manifest(name))
}

/// Returns at a time since boot; never where there is none.
async fn at(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time.saturating_sub(clock::boot_time())).await,
        None => std::future::pending().await,
    }
}
