//! The instances that an agent holds ready, by its records and their control sockets.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cloche_agent::runsc::urpc::Connection;
use cloche_agent::runsc::{InstanceName, InstancePaths};
use cloche_e2e::deadline::until;
use serde_json::Value;

use crate::scene::MIB;

/// How long it may take to be filled.
const LIMIT: Duration = Duration::from_mins(1);

/// Where an agent keeps them.
pub(crate) struct Pool {
    /// Its state folder.
    pub(crate) state: PathBuf,
    /// Its run folder.
    pub(crate) run: PathBuf,
}

impl Pool {
    /// Waits until the pool holds what it should, by `(mebibytes, created, started)`, with no sandbox there.
    pub(crate) async fn filled(&self, targets: &[(u64, usize, usize)]) -> Result<()> {
        until(LIMIT, "the pool is filled", async || {
            let mut held = Vec::new();
            for id in self.made()? {
                held.push((id.1, self.is_started(&id.0).await?));
            }
            let count =
                |memory, started| held.iter().filter(|one| **one == (memory, started)).count();
            let full = targets.iter().all(|(mebibytes, created, started)| {
                let memory = mebibytes * MIB;
                count(memory, false) == *created && count(memory, true) == *started
            });
            Ok(full.then_some(()))
        })
        .await
    }

    /// Whether the root container of an instance runs: what tells a started instance from a created one.
    async fn is_started(&self, id: &str) -> Result<bool> {
        let paths =
            InstancePaths::new(&self.run.join("i"), InstanceName::try_from(id.to_owned())?)?;
        let mut connection = Connection::open(&paths.socket(), LIMIT).await?;
        let state: u8 = connection
            .call("containerManager.ContainerRuntimeState", id, &[], LIMIT)
            .await?;
        Ok(state == 2)
    }

    /// Instances that stand, by the agent's records: id and memory of the shape.
    fn made(&self) -> Result<Vec<(String, u64)>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.state.join("instances")).context("list instances")? {
            let path = entry.context("list instances")?.path();
            // Gone or half there: not made.
            let text = std::fs::read(path.join("record.json")).unwrap_or_default();
            let record: Value = serde_json::from_slice(&text).unwrap_or_default();
            let record = &record["record"];
            if record["stage"]["at"] == "made"
                && let (Some(id), Some(memory)) = (
                    path.file_name().and_then(std::ffi::OsStr::to_str),
                    record["shape"]["memory"].as_u64(),
                )
            {
                found.push((id.to_owned(), memory));
            }
        }
        Ok(found)
    }
}
