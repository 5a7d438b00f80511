//! Records on disk, written before the effect that they describe.
//!
//! ```text
//!   <dir>/<id>/record.json      {"version": 1, "record": {...}}
//!   <dir>/.quarantine/<id>-N/   what could not be read, kept for a person
//! ```
//!
//! A write goes to a temporary file, is synced, renamed over the old record, and the folder is synced: after `kill -9` or a
//! power cut a record is the old one or the new one, whole. Where a record need not outlast a power cut ([`Outlasts`]), syncs are left
//! out; one that is found empty then was never written. An unreadable record is quarantined and reported; it never stops
//! the agent. One of a newer version does: it is whole, and an agent that went on without it would run its sandbox again.

#[cfg(test)]
pub(crate) mod golden;
mod record;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::marker::PhantomData;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub use record::{Outlasts, Record, RecordError};

/// Longest record file that is read, in bytes: far beyond the largest valid object.
const MAX_RECORD: u64 = 4 * 1024 * 1024;
const FILE: &str = "record.json";
const TEMPORARY: &str = ".record.json.tmp";
const QUARANTINE: &str = ".quarantine";

/// A record that could not be written, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file system refused.
    #[error("{operation} the record {path}")]
    File {
        /// `write`, `read`, `remove`, `list`, `quarantine`.
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The content is not a record of this kind.
    #[error("the record {path}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: RecordError,
    },
    /// An id that cannot name a folder.
    #[error("{0:?} cannot name a record: 1 to 64 of a-z 0-9 and -")]
    Id(String),
}

impl LedgerError {
    /// Whether it is of a record that a newer build has written.
    fn is_newer(&self) -> bool {
        matches!(
            self,
            Self::Content {
                source: RecordError::Version { version, newest, .. },
                ..
            } if version > newest
        )
    }
}

/// A record that could not be read, and where it was put.
#[derive(Debug)]
pub struct Quarantined {
    /// Its id.
    pub id: String,
    /// Where it lies now.
    pub moved_to: PathBuf,
    /// Why it could not be read.
    pub error: LedgerError,
}

/// What [`Ledger::load`] found.
#[derive(Debug)]
pub struct Loaded<R> {
    /// Readable records, by id.
    pub records: Vec<(String, R)>,
    /// The others.
    pub quarantined: Vec<Quarantined>,
}

/// The records of one kind, one folder each. Cheap to clone.
#[derive(Debug)]
pub struct Ledger<R> {
    dir: PathBuf,
    kind: PhantomData<fn() -> R>,
}

impl<R> Clone for Ledger<R> {
    fn clone(&self) -> Self {
        Self {
            dir: self.dir.clone(),
            kind: PhantomData,
        }
    }
}

impl<R: Record> Ledger<R> {
    /// The ledger in `dir`, which is made (mode 0700) where it is missing.
    pub fn open(dir: &Path) -> Result<Self, LedgerError> {
        make_private(dir).map_err(|source| LedgerError::File {
            operation: "make",
            path: dir.to_owned(),
            source,
        })?;
        Ok(Self {
            dir: dir.to_owned(),
            kind: PhantomData,
        })
    }

    /// The folder of `id`; other files of the same owner may lie in it.
    pub fn folder(&self, id: &str) -> PathBuf {
        self.dir.join(id)
    }

    /// Writes the record of `id`; when it returns it outlasts what it has to.
    pub async fn write(&self, id: &str, record: &R) -> Result<(), LedgerError> {
        check_id(id)?;
        let folder = self.folder(id);
        let bytes = record::encode(record).map_err(|source| LedgerError::Content {
            path: folder.join(FILE),
            source,
        })?;
        let outlasts = record.outlasts();
        blocking("write", folder.join(FILE), move || {
            replace(&folder, &bytes, outlasts)
        })
        .await
    }

    /// Removes the folder of `id` with all in it; one that is gone already is fine.
    pub async fn remove(&self, id: &str) -> Result<(), LedgerError> {
        check_id(id)?;
        let folder = self.folder(id);
        blocking("remove", folder.clone(), move || {
            match fs::remove_dir_all(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            }
        })
        .await
    }

    /// Reads all records. A folder without a record (its agent died before the first write) is removed; an unreadable record
    /// is quarantined. One of a newer version is an error.
    pub fn load(&self) -> Result<Loaded<R>, LedgerError> {
        let list = |source| LedgerError::File {
            operation: "list",
            path: self.dir.clone(),
            source,
        };
        let mut loaded = Loaded {
            records: Vec::new(),
            quarantined: Vec::new(),
        };
        for entry in fs::read_dir(&self.dir).map_err(list)? {
            let entry = entry.map_err(list)?;
            let Ok(id) = entry.file_name().into_string() else {
                continue;
            };
            if id.starts_with('.') {
                continue;
            }
            let path = entry.path().join(FILE);
            match read(&path) {
                Ok(None) => {
                    fs::remove_dir_all(entry.path()).map_err(|source| LedgerError::File {
                        operation: "remove",
                        path: entry.path(),
                        source,
                    })?;
                }
                Ok(Some(record)) => loaded.records.push((id, record)),
                Err(error) if error.is_newer() => return Err(error),
                Err(error) => {
                    // On a full disk it stays where it is, and is found again at the next start.
                    let moved_to = self.quarantine(&id).unwrap_or_else(|failed| {
                        tracing::error!(
                            id,
                            error = &failed as &dyn std::error::Error,
                            "cannot put a record aside"
                        );
                        self.folder(&id)
                    });
                    loaded.quarantined.push(Quarantined {
                        id,
                        moved_to,
                        error,
                    });
                }
            }
        }
        loaded.records.sort_by(|left, right| left.0.cmp(&right.0));
        Ok(loaded)
    }

    fn quarantine(&self, id: &str) -> Result<PathBuf, LedgerError> {
        let from = self.folder(id);
        let failed = |source| LedgerError::File {
            operation: "quarantine",
            path: from.clone(),
            source,
        };
        let room = self.dir.join(QUARANTINE);
        make_private(&room).map_err(failed)?;
        let mut number = 0_u32;
        loop {
            let to = room.join(format!("{id}-{number}"));
            if to.try_exists().map_err(failed)? {
                number += 1;
                continue;
            }
            fs::rename(&from, &to).map_err(failed)?;
            return Ok(to);
        }
    }
}

fn check_id(id: &str) -> Result<(), LedgerError> {
    let fits = (1..=64).contains(&id.len())
        && id
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if fits {
        Ok(())
    } else {
        Err(LedgerError::Id(id.to_owned()))
    }
}

fn make_private(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
}

/// An empty file for its owner alone, as records may hold secrets; their folders are private too.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

fn replace(folder: &Path, bytes: &[u8], outlasts: Outlasts) -> io::Result<()> {
    make_private(folder)?;
    let temporary = folder.join(TEMPORARY);
    let mut file = create_private(&temporary)?;
    file.write_all(bytes)?;
    if outlasts != Outlasts::Agent {
        // Or the rename could reach the disk before the content.
        file.sync_data()?;
    }
    fs::rename(&temporary, folder.join(FILE))?;
    match outlasts {
        Outlasts::Agent | Outlasts::AgentOrTheOneBefore => Ok(()),
        Outlasts::PowerCut => File::open(folder)?.sync_all(),
    }
}

fn read<R: Record>(path: &Path) -> Result<Option<R>, LedgerError> {
    let failed = |source| LedgerError::File {
        operation: "read",
        path: path.to_owned(),
        source,
    };
    let length = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let content = |source| LedgerError::Content {
        path: path.to_owned(),
        source,
    };
    if length == 0 {
        return Ok(None);
    }
    if length > MAX_RECORD {
        return Err(content(RecordError::TooLong { length }));
    }
    let bytes = fs::read(path).map_err(failed)?;
    record::decode(&bytes).map(Some).map_err(content)
}

async fn blocking(
    operation: &'static str,
    path: PathBuf,
    work: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> Result<(), LedgerError> {
    // A panic in the closure cannot happen (it only does I/O); a cancelled runtime ends the process anyway.
    let outcome = tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)));
    outcome.map_err(|source| LedgerError::File {
        operation,
        path,
        source,
    })
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Thing {
        name: String,
    }

    impl Record for Thing {
        const KIND: &'static str = "thing";
        const VERSION: u32 = 2;

        fn migrate(
            version: u32,
            value: serde_json::Value,
        ) -> Result<serde_json::Value, RecordError> {
            match version {
                1 => Ok(serde_json::json!({ "name": value["title"] })),
                _ => Err(RecordError::Version {
                    kind: Self::KIND,
                    version,
                    newest: Self::VERSION,
                }),
            }
        }
    }

    fn thing(name: &str) -> Thing {
        Thing {
            name: name.to_owned(),
        }
    }

    #[tokio::test]
    async fn a_record_reads_back_as_written_and_the_last_write_wins() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::<Thing>::open(dir.path()).unwrap();
        ledger.write("a", &thing("old")).await.unwrap();
        ledger.write("a", &thing("new")).await.unwrap();
        let loaded = ledger.load().unwrap();
        assert_eq!(loaded.records, [("a".to_owned(), thing("new"))]);
        assert!(loaded.quarantined.is_empty());
        ledger.remove("a").await.unwrap();
        ledger.remove("a").await.unwrap();
        assert!(ledger.load().unwrap().records.is_empty());
    }

    #[tokio::test]
    async fn unreadable_records_are_quarantined_and_the_others_load() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::<Thing>::open(dir.path()).unwrap();
        ledger.write("good", &thing("g")).await.unwrap();
        let bad: [(&str, &[u8]); 3] = [
            ("cut", br#"{"version": 2, "reco"#),
            (
                "other",
                br#"{"version": 2, "kind": "wolf", "record": {"name": "x"}}"#,
            ),
            ("binary", &[0, 159, 146, 150]),
        ];
        for (id, bytes) in bad {
            fs::create_dir(dir.path().join(id)).unwrap();
            fs::write(dir.path().join(id).join(FILE), bytes).unwrap();
        }
        let loaded = ledger.load().unwrap();
        assert_eq!(loaded.records, [("good".to_owned(), thing("g"))]);
        assert_eq!(loaded.quarantined.len(), bad.len());
        assert!(
            loaded
                .quarantined
                .iter()
                .all(|one| one.moved_to.join(FILE).exists())
        );
        assert!(
            ledger.load().unwrap().quarantined.is_empty(),
            "a quarantined record is reported once"
        );
    }

    #[tokio::test]
    async fn a_newer_record_is_left_where_it_is_and_nothing_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::<Thing>::open(dir.path()).unwrap();
        let newer = dir.path().join("newer");
        fs::create_dir(&newer).unwrap();
        let bytes = br#"{"version": 3, "kind": "thing", "record": {"name": "x"}}"#;
        fs::write(newer.join(FILE), bytes).unwrap();
        let error = crate::told::chain(&ledger.load().unwrap_err());
        assert!(error.contains("run the version that wrote it"), "{error}");
        assert_eq!(fs::read(newer.join(FILE)).unwrap(), bytes);
    }

    #[tokio::test]
    async fn a_half_written_record_leaves_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::<Thing>::open(dir.path()).unwrap();
        ledger.write("a", &thing("old")).await.unwrap();
        fs::write(dir.path().join("a").join(TEMPORARY), b"{\"vers").unwrap();
        fs::create_dir(dir.path().join("never-written")).unwrap();
        // What a power cut leaves of a record that was not synced.
        fs::create_dir(dir.path().join("empty")).unwrap();
        fs::write(dir.path().join("empty").join(FILE), b"").unwrap();
        assert_eq!(
            ledger.load().unwrap().records,
            [("a".to_owned(), thing("old"))]
        );
        assert!(!dir.path().join("never-written").exists());
        assert!(!dir.path().join("empty").exists());
    }

    #[tokio::test]
    async fn an_old_version_is_migrated() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::<Thing>::open(dir.path()).unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(
            dir.path().join("a").join(FILE),
            br#"{"version": 1, "kind": "thing", "record": {"title": "t"}}"#,
        )
        .unwrap();
        assert_eq!(
            ledger.load().unwrap().records,
            [("a".to_owned(), thing("t"))]
        );
    }

    #[tokio::test]
    async fn ids_that_are_paths_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::<Thing>::open(dir.path()).unwrap();
        for id in ["", "..", "a/b", ".quarantine", "A", &"a".repeat(65)] {
            assert!(
                matches!(ledger.write(id, &thing("x")).await, Err(LedgerError::Id(_))),
                "{id:?}"
            );
            assert!(
                matches!(ledger.remove(id).await, Err(LedgerError::Id(_))),
                "{id:?}"
            );
        }
    }
}
