//! A node of a rig as this machine sees it: processes, groups and mounts that are in its namespaces.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::audit::Owner;
use crate::audit::world::{Process, processes};
use crate::deadline::until;
use crate::rig::ControlPlane;

/// The agent's folders on a node, which the chart mounts into its pod under the same names.
const FOLDERS: [&str; 2] = ["/var/lib/cloche", "/run/cloche"];
const AGENT: &str = "/cloche-agent";
/// How long the processes of deleted pods may take to end.
const SETTLE: Duration = Duration::from_secs(40);

/// Node N of a rig with kubelets.
#[derive(Clone, Debug)]
pub struct Node {
    /// The first process in its namespaces.
    init: i32,
    /// The group that all of it is in.
    group: String,
    /// Its `/var/lib`.
    lib: PathBuf,
}

impl Node {
    /// Finds it.
    pub(super) fn find(plane: &ControlPlane, number: u8) -> Result<Self> {
        let name = format!("node{number}");
        let folder = plane.folder()?;
        let file = folder.join("pid").join(&name);
        let told = std::fs::read_to_string(&file)
            .with_context(|| format!("read {}, of a node that runs", file.display()))?;
        let outer = told.split_whitespace().next().context("a process's id")?;
        let children = format!("/proc/{outer}/task/{outer}/children");
        let children =
            std::fs::read_to_string(&children).with_context(|| format!("read {children}"))?;
        Ok(Self {
            init: children
                .trim()
                .parse()
                .context("the node's first process")?,
            group: format!("rig{}/{name}", plane.id()?),
            lib: folder.join(name).join("lib"),
        })
    }

    /// What of it is Cloche's, with or without an agent that runs.
    pub fn owner(&self) -> Result<Owner> {
        let folders = FOLDERS.map(str::to_owned).to_vec();
        Ok(Owner {
            volumes: folders.clone(),
            folders,
            pid: self.agent()?,
            ..self.owner_of("cloche")
        })
    }

    /// Owns the processes in a group of the node, and no folders.
    fn owner_of(&self, group: &str) -> Owner {
        let init = Path::new("/proc").join(self.init.to_string());
        Owner {
            group: format!("{}/{group}", self.group),
            node: Some(self.group.clone()),
            folders: Vec::new(),
            volumes: Vec::new(),
            state: self.lib.join("cloche"),
            run: init.join("root/run/cloche"),
            manifests: None,
            pid: None,
            machine: Some(self.init),
        }
    }

    /// What runs in pods.
    fn pods(&self) -> Result<Vec<Process>> {
        processes(&self.owner_of("kubepods"))
    }

    /// The agent's process.
    pub fn agent(&self) -> Result<Option<i32>> {
        let mut agents = self.pods()?;
        agents.retain(|process| {
            let mut words = process.command.split(' ');
            words.next().is_some_and(|path| path.ends_with(AGENT)) && words.next() == Some("node")
        });
        match agents.as_slice() {
            [] => Ok(None),
            [agent] => Ok(Some(agent.pid)),
            several => bail!("several agents on a node: {several:?}"),
        }
    }

    /// Processes of sandboxes and of the pool.
    pub fn instances(&self) -> Result<Vec<Process>> {
        let mut all = processes(&self.owner()?)?;
        all.retain(|process| process.group.is_some());
        Ok(all)
    }

    /// Waits until no pod has a process.
    pub async fn without_pods(&self) -> Result<()> {
        let mut last = Vec::new();
        let gone = until(SETTLE, "the pods' processes end", async || {
            last = self.pods()?;
            Ok(last.is_empty().then_some(()))
        });
        gone.await.with_context(|| format!("there are {last:?}"))
    }
}
