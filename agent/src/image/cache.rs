//! What is on the node: EROFS files, what is known of them, which references mean them.
//!
//! ```text
//!   DIR/lock                        held by the one agent that uses the directory
//!   DIR/erofs/HEX-vN.erofs          0400, never rewritten; N: the converter's version
//!   DIR/erofs/HEX-vN.json           written after it: without this one the other does not count
//!   DIR/references.json             reference -> digest
//!   DIR/tmp/...                     staging; all of it is a killed agent's when the store is opened
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use jiff::Timestamp;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::error::Failure;
use super::unpack::CONVERTER_VERSION;
use super::{Image, ImageConfig, Lease};

/// How often the removal of a staging directory is begun anew.
const REMOVALS_MAX: usize = 100;

/// The store's directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("the image directory {0} is in use by another agent")]
    InUse(PathBuf),
    /// A file operation failed.
    #[error("{operation} {path}")]
    Io {
        /// `make`, `read`, ...
        operation: &'static str,
        /// The object.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// An address that may not be used without TLS.
    #[error(
        "{0} may not be an insecure registry: only HOST:PORT of this machine can be (127.0.0.1, [::1], localhost)"
    )]
    Insecure(String),
}

/// What is known of an image, on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    digest: Digest,
    size: u64,
    config: ImageConfig,
}

/// The references, on disk.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct References {
    references: BTreeMap<String, Digest>,
}

#[derive(Debug)]
struct Entry {
    record: Record,
    pins: BTreeSet<String>,
    lease: Weak<()>,
    used: Timestamp,
}

#[derive(Debug, Default)]
struct State {
    images: BTreeMap<Digest, Entry>,
    references: BTreeMap<String, Digest>,
}

/// The images on the node. Every method may block on the disk for a moment.
#[derive(Debug)]
pub(super) struct Cache {
    directory: PathBuf,
    state: Mutex<State>,
    next_staging: AtomicU64,
    /// Held until the process ends, however it ends.
    _lock: Flock<File>,
}

/// A directory for one pull. Removed when dropped.
#[derive(Debug)]
pub(super) struct Staging(PathBuf);

impl Staging {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.0);
        // A child that was just killed may make one more file while we look: again, but not for ever.
        let remove = move || {
            let removed = (0..REMOVALS_MAX).find_map(|_| match fs::remove_dir_all(&path) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => None,
                other => Some(other),
            });
            if !matches!(removed, Some(Ok(()))) {
                tracing::warn!(path = %path.display(), ?removed, "staging directory stays until the next start");
            }
        };
        // Unlinking gigabytes takes its time: not on the runtime's threads.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

impl Cache {
    /// Opens or makes the directory, deletes what a killed agent left, reads what is there. What does not belong to a whole image
    /// of this converter's version is deleted.
    pub(super) fn open(directory: &Path) -> Result<Self, OpenError> {
        let io = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::Io {
                operation,
                path,
                source,
            }
        };
        let (erofs, staging) = (directory.join("erofs"), directory.join("tmp"));
        let mut private = DirBuilder::new();
        private.recursive(true).mode(0o700);
        private.create(directory).map_err(io("make", directory))?;
        // Also one that someone made before us.
        fs::set_permissions(directory, Permissions::from_mode(0o700))
            .map_err(io("close to others", directory))?;
        let lock = directory.join("lock");
        let lock = File::create(&lock).map_err(io("make", &lock))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .map_err(|_| OpenError::InUse(directory.to_owned()))?;
        match fs::remove_dir_all(&staging) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(io("remove", &staging)(error));
            }
            _ => {}
        }
        for path in [&erofs, &staging] {
            private.create(path).map_err(io("make", path))?;
        }
        let images = read_images(&erofs).map_err(io("read", &erofs))?;
        let mut references = read_references(&directory.join("references.json"));
        references.retain(|_, digest| images.contains_key(digest));
        Ok(Self {
            directory: directory.to_owned(),
            state: Mutex::new(State { images, references }),
            next_staging: AtomicU64::new(0),
            _lock: lock,
        })
    }

    /// A new staging directory, if `bytes` can be put into it with `reserve` hundredths of the file system still free.
    pub(super) fn stage(&self, bytes: u64, reserve: u64) -> Result<Staging, Failure> {
        let system = nix::sys::statvfs::statvfs(&self.directory).map_err(|errno| {
            let path = self.directory.display();
            Failure::io(
                format_args!("look at the file system of {path}"),
                &errno.into(),
            )
        })?;
        let of_blocks = |blocks: u64| blocks.saturating_mul(system.fragment_size());
        let free = of_blocks(system.blocks_available());
        if bytes > free.saturating_sub(of_blocks(system.blocks()) / 100 * reserve) {
            return Err(Failure::NoSpace);
        }
        let number = self.next_staging.fetch_add(1, Ordering::Relaxed);
        let path = self.directory.join("tmp").join(number.to_string());
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| Failure::io(format_args!("make {}", path.display()), &error))?;
        Ok(Staging(path))
    }

    /// The digest that `reference` meant when it was last resolved.
    pub(super) fn resolve(&self, reference: &str) -> Option<Digest> {
        self.state().references.get(reference).copied()
    }

    /// The image `digest`, if it is here; it counts as used now. One whose file someone deleted is forgotten.
    pub(super) fn get(&self, digest: &Digest, now: Timestamp) -> Option<Image> {
        let mut state = self.state();
        let path = self.erofs(digest);
        let entry = state.images.get_mut(digest)?;
        if fs::metadata(&path).is_ok_and(|known| known.len() == entry.record.size) {
            entry.used = now;
            // Only the order of collection after a restart hangs on it.
            if let Err(error) = touch(&self.record(digest)) {
                tracing::debug!(%digest, %error, "time of use not kept");
            }
            return Some(entry.image(path));
        }
        tracing::warn!(%digest, "the EROFS file of this image is gone");
        state.images.remove(digest);
        None
    }

    /// Takes a finished EROFS file from the staging directory. Whole and on disk, or not there at all.
    pub(super) fn put(
        &self,
        digest: Digest,
        made: &Path,
        size: u64,
        config: ImageConfig,
        now: Timestamp,
    ) -> Result<Image, Failure> {
        let failed = |operation| move |error| Failure::io(operation, &error);
        let record = Record {
            digest,
            size,
            config,
        };
        let path = self.erofs(&digest);
        let file = File::open(made).map_err(failed("open the new image"))?;
        if file
            .metadata()
            .map_err(failed("look at the new image"))?
            .len()
            != size
        {
            return Err(Failure::Node(
                "the new image has another size than was told".to_owned(),
            ));
        }
        file.set_permissions(Permissions::from_mode(0o400))
            .map_err(failed("close the new image to writers"))?;
        file.sync_all().map_err(failed("sync the new image"))?;
        fs::rename(made, &path).map_err(failed("name the new image"))?;
        crate::fault::point("image-named");
        let json = serde_json::to_vec(&record)
            .map_err(|error| Failure::Node(format!("write the image's record: {error}")))?;
        self.write(&self.record(&digest), &json)?;
        let mut state = self.state();
        let entry = state.images.entry(digest).or_insert(Entry {
            record,
            pins: BTreeSet::new(),
            lease: Weak::new(),
            used: now,
        });
        Ok(entry.image(path))
    }

    /// From now on `reference` means `digest`.
    pub(super) fn refer(&self, reference: &str, digest: Digest) -> Result<(), Failure> {
        let mut state = self.state();
        if state.references.get(reference) == Some(&digest) {
            return Ok(());
        }
        let mut references = state.references.clone();
        references.insert(reference.to_owned(), digest);
        self.write_references(&references)?;
        state.references = references;
        Ok(())
    }

    /// Keeps an image from being collected, in the name of `holder`. False: it is not here.
    pub(super) fn pin(&self, digest: &Digest, holder: &str) -> bool {
        let mut state = self.state();
        let Some(entry) = state.images.get_mut(digest) else {
            return false;
        };
        entry.pins.insert(holder.to_owned());
        true
    }

    /// Takes a pin back. One that is not there is fine.
    pub(super) fn unpin(&self, digest: &Digest, holder: &str) {
        if let Some(entry) = self.state().images.get_mut(digest) {
            entry.pins.remove(holder);
        }
    }

    /// Who pins what.
    pub(super) fn pins(&self) -> Vec<(Digest, String)> {
        let state = self.state();
        let pins = state
            .images
            .iter()
            .flat_map(|(digest, entry)| entry.pins.iter().map(|holder| (*digest, holder.clone())));
        pins.collect()
    }

    /// Deletes images that nobody pins or has just got, longest unused first, until the rest has at most `budget` bytes.
    pub(super) fn collect(&self, budget: u64) -> Result<Vec<Digest>, Failure> {
        let mut state = self.state();
        let gone = victims(&state.images, budget);
        if gone.is_empty() {
            return Ok(gone);
        }
        for digest in &gone {
            // The record first: a crash in between leaves a file that does not count.
            for path in [self.record(digest), self.erofs(digest)] {
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(Failure::io(
                            format_args!("remove {}", path.display()),
                            &error,
                        ));
                    }
                    _ => {}
                }
            }
            state.images.remove(digest);
        }
        let mut references = state.references.clone();
        references.retain(|_, digest| !gone.contains(digest));
        self.write_references(&references)?;
        state.references = references;
        Ok(gone)
    }

    fn write_references(&self, references: &BTreeMap<String, Digest>) -> Result<(), Failure> {
        let references = References {
            references: references.clone(),
        };
        let json = serde_json::to_vec(&references)
            .map_err(|error| Failure::Node(format!("write the references: {error}")))?;
        self.write(&self.directory.join("references.json"), &json)
    }

    /// Writes a whole file or none: temporary name, sync, rename, sync of the directory.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
        let number = self.next_staging.fetch_add(1, Ordering::Relaxed);
        let new = self.directory.join("tmp").join(format!("{number}.json"));
        let write = || {
            let mut file = File::create_new(&new)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&new, path)?;
            path.parent()
                .map_or(Ok(()), |parent| File::open(parent)?.sync_all())
        };
        write().map_err(|error| {
            // It may not exist, and is deleted at the next start in any case.
            drop(fs::remove_file(&new));
            Failure::io(format_args!("write {}", path.display()), &error)
        })
    }

    fn erofs(&self, digest: &Digest) -> PathBuf {
        self.directory
            .join("erofs")
            .join(file_name(digest, "erofs"))
    }

    fn record(&self, digest: &Digest) -> PathBuf {
        self.directory.join("erofs").join(file_name(digest, "json"))
    }

    /// No method panics half-way through a change, so a poisoned lock guards a sound state.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn image(&mut self, erofs: PathBuf) -> Image {
        let lease = self.lease.upgrade().unwrap_or_default();
        self.lease = Arc::downgrade(&lease);
        Image {
            digest: self.record.digest,
            erofs,
            size: self.record.size,
            config: self.record.config.clone(),
            lease: Lease(lease),
        }
    }

    fn is_free(&self) -> bool {
        self.pins.is_empty() && self.lease.strong_count() == 0
    }
}

/// Which images have to go for the rest to fit into `budget` bytes: free ones, longest unused first.
fn victims(images: &BTreeMap<Digest, Entry>, budget: u64) -> Vec<Digest> {
    let mut total: u64 = images.values().map(|entry| entry.record.size).sum();
    let mut free: Vec<_> = images.iter().filter(|(_, entry)| entry.is_free()).collect();
    free.sort_by_key(|(digest, entry)| (entry.used, **digest));
    let mut gone = Vec::new();
    for (digest, entry) in free {
        if total <= budget {
            break;
        }
        total -= entry.record.size;
        gone.push(*digest);
    }
    gone
}

fn file_name(digest: &Digest, extension: &str) -> String {
    format!("{}-v{CONVERTER_VERSION}.{extension}", digest.hex())
}

fn touch(path: &Path) -> std::io::Result<()> {
    let now = nix::sys::time::TimeSpec::UTIME_NOW;
    nix::sys::stat::utimensat(
        nix::fcntl::AT_FDCWD,
        path,
        &now,
        &now,
        nix::sys::stat::UtimensatFlags::NoFollowSymlink,
    )?;
    Ok(())
}

/// The whole images in `directory`; deletes all else in it.
fn read_images(directory: &Path) -> std::io::Result<BTreeMap<Digest, Entry>> {
    let mut images = BTreeMap::new();
    let mut known = BTreeSet::new();
    let mut all = Vec::new();
    for file in fs::read_dir(directory)? {
        let path = file?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
            && let Some(entry) = read_image(&path)
        {
            known.insert(path.clone());
            known.insert(path.with_extension("erofs"));
            images.insert(entry.record.digest, entry);
        }
        all.push(path);
    }
    for path in all.iter().filter(|path| !known.contains(*path)) {
        tracing::info!(path = %path.display(), "removing what belongs to no whole image");
        fs::remove_file(path)?;
    }
    Ok(images)
}

/// The image of a record, if both are whole and of this version.
fn read_image(path: &Path) -> Option<Entry> {
    let record: Record = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let used = fs::metadata(path).and_then(|known| known.modified()).ok()?;
    let erofs = fs::metadata(path.with_extension("erofs")).ok()?;
    let is_whole = path.file_name()?.to_str()? == file_name(&record.digest, "json")
        && erofs.len() == record.size;
    is_whole.then(|| Entry {
        record,
        pins: BTreeSet::new(),
        lease: Weak::new(),
        used: Timestamp::try_from(used).unwrap_or_default(),
    })
}

/// The references; none if the file is absent or damaged (then they are resolved again).
fn read_references(path: &Path) -> BTreeMap<String, Digest> {
    let Ok(bytes) = fs::read(path) else {
        return BTreeMap::new();
    };
    match serde_json::from_slice::<References>(&bytes) {
        Ok(references) => references.references,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the references are damaged and start anew");
            BTreeMap::new()
        }
    }
}
