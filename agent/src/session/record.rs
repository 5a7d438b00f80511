//! Session records: `sessions/<command id>/record.json`.
//!
//! Written before the sandbox is told to create the session, and once more with its end before anyone is told of it: so after a
//! restart of the agent it is known what may have begun, and an end that was told stays as it was told.
//!
//! A record is renamed into place but not synced. It need not outlive the node's kernel, because the sessions do not; and a
//! sync would cost each command more than everything else together.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cloche_proto::frame::{MAX_FRAME, SessionSpec};
use prost::Message;
use serde::{Deserialize, Serialize};

use super::identity::CommandId;
use super::request::Fingerprint;
use super::state::Ended;
use crate::clock::Now;
use crate::ledger::create_private;

pub(super) const FILE: &str = "record.json";
const TEMPORARY: &str = "record.json.new";
const VERSION: u32 = 1;
/// Longest record that is read, in bytes: the longest spec in hexadecimal, and room for the rest.
const MAX_RECORD: u64 = 2 * MAX_FRAME as u64 + 64 * 1024;

/// A record that could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file system refused.
    #[error("{operation} session record {path}")]
    File {
        /// `write`, `read`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It holds something else.
    #[error("session record {path} {what}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// All that must outlive the agent about one session.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    pub(super) id: CommandId,
    pub(super) spec: Arc<SessionSpec>,
    pub(super) created: Now,
    /// How long the sandbox had been paused before. Not of records of agents that are older than it.
    pub(super) paused: Duration,
    pub(super) kill_on_detach: Option<Duration>,
    /// Not of records of agents that are older than it.
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) ended: Option<Arc<Ended>>,
}

/// As it is on disk. A field is added with a default; a change of meaning raises the version.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    version: u32,
    command_id: String,
    /// The protobuf message in hexadecimal: it is opaque to the agent, and arguments need not be text.
    spec: String,
    created_at: Now,
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    paused: Duration,
    #[serde(default)]
    kill_on_detach_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<Fingerprint>,
    #[serde(default)]
    ended: Option<Ended>,
}

impl Record {
    /// Takes the end over. What to run is not needed any more, and may be long.
    pub(super) fn end(&mut self, ended: Arc<Ended>) {
        self.ended = Some(ended);
        self.spec = Arc::new(SessionSpec {
            timeout_ms: self.spec.timeout_ms,
            terminal: self.spec.terminal,
            ..SessionSpec::default()
        });
    }

    /// When the command's timeout is over, by the boot clock, in a sandbox that has been `paused` for so long until now.
    pub(super) fn deadline(&self, paused: Duration) -> Option<Duration> {
        (self.spec.timeout_ms > 0).then(|| {
            self.created
                .boot
                .saturating_add(Duration::from_millis(self.spec.timeout_ms))
                .saturating_add(paused.saturating_sub(self.paused))
        })
    }

    /// The bytes to store.
    pub(super) fn encode(&self) -> Result<Vec<u8>, RecordError> {
        let stored = Stored {
            version: VERSION,
            command_id: self.id.to_string(),
            spec: to_hex(&self.spec.encode_to_vec()),
            created_at: self.created,
            paused: self.paused,
            kill_on_detach_ms: self
                .kill_on_detach
                .map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            fingerprint: self.fingerprint.clone(),
            ended: self.ended.as_deref().cloned(),
        };
        serde_json::to_vec(&stored).map_err(|error| RecordError::Malformed {
            path: FILE.into(),
            what: format!("cannot be encoded: {error}"),
        })
    }

    /// Reads the record in `directory`, which must be of session `id`. Nothing where there is none: the agent was killed
    /// before it told anyone of the session.
    pub(super) fn load(directory: &Path, id: &CommandId) -> Result<Option<Self>, RecordError> {
        let path = directory.join(FILE);
        let bytes = match read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(RecordError::File {
                    operation: "read",
                    path,
                    source,
                });
            }
        };
        match Self::decode(&bytes) {
            Ok(record) if record.id == *id => Ok(Some(record)),
            Ok(record) => Err(RecordError::Malformed {
                what: format!("is of session {}", record.id),
                path,
            }),
            Err(what) => Err(RecordError::Malformed { path, what }),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let stored: Stored = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if stored.version != VERSION {
            return Err(format!(
                "has version {}; this agent knows {VERSION}",
                stored.version
            ));
        }
        let spec = from_hex(&stored.spec).ok_or("holds a spec that is not hexadecimal")?;
        Ok(Self {
            id: CommandId::parse(&stored.command_id).map_err(|error| error.to_string())?,
            spec: Arc::new(
                SessionSpec::decode(spec.as_slice()).map_err(|error| error.to_string())?,
            ),
            created: stored.created_at,
            paused: stored.paused,
            kill_on_detach: stored.kill_on_detach_ms.map(Duration::from_millis),
            fingerprint: stored.fingerprint,
            ended: stored.ended.map(Arc::new),
        })
    }
}

/// Puts the session of the sandbox's own command aside, a new one of which is about to begin: from then on it is that of the run before,
/// whose own goes. Blocking, and only where nobody has the sessions open. May be repeated where it was broken off.
pub fn put_main_aside(sessions: &Path) -> Result<(), RecordError> {
    let [main, before] =
        [CommandId::main(), CommandId::main_before()].map(|id| id.directory(sessions));
    let failed = |operation, path: &Path| {
        let path = path.to_owned();
        move |source| RecordError::File {
            operation,
            path,
            source,
        }
    };
    let path = main.join(FILE);
    let bytes = match read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("read", &path)(error)),
    };
    let record = Record::decode(&bytes).map_err(|what| RecordError::Malformed { path, what })?;
    let renamed = Record {
        id: CommandId::main_before(),
        ..record
    };
    store(&main, &renamed.encode()?)?;
    match fs::remove_dir_all(&before) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove", &before)(error));
        }
        Ok(()) | Err(_) => {}
    }
    fs::rename(&main, &before).map_err(failed("name", &before))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    use io::Read;
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(MAX_RECORD)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Stores an encoded record in `directory`, made where it is missing: seen whole or not at all. Blocking, some 0.1 ms.
pub(super) fn store(directory: &Path, bytes: &[u8]) -> Result<(), RecordError> {
    use std::io::Write;
    use std::os::unix::fs::DirBuilderExt;
    let path = directory.join(FILE);
    let put = || {
        match fs::DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) | Ok(()) => {}
        }
        let temporary = directory.join(TEMPORARY);
        create_private(&temporary)?.write_all(bytes)?;
        fs::rename(&temporary, &path)
    };
    put().map_err(|source| RecordError::File {
        operation: "write",
        path: path.clone(),
        source,
    })
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|nibble| char::from(DIGITS[usize::from(nibble)]))
        .collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let nibble = |byte: u8| char::from(byte).to_digit(16);
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes()
        .chunks(2)
        .map(|pair| {
            let value = nibble(pair[0])? << 4 | nibble(pair[1])?;
            u8::try_from(value).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::state::{NotStarted, Outcome};
    use super::*;
    use crate::ledger::golden::{self, states};

    fn record() -> Record {
        Record {
            id: CommandId::parse("build-1").unwrap(),
            spec: Arc::new(SessionSpec {
                argv: vec![b"echo".to_vec(), vec![0xff, 0, 0x7f]],
                timeout_ms: 1500,
                ..SessionSpec::default()
            }),
            created: Now {
                boot: Duration::from_secs(100),
                wall: jiff::Timestamp::UNIX_EPOCH,
            },
            paused: Duration::from_secs(2),
            kill_on_detach: Some(Duration::from_secs(3)),
            fingerprint: Some(Fingerprint::of([&b"echo"[..]])),
            ended: None,
        }
    }

    #[test]
    fn is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = record();
        let at = record.id.directory(dir.path());
        assert_eq!(Record::load(&at, &record.id).unwrap(), None);
        store(&at, &record.encode().unwrap()).unwrap();
        assert_eq!(
            Record::load(&at, &record.id).unwrap().as_ref(),
            Some(&record)
        );
        record.end(Arc::new(Ended {
            outcome: Outcome::Exited {
                code: 137,
                signal: 9,
                timed_out: true,
                not_started: None,
                message: String::new(),
                duration_ms: 5,
            },
            at: record.created,
            stdout: 3,
            stderr: 4,
            lost: false,
        }));
        store(&at, &record.encode().unwrap()).unwrap();
        assert_eq!(
            Record::load(&at, &record.id).unwrap().as_ref(),
            Some(&record)
        );
        let deadline = |paused| record.deadline(Duration::from_secs(paused));
        assert_eq!(deadline(2), Some(Duration::from_millis(101_500)));
        assert_eq!(deadline(9), Some(Duration::from_millis(108_500)));
        let other = CommandId::parse("other").unwrap();
        assert!(Record::load(&at, &other).is_err());
    }

    #[test]
    fn the_run_before_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let [main, before] = [CommandId::main(), CommandId::main_before()];
        let of = |id: &CommandId| Record::load(&id.directory(dir.path()), id).unwrap();
        put_main_aside(dir.path()).unwrap();
        for run in 1..=2 {
            let record = Record {
                id: main.clone(),
                created: Now {
                    boot: Duration::from_secs(run),
                    wall: jiff::Timestamp::UNIX_EPOCH,
                },
                ..record()
            };
            let at = main.directory(dir.path());
            store(&at, &record.encode().unwrap()).unwrap();
            fs::write(at.join("stdout"), run.to_string()).unwrap();
            if run == 2 {
                // Broken off in the middle.
                let renamed = Record {
                    id: before.clone(),
                    ..record.clone()
                };
                store(&at, &renamed.encode().unwrap()).unwrap();
            }
            put_main_aside(dir.path()).unwrap();
            assert_eq!(of(&main), None);
            assert_eq!(of(&before).unwrap().created, record.created);
            let kept = fs::read(before.directory(dir.path()).join("stdout")).unwrap();
            assert_eq!(kept, run.to_string().as_bytes());
            put_main_aside(dir.path()).unwrap();
            assert!(of(&before).is_some(), "nothing to put aside");
        }
    }

    states!(ENDS, end: Option<Outcome> {
        Begun = None,
        Exited = Some(Outcome::Exited { not_started: None, .. }),
        NotFound = Some(Outcome::Exited { not_started: Some(NotStarted::NotFound), .. }),
        NotExecutable = Some(Outcome::Exited { not_started: Some(NotStarted::NotExecutable), .. }),
        Failed = Some(Outcome::Exited { not_started: Some(NotStarted::Failed), .. }),
        SandboxEnded = Some(Outcome::SandboxEnded { .. }),
        Lost = Some(Outcome::Lost { .. }),
    });

    #[test]
    fn what_an_older_agent_wrote_is_still_read() {
        for version in 1..=VERSION {
            let newest = (version == VERSION).then_some(ENDS);
            golden::judge("session", version, newest, |bytes| {
                let record = Record::decode(bytes).unwrap();
                let outcome = record.ended.as_ref().map(|ended| ended.outcome.clone());
                (end(&outcome), record.encode().unwrap())
            });
        }
        let begun = &golden::files("session", 1)["Begun"];
        let spec = Record::decode(begun).unwrap().spec;
        assert_eq!(spec.argv[..2], [b"/bin/sh".to_vec(), b"-c".to_vec()]);
        assert!(Record::decode(b"{}").is_err());
        assert!(Record::decode(&begun[..100]).is_err());
    }
}
