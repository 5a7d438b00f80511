//! Where desired objects come from: the manifest directory.
//!
//! ```text
//! inotify ─► directory ─► folder: names, stamps, bytes ─► decode: one object, or why not ─► desired: the set ─► watch channel
//!  put, remove ──┘
//! ```
//!
//! What can be relied on:
//! - Each `*.yaml`, `*.yml` and `*.json` holds exactly one Sandbox. Dot files, `*.status.yaml` and every other name are left
//!   alone. Only regular files are read, never what a symbolic link points to.
//! - A sandbox is never disturbed by a mistake. While its file cannot be read or breaks a rule, its last valid object stays
//!   desired; so it does while its file changes what cannot change. The mistake is reported beside it. This holds over restarts of
//!   the agent, too.
//! - Where two files hold one name, the file that held it before keeps it; among new ones the first by file name gets it.
//! - A file that is gone means a deletion, but only after [`GRACE`]: editors and version control take a file away and put it back.
//!   [`ManifestDirectory::remove`] waits for nothing.
//! - A file that is being written is read when its writer closes it, or pauses for [`QUIET`].
//! - Files that are moved into place are seen whole at once: write them so.

mod decode;
mod desired;
mod directory;
mod folder;
mod scan;
mod wanted;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cloche_crds::{ConditionReason, Effective, Sandbox};
use jiff::Timestamp;

pub use decode::{DecodeError, MAX_MANIFEST, Manifest, decode};
pub use directory::{ManifestDirectory, PutError, RemoveError, SourceError};
pub(crate) use folder::{Folder, FolderError};
pub use wanted::{Accounted, DesiredSet, Origin, Wanted};

/// The one namespace that standalone knows.
pub const NAMESPACE: &str = "default";
/// Longest name of a manifest, in bytes: its status file and what that is written to need room below Linux' 255.
pub const MAX_NAME: usize = 200;
/// How long a file may be gone before its sandbox counts as deleted.
pub const GRACE: Duration = Duration::from_millis(500);
/// How long the writer of a file that it has not closed must pause before the file is read nevertheless.
pub const QUIET: Duration = Duration::from_secs(1);

/// Which sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxKey {
    /// A DNS label.
    pub namespace: String,
    /// A DNS label, unique in its namespace.
    pub name: String,
}

impl fmt::Display for SandboxKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// One sandbox that should exist.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredSandbox {
    /// Name of the manifest in its directory.
    pub file: String,
    /// Differs, within one run of the agent, where the sandbox was deleted and made anew between two looks. Never 0.
    pub incarnation: u64,
    /// The object as it was written, its namespace filled in. It has no uid and no status.
    pub object: Sandbox,
    /// What it means.
    pub effective: Effective,
    /// Hex SHA-256 of the spec's JSON: equal for equal specs, also over restarts.
    pub spec_hash: String,
}

/// A sandbox that an earlier run of the agent took over from a manifest. While that manifest cannot be used, it stays desired.
#[derive(Clone, Debug, PartialEq)]
pub struct Remembered {
    /// Which.
    pub key: SandboxKey,
    /// Name of its manifest.
    pub file: String,
    /// The object as it was taken over.
    pub object: Sandbox,
    /// What it means.
    pub effective: Effective,
}

/// A manifest that is not, or not wholly, what the directory wants.
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidManifest {
    /// Name of the file in its directory.
    pub file: String,
    /// The sandbox that this file goes on to stand for: its last valid object is still desired.
    pub keeps: Option<SandboxKey>,
    /// `Invalid` or `Immutable`.
    pub reason: ConditionReason,
    /// What is wrong and what to do; of more than one line where there is more to say.
    pub message: String,
    /// Since when this message holds.
    pub since: Timestamp,
}

/// Everything that the manifest directory wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// What should exist. Shared: the set is copied at each change of the directory.
    pub sandboxes: BTreeMap<SandboxKey, Arc<DesiredSandbox>>,
    /// What could not be understood or taken, by file name.
    pub invalid: Vec<InvalidManifest>,
}

impl Desired {
    /// What an earlier run of the agent wanted, as far as it had begun.
    fn remembered(
        remembered: Vec<Remembered>,
        next_incarnation: &mut u64,
    ) -> Result<Self, serde_json::Error> {
        let mut desired = Self::default();
        for one in remembered {
            let sandbox = DesiredSandbox {
                incarnation: *next_incarnation,
                spec_hash: decode::spec_hash(&one.object.spec)?,
                file: one.file,
                object: one.object,
                effective: one.effective,
            };
            *next_incarnation += 1;
            desired.sandboxes.insert(one.key, Arc::new(sandbox));
        }
        Ok(desired)
    }

    /// Every manifest that stands for something, by file name.
    pub fn manifests(&self) -> impl Iterator<Item = &str> {
        let held = self.sandboxes.values().map(|sandbox| sandbox.file.as_str());
        held.chain(self.invalid.iter().map(|invalid| invalid.file.as_str()))
    }
}

/// Whether a file of this name is read as a manifest.
fn is_manifest(name: &str) -> bool {
    !name.starts_with('.')
        && !name.ends_with(crate::status::ENDING)
        && crate::status::stem(name).len() < name.len()
}
