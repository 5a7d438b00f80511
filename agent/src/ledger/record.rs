//! The versioned envelope around a record. Pure.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Something that the ledger keeps.
pub trait Record: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// What it is, written into the file, so that a file put into the wrong folder is told apart.
    const KIND: &'static str;
    /// Version of the form that this build writes, counted from 1.
    const VERSION: u32;

    /// What it has to outlast.
    fn outlasts(&self) -> Outlasts {
        Outlasts::PowerCut
    }

    /// A record of an older `version` in the form of the next one, step by step up to [`Self::VERSION`]. Called only for
    /// versions below it.
    fn migrate(version: u32, value: serde_json::Value) -> Result<serde_json::Value, RecordError> {
        drop(value);
        Err(RecordError::Version {
            kind: Self::KIND,
            version,
            newest: Self::VERSION,
        })
    }
}

/// What a record has to outlast. Any outlasts `kill -9` of the agent; a sync costs a start more than most of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlasts {
    /// The agent alone: after a power cut it may be missing or empty, which says the same as the record.
    Agent,
    /// After a power cut it may be the one before, whole.
    AgentOrTheOneBefore,
    /// A power cut, too.
    PowerCut,
}

/// Content that is not a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not JSON, or not of this form.
    #[error("is not a record")]
    Json(#[from] serde_json::Error),
    /// Of a version that this build does not know.
    #[error(
        "is a {kind} of version {version}; this build reads up to {newest}: run the version that wrote it, or a newer one"
    )]
    Version {
        /// [`Record::KIND`].
        kind: &'static str,
        /// What the file says.
        version: u32,
        /// [`Record::VERSION`].
        newest: u32,
    },
    /// Of another kind.
    #[error("is a {found}, not a {wanted}")]
    Kind {
        /// What the file says.
        found: String,
        /// [`Record::KIND`].
        wanted: &'static str,
    },
    /// Longer than any record can be.
    #[error("has {length} bytes")]
    TooLong {
        /// Length of the file in bytes.
        length: u64,
    },
}

#[derive(Serialize)]
struct Written<'a, R> {
    version: u32,
    kind: &'static str,
    record: &'a R,
}

#[derive(Deserialize)]
struct Read {
    version: u32,
    kind: String,
    record: serde_json::Value,
}

/// The file content of `record`.
pub(super) fn encode<R: Record>(record: &R) -> Result<Vec<u8>, RecordError> {
    Ok(serde_json::to_vec(&Written {
        version: R::VERSION,
        kind: R::KIND,
        record,
    })?)
}

/// The record in a file's content, migrated where it is of an older version.
pub(super) fn decode<R: Record>(bytes: &[u8]) -> Result<R, RecordError> {
    let Read {
        version,
        kind,
        mut record,
    } = serde_json::from_slice(bytes)?;
    if kind != R::KIND {
        return Err(RecordError::Kind {
            found: kind,
            wanted: R::KIND,
        });
    }
    if version > R::VERSION || version == 0 {
        return Err(RecordError::Version {
            kind: R::KIND,
            version,
            newest: R::VERSION,
        });
    }
    for older in version..R::VERSION {
        record = R::migrate(older, record)?;
    }
    Ok(serde_json::from_value(record)?)
}
