//! The store on disk.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::manifest::{MAX_LENGTH, Manifest, Unread};
use crate::fault;
use crate::image::Digest;
use crate::runsc::SavedFiles;
use crate::runsc::saved::NAMES;

/// Of the file system so many hundredths stay free: records and output of sandboxes may lie on it too.
const RESERVE: u64 = 5;

const MANIFEST: &str = "manifest";
const STAGED: &str = "tmp";

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
    /// It was made by another version.
    #[error(
        "{path} is of version {version}, which this build does not know: run the version that wrote it, or a newer one"
    )]
    Version {
        /// The manifest.
        path: PathBuf,
        /// What it says.
        version: u32,
    },
    /// What is kept is not what was.
    #[error("{path} {what}")]
    Corrupt {
        /// The file.
        path: PathBuf,
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

/// What is kept, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Saved {
    /// Names its folder in the store; never used again.
    pub id: String,
    /// Of its manifest.
    pub manifest: Digest,
    /// Bytes of what the sentry has in its memory of it for as long as it lives: all but the pages.
    pub names: u64,
}

/// What is said of a sandbox beside its files.
#[derive(Clone, Debug)]
pub struct Info {
    /// The image that it ran.
    pub image: Digest,
    /// The runtime profile that it ran on.
    pub profile: String,
}

/// A folder for files that are being made. Removed when dropped, unless it was kept.
#[derive(Debug)]
pub struct Staging {
    folder: PathBuf,
    files: Vec<File>,
}

impl Staging {
    /// Its files, empty and open for writing, in the order of [`NAMES`].
    pub fn files(&self) -> &[File] {
        &self.files
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let folder = std::mem::take(&mut self.folder);
        let remove = move || {
            if let Err(error) = fs::remove_dir_all(&folder)
                && error.kind() != ErrorKind::NotFound
            {
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
}

impl Store {
    /// Opens or makes the folder, and deletes what a killed agent left half made.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let staged = folder.join(STAGED);
        match fs::remove_dir_all(&staged) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(failed("empty", &staged)(error));
            }
            Ok(()) | Err(_) => {}
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&staged)
            .map_err(failed("make", &staged))?;
        Ok(Self {
            inner: Arc::new(Inner {
                folder: folder.to_owned(),
                next: AtomicU64::new(0),
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
        let folder = folder.join(STAGED).join(number.to_string());
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(failed("make", &folder))?;
        let mut staging = Staging {
            folder,
            files: Vec::new(),
        };
        for name in NAMES {
            let path = staging.folder.join(name);
            let made = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path);
            staging.files.push(made.map_err(failed("make", &path))?);
        }
        Ok(staging)
    }

    /// Keeps what was staged. On disk when this returns, or not at all.
    pub fn commit(&self, staging: &Staging, info: &Info) -> Result<Saved, Error> {
        let mut named = [(info.image, 0); NAMES.len()];
        for (name, named) in NAMES.iter().zip(&mut named) {
            let path = staging.folder.join(name);
            // A descriptor of its own: the others' is where the sentry left it.
            let file = File::open(&path).map_err(failed("open", &path))?;
            *named = Digest::of_reader(&file).map_err(failed("read", &path))?;
            file.sync_all().map_err(failed("sync", &path))?;
        }
        fault::point("snapshot.hashed");
        let manifest = Manifest::of_files(info.image, &info.profile, named);
        let path = staging.folder.join(MANIFEST);
        let encoded = manifest.encode().map_err(std::io::Error::other);
        let bytes = encoded.map_err(failed("write", &path))?;
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| {
                file.write_all(&bytes)?;
                file.sync_all()
            });
        written.map_err(failed("write", &path))?;
        sync(&staging.folder)?;
        let saved = Saved {
            id: format!("s-{}", crate::unique::hex::<16>()),
            manifest: Digest::of(&bytes),
            names: manifest.names(),
        };
        let to = self.inner.folder.join(&saved.id);
        fs::rename(&staging.folder, &to).map_err(failed("name", &to))?;
        fault::point("snapshot.named");
        sync(&self.inner.folder)?;
        fault::point("snapshot.committed");
        Ok(saved)
    }

    /// Looks whether all that was saved is there as it was, byte by byte; where it is.
    pub fn verify(&self, saved: &Saved) -> Result<(Manifest, SavedFiles), Error> {
        let folder = self.folder(saved);
        let path = folder.join(MANIFEST);
        let corrupt = |path: &Path, what: String| Error::Corrupt {
            path: path.to_owned(),
            what,
        };
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(MAX_LENGTH + 1).read_to_end(&mut bytes))
            .map_err(gone_or("read", &path))?;
        if Digest::of(&bytes) != saved.manifest {
            return Err(corrupt(&path, "is another manifest by now".to_owned()));
        }
        let manifest = Manifest::decode(&bytes).map_err(|unread| match unread {
            Unread::Version(version) => Error::Version {
                path: path.clone(),
                version,
            },
            Unread::Wrong(why) => corrupt(&path, format!("is no manifest: {why}")),
        })?;
        for entry in &manifest.files {
            let path = folder.join(entry.role.file_name());
            let read = File::open(&path).and_then(Digest::of_reader);
            let found = read.map_err(gone_or("read", &path))?;
            if found != (entry.digest, entry.length) {
                let what = format!("has other content by now, {} bytes of it", found.1);
                return Err(corrupt(&path, what));
            }
        }
        Ok((manifest, SavedFiles(folder)))
    }

    /// Removes it. Gone already is fine.
    pub fn remove(&self, saved: &Saved) -> Result<(), Error> {
        self.remove_folder(&self.folder(saved))
    }

    /// Removes what is not among these, as far as that can be done; how much could not be.
    pub fn retain(&self, all: &BTreeSet<Saved>) -> Result<usize, Error> {
        let folder = &self.inner.folder;
        let ids: BTreeSet<&str> = all.iter().map(|saved| saved.id.as_str()).collect();
        let mut left = 0;
        for entry in fs::read_dir(folder).map_err(failed("list", folder))? {
            let path = entry.map_err(failed("list", folder))?.path();
            let name = path.file_name().and_then(std::ffi::OsStr::to_str);
            if name.is_some_and(|name| name == STAGED || ids.contains(name)) {
                continue;
            }
            if let Err(error) = self.remove_folder(&path) {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot remove files that no sandbox needs"
                );
                left += 1;
            }
        }
        Ok(left)
    }

    fn remove_folder(&self, folder: &Path) -> Result<(), Error> {
        // Out of the way first: half of it must not be found under its name.
        let number = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let staged = self.inner.folder.join(STAGED);
        fs::create_dir_all(&staged).map_err(failed("make", &staged))?;
        let away = staged.join(format!("{number}.old"));
        match fs::rename(folder, &away) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            moved => moved.map_err(failed("remove", folder))?,
        }
        for name in NAMES {
            // A sentry that was started with it has it open as long as it lives, and would keep its bytes.
            drop(
                OpenOptions::new()
                    .write(true)
                    .truncate(true)
                    .open(away.join(name)),
            );
        }
        fs::remove_dir_all(&away).map_err(failed("remove", &away))
    }

    fn folder(&self, saved: &Saved) -> PathBuf {
        self.inner.folder.join(&saved.id)
    }
}

fn sync(folder: &Path) -> Result<(), Error> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(failed("sync", folder))
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
fn gone_or(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| {
        if source.kind() == ErrorKind::NotFound {
            let what = "is gone".to_owned();
            return Error::Corrupt { path, what };
        }
        failed(operation, &path)(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(store: &Store, words: [&str; 4]) -> Saved {
        let staging = store.stage(100).unwrap();
        for (mut file, word) in staging.files().iter().zip(words) {
            file.write_all(word.as_bytes()).unwrap();
        }
        let info = Info {
            image: Digest::of(b"image"),
            profile: "p".to_owned(),
        };
        store.commit(&staging, &info).unwrap()
    }

    fn names(folder: &Path) -> BTreeSet<String> {
        let all = fs::read_dir(folder).unwrap();
        all.map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn what_is_kept_comes_back_and_goes_when_nobody_needs_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let words = ["a", "b", "", "pages"];
        let [one, two] = [keep(&store, words), keep(&store, words)];
        assert_eq!(one.manifest, two.manifest);
        let (manifest, files) = store.verify(&one).unwrap();
        assert_eq!(manifest.length(), 7);
        let pages = files.0.join("pages.img");
        assert_eq!(fs::read(&pages).unwrap(), b"pages");

        let held = File::open(&pages).unwrap();
        store.remove(&one).unwrap();
        store.remove(&one).unwrap();
        let left = held.metadata().unwrap().len();
        assert_eq!(left, 0, "its bytes are given back, whoever has it open");
        assert!(store.verify(&one).unwrap_err().is_corrupt());
        store.verify(&two).unwrap();

        let three = keep(&store, ["", "", "", ""]);
        let next = Store::open(folder.path()).unwrap();
        assert_eq!(next.retain(&[two.clone()].into()).unwrap(), 0);
        assert!(next.verify(&three).unwrap_err().is_corrupt());
        next.verify(&two).unwrap();
        assert_eq!(names(folder.path()), ["tmp".to_owned(), two.id].into());
    }

    #[test]
    fn what_was_changed_on_disk_is_not_brought_back() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let saved = keep(&store, ["a", "b", "c", "pages"]);
        let (_, files) = store.verify(&saved).unwrap();
        let pages = files.0.join("pages.img");
        for (content, what) in [("pageS", "other content"), ("page", "4 bytes")] {
            fs::write(&pages, content).unwrap();
            let error = store.verify(&saved).unwrap_err();
            assert!(
                error.is_corrupt() && error.to_string().contains(what),
                "{error}"
            );
        }
        fs::write(&pages, "pages").unwrap();
        store.verify(&saved).unwrap();
        let manifest = files.0.join(MANIFEST);
        fs::write(&manifest, "{}").unwrap();
        assert!(store.verify(&saved).unwrap_err().is_corrupt());
        let newer = br#"{"version":2}"#;
        fs::write(&manifest, newer).unwrap();
        let of_newer = Saved {
            manifest: Digest::of(newer),
            ..saved.clone()
        };
        let error = store.verify(&of_newer).unwrap_err();
        assert!(!error.is_corrupt(), "a newer agent can have it: {error}");
        fs::remove_file(&manifest).unwrap();
        assert!(store.verify(&saved).unwrap_err().is_corrupt());
    }

    #[test]
    fn nothing_half_made_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let staged = folder.path().join(STAGED);
        let store = Store::open(folder.path()).unwrap();
        drop(store.stage(1).unwrap());
        assert!(names(&staged).is_empty());
        fs::create_dir(staged.join("7")).unwrap();
        let store = Store::open(folder.path()).unwrap();
        assert!(names(&staged).is_empty());
        assert!(matches!(store.stage(u64::MAX), Err(Error::NoSpace { .. })));
    }
}
