//! Whose things an audit looks for, and where.

use std::path::PathBuf;

use super::world::group_of;
use crate::agent::Agent;

/// An agent, or the place of one that comes and goes.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The group that its instances are in, in every hierarchy of this machine.
    pub group: String,
    /// The group that everything of its node is in; `None`: nothing but its names tells what is its own.
    pub node: Option<String>,
    /// Its folders, as command lines and mounts name them.
    pub folders: Vec<String>,
    /// Those of its mounts that it was given.
    pub volumes: Vec<String>,
    /// Its state, by a path of this test.
    pub state: PathBuf,
    /// Its folder in /run, by a path of this test.
    pub run: PathBuf,
    /// Its manifests, if it has some.
    pub manifests: Option<PathBuf>,
    /// Its process, while it runs.
    pub pid: Option<i32>,
    /// A process in the namespaces of the machine that it sees; `None`: this test.
    pub machine: Option<i32>,
}

impl Owner {
    /// Where /proc tells of its machine's namespaces.
    pub(super) fn machine(&self) -> PathBuf {
        let pid = self
            .machine
            .map_or_else(|| "self".to_owned(), |pid| pid.to_string());
        PathBuf::from("/proc").join(pid)
    }

    /// Whether a process with this /proc/PID/cgroup can be its own.
    pub(super) fn is_near(&self, cgroup: &str) -> bool {
        let node = self.node.as_deref();
        node.is_none_or(|node| group_of(cgroup, node).is_some())
    }
}

impl From<&Agent> for Owner {
    fn from(agent: &Agent) -> Self {
        Self {
            group: agent.group().to_owned(),
            node: None,
            folders: [agent.scratch(), agent.run()]
                .map(|folder| folder.display().to_string())
                .to_vec(),
            volumes: Vec::new(),
            state: agent.state(),
            run: agent.run().to_owned(),
            manifests: Some(agent.manifests()),
            pid: agent.pid().ok().map(nix::unistd::Pid::as_raw),
            machine: None,
        }
    }
}
