//! The store on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::manifest::{MAX_LENGTH, Manifest, Role};
use crate::fault;
use crate::image::Digest;
use crate::runsc::SavedFiles;

/// Of the file system so many hundredths stay free: records and output of sandboxes may lie on it too.
const RESERVE: u64 = 5;

/// Something that the store could not do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system refused.
    #[error("{operation} {path}")]
    File {
        /// `make`, `write`, `read`, ...
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is too little room.
    #[error(
        "the node's disk has no room for {wanted} bytes more beside the {RESERVE} % that stay free: {free} are left"
    )]
    NoSpace {
        /// Bytes that were asked for.
        wanted: u64,
        /// Bytes that may be used.
        free: u64,
    },
    /// What is kept is not what was.
    #[error("{digest} {what}")]
    Corrupt {
        /// Of the manifest or file.
        digest: Digest,
        /// What is wrong with it.
        what: String,
    },
}

impl Error {
    /// Whether what is kept cannot be had any more, however often that is tried.
    pub fn is_corrupt(&self) -> bool {
        matches!(self, Self::Corrupt { .. })
    }
}

/// What is said of a sandbox beside its files.
#[derive(Clone, Debug)]
pub struct Info {
    /// The image that it ran.
    pub image: Digest,
    /// The runtime profile that it ran on.
    pub profile: String,
}

/// A folder for files that are being made. Removed when dropped.
#[derive(Debug)]
pub struct Staging {
    folder: PathBuf,
    files: [File; 4],
}

impl Staging {
    /// Its files, empty and open for writing, in the order of [`Role::ALL`].
    pub fn files(&self) -> &[File; 4] {
        &self.files
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let folder = std::mem::take(&mut self.folder);
        let remove = move || {
            if let Err(error) = fs::remove_dir_all(&folder) {
                tracing::warn!(folder = %folder.display(), %error, "what was staged stays until the next start");
            }
        };
        // Unlinking gigabytes takes its time: not on the runtime's threads.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

/// The store. Clones are the same one. Every method blocks on the disk.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    next: AtomicU64,
    /// Who needs which manifest. Held while files are named or removed: what was named and is not pinned yet must not be collected.
    pins: Mutex<BTreeMap<Digest, BTreeSet<String>>>,
}

impl Store {
    /// Opens or makes the folder, and deletes what a killed agent left half made.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let staged = folder.join("tmp");
        match fs::remove_dir_all(&staged) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(failed("empty", &staged)(error));
            }
            Ok(()) | Err(_) => {}
        }
        for name in ["tmp", "blobs", "manifests"] {
            let path = folder.join(name);
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path)
                .map_err(failed("make", &path))?;
        }
        Ok(Self {
            inner: Arc::new(Inner {
                folder: folder.to_owned(),
                next: AtomicU64::new(0),
                pins: Mutex::default(),
            }),
        })
    }

    /// New files, if there is room for `bytes` in all.
    pub fn stage(&self, bytes: u64) -> Result<Staging, Error> {
        let folder = &self.inner.folder;
        let system = nix::sys::statvfs::statvfs(folder)
            .map_err(|errno| failed("look at", folder)(errno.into()))?;
        let of_blocks = |blocks: u64| blocks.saturating_mul(system.fragment_size());
        let free = of_blocks(system.blocks_available())
            .saturating_sub(of_blocks(system.blocks()) / 100 * RESERVE);
        if bytes > free {
            return Err(Error::NoSpace {
                wanted: bytes,
                free,
            });
        }
        let number = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let folder = folder.join("tmp").join(number.to_string());
        DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(failed("make", &folder))?;
        let make = |index: usize| {
            let path = staged(&folder, index);
            OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
                .map_err(failed("make", &path))
        };
        let files = [make(0)?, make(1)?, make(2)?, make(3)?];
        Ok(Staging { folder, files })
    }

    /// Keeps what was staged, in the name of `holder`; the digest of its manifest. On disk when this returns, or not at all.
    pub fn commit(&self, staging: &Staging, info: &Info, holder: &str) -> Result<Digest, Error> {
        let mut named = [(Digest::of(b""), 0); 4];
        for (index, named) in named.iter_mut().enumerate() {
            let path = staged(&staging.folder, index);
            // A descriptor of its own: the others' is where the sentry left it.
            let file = File::open(&path).map_err(failed("open", &path))?;
            *named = Digest::of_reader(&file).map_err(failed("read", &path))?;
            file.sync_all().map_err(failed("sync", &path))?;
        }
        fault::point("snapshot.hashed");
        let manifest = Manifest::of_files(info.image, &info.profile, named);
        let bytes = manifest.encode().map_err(|error| Error::Corrupt {
            digest: info.image,
            what: format!("has a manifest that cannot be written: {error}"),
        })?;
        let digest = Digest::of(&bytes);
        let mut pins = self.pins();
        for (index, (blob, _)) in named.iter().enumerate() {
            let (from, to) = (staged(&staging.folder, index), self.blob(blob));
            fs::rename(&from, &to).map_err(failed("name", &to))?;
        }
        self.sync("blobs")?;
        fault::point("snapshot.named");
        let (new, path) = (staging.folder.join("manifest"), self.manifest(&digest));
        let written = File::create_new(&new).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        });
        written.map_err(failed("write", &new))?;
        fs::rename(&new, &path).map_err(failed("name", &path))?;
        self.sync("manifests")?;
        pins.entry(digest).or_default().insert(holder.to_owned());
        fault::point("snapshot.committed");
        Ok(digest)
    }

    /// Looks whether all that the manifest `digest` names is there as it was, byte by byte; where its files are.
    pub fn verify(&self, digest: &Digest) -> Result<(Manifest, SavedFiles), Error> {
        let corrupt = |digest: &Digest, what: String| Error::Corrupt {
            digest: *digest,
            what,
        };
        let path = self.manifest(digest);
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(MAX_LENGTH + 1).read_to_end(&mut bytes))
            .map_err(gone_or("read", &path, digest))?;
        if Digest::of(&bytes) != *digest {
            return Err(corrupt(digest, "is another manifest by now".to_owned()));
        }
        let manifest = Manifest::decode(&bytes)
            .map_err(|why| corrupt(digest, format!("is no manifest: {why}")))?;
        for entry in &manifest.files {
            let path = self.blob(&entry.digest);
            let read = File::open(&path).and_then(Digest::of_reader);
            let found = read.map_err(gone_or("read", &path, &entry.digest))?;
            if found != (entry.digest, entry.length) {
                let what = format!("has other content by now, {} bytes of it", found.1);
                return Err(corrupt(&entry.digest, what));
            }
        }
        let path = |role| {
            let entry = manifest.file(role);
            entry.map_or_else(PathBuf::new, |entry| self.blob(&entry.digest))
        };
        let files = SavedFiles(Role::ALL.map(path));
        Ok((manifest, files))
    }

    /// Keeps a manifest from being collected, in the name of `holder`.
    pub fn pin(&self, digest: &Digest, holder: &str) {
        self.pins()
            .entry(*digest)
            .or_default()
            .insert(holder.to_owned());
    }

    /// Takes back what `holder` pins, but for `except`.
    pub fn unpin(&self, holder: &str, except: Option<&Digest>) {
        self.pins().retain(|digest, holders| {
            if Some(digest) != except {
                holders.remove(holder);
            }
            !holders.is_empty()
        });
    }

    /// Removes what nobody pins; how many manifests that were. A manifest that cannot be read names nothing.
    pub fn collect(&self) -> Result<usize, Error> {
        let pins = self.pins();
        let (mut gone, mut needed) = (0, BTreeSet::new());
        for (name, path) in self.list("manifests")? {
            let digest = format!("sha256:{name}").parse::<Digest>();
            if digest.is_ok_and(|digest| pins.contains_key(&digest)) {
                let bytes = fs::read(&path).map_err(failed("read", &path))?;
                let manifest = Manifest::decode(&bytes);
                let entries = manifest.into_iter().flat_map(|manifest| manifest.files);
                needed.extend(entries.map(|entry| entry.digest.hex()));
            } else {
                remove(&path)?;
                gone += 1;
            }
        }
        for (name, path) in self.list("blobs")? {
            if !needed.contains(&name) {
                // A sentry that was started with it has it open as long as it lives, and would keep its bytes.
                match OpenOptions::new().write(true).truncate(true).open(&path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(failed("empty", &path)(error));
                    }
                    Ok(_) | Err(_) => {}
                }
                remove(&path)?;
            }
        }
        Ok(gone)
    }

    fn list(&self, name: &'static str) -> Result<Vec<(String, PathBuf)>, Error> {
        let folder = self.inner.folder.join(name);
        let mut all = Vec::new();
        for entry in fs::read_dir(&folder).map_err(failed("list", &folder))? {
            let entry = entry.map_err(failed("list", &folder))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            all.push((name, entry.path()));
        }
        Ok(all)
    }

    fn sync(&self, name: &'static str) -> Result<(), Error> {
        let folder = self.inner.folder.join(name);
        let synced = File::open(&folder).and_then(|folder| folder.sync_all());
        synced.map_err(failed("sync", &folder))
    }

    fn blob(&self, digest: &Digest) -> PathBuf {
        self.inner.folder.join("blobs").join(digest.hex())
    }

    fn manifest(&self, digest: &Digest) -> PathBuf {
        self.inner.folder.join("manifests").join(digest.hex())
    }

    fn pins(&self) -> MutexGuard<'_, BTreeMap<Digest, BTreeSet<String>>> {
        self.inner
            .pins
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn staged(folder: &Path, index: usize) -> PathBuf {
    folder.join(index.to_string())
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File {
        operation,
        path,
        source,
    }
}

/// What is not there any more cannot be had; whatever else is wrong may pass.
fn gone_or(
    operation: &'static str,
    path: &Path,
    digest: &Digest,
) -> impl FnOnce(std::io::Error) -> Error {
    let (path, digest) = (path.to_owned(), *digest);
    move |source| {
        if source.kind() == ErrorKind::NotFound {
            let what = "is gone".to_owned();
            return Error::Corrupt { digest, what };
        }
        failed(operation, &path)(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> Info {
        Info {
            image: Digest::of(b"image"),
            profile: "p".to_owned(),
        }
    }

    fn keep(store: &Store, words: [&str; 4], holder: &str) -> Digest {
        let staging = store.stage(100).unwrap();
        for (mut file, word) in staging.files().iter().zip(words) {
            file.write_all(word.as_bytes()).unwrap();
        }
        store.commit(&staging, &info(), holder).unwrap()
    }

    fn count(folder: &Path, name: &str) -> usize {
        fs::read_dir(folder.join(name)).unwrap().count()
    }

    #[test]
    fn what_is_kept_comes_back_and_goes_when_nobody_needs_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let one = keep(&store, ["a", "b", "", "pages"], "first");
        let two = keep(&store, ["a", "b", "", "other"], "second");
        assert_eq!(count(folder.path(), "blobs"), 5, "equal ones once");
        assert_eq!(keep(&store, ["a", "b", "", "pages"], "third"), one);
        let (manifest, files) = store.verify(&one).unwrap();
        assert_eq!(manifest.length(), 7);
        assert_eq!(fs::read(&files.0[3]).unwrap(), b"pages");

        store.unpin("first", None);
        assert_eq!(store.collect().unwrap(), 0, "the third has it still");
        store.unpin("second", Some(&two));
        assert_eq!(store.collect().unwrap(), 0, "it keeps what it has now");
        let held = File::open(&files.0[3]).unwrap();
        store.unpin("third", None);
        assert_eq!(store.collect().unwrap(), 1);
        assert_eq!(
            held.metadata().unwrap().len(),
            0,
            "its bytes are given back"
        );
        assert_eq!(count(folder.path(), "blobs"), 4);
        assert!(store.verify(&one).unwrap_err().is_corrupt());
        store.verify(&two).unwrap();

        let next = Store::open(folder.path()).unwrap();
        next.pin(&two, "second");
        assert_eq!(next.collect().unwrap(), 0);
        next.verify(&two).unwrap();
        let last = Store::open(folder.path()).unwrap();
        assert_eq!(last.collect().unwrap(), 1, "no record names it");
        assert_eq!(count(folder.path(), "blobs"), 0);
    }

    #[test]
    fn what_was_changed_on_disk_is_not_brought_back() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let digest = keep(&store, ["a", "b", "c", "pages"], "h");
        let (_, files) = store.verify(&digest).unwrap();
        for (content, what) in [("pageS", "other content"), ("page", "4 bytes")] {
            fs::write(&files.0[3], content).unwrap();
            let error = store.verify(&digest).unwrap_err();
            assert!(
                error.is_corrupt() && error.to_string().contains(what),
                "{error}"
            );
        }
        fs::write(&files.0[3], "pages").unwrap();
        store.verify(&digest).unwrap();
        let manifest = folder.path().join("manifests").join(digest.hex());
        fs::write(&manifest, "{}").unwrap();
        assert!(store.verify(&digest).unwrap_err().is_corrupt());
        fs::remove_file(&manifest).unwrap();
        assert!(store.verify(&digest).unwrap_err().is_corrupt());
    }

    #[test]
    fn nothing_half_made_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        drop(store.stage(1).unwrap());
        assert_eq!(count(folder.path(), "tmp"), 0);
        fs::create_dir(folder.path().join("tmp/7")).unwrap();
        assert_eq!(count(folder.path(), "tmp"), 1);
        Store::open(folder.path()).unwrap();
        assert_eq!(count(folder.path(), "tmp"), 0);
        assert!(matches!(store.stage(u64::MAX), Err(Error::NoSpace { .. })));
    }
}
