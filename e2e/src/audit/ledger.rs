//! What the agent's ledger names.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Ids with a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Instances, in use or not.
    pub instances: BTreeSet<String>,
    /// Those of them that stand; the others are being made.
    pub made: BTreeSet<String>,
    /// Sandboxes.
    pub sandboxes: BTreeSet<String>,
}

impl Ledger {
    /// Reads the names below a state folder.
    pub fn read(state: &Path) -> Result<Self> {
        let folder = state.join("instances");
        let instances = ids(&folder)?;
        let is_made = |id: &&String| {
            let record = std::fs::read(folder.join(id).join("record.json")).unwrap_or_default();
            let record: Value = serde_json::from_slice(&record).unwrap_or_default();
            record["record"]["stage"]["at"] == "made"
        };
        Ok(Self {
            made: instances.iter().filter(is_made).cloned().collect(),
            instances,
            sandboxes: ids(&state.join("sandboxes"))?,
        })
    }
}

/// Names of the folders that hold a record.
fn ids(folder: &Path) -> Result<BTreeSet<String>> {
    let names = names(folder)?;
    Ok(names
        .into_iter()
        .filter(|name| folder.join(name).join("record.json").is_file())
        .collect())
}

/// Names in a folder; one that is missing has none.
pub(super) fn names(folder: &Path) -> Result<BTreeSet<String>> {
    let context = || format!("list {}", folder.display());
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(problem) if problem.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(problem) => return Err(problem).with_context(context),
    };
    entries
        .map(|entry| {
            Ok(entry
                .with_context(context)?
                .file_name()
                .to_string_lossy()
                .into_owned())
        })
        .collect()
}
