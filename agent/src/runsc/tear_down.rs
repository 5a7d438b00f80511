//! Ends an instance: every process, every file. By its control group, which holds also what no file of runsc knows.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::InstancePaths;
use crate::cgroup::{CgroupError, Cgroups};
use crate::sys::{Process, ProcessError, ProcessId};

/// Processes that are waited for at once: each takes a descriptor, and a sandbox can have thousands.
const HELD: usize = 64;
/// So often the group is looked at again although what was seen there still lives: meanwhile more may have been born.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Something of an instance is left.
#[derive(Debug, thiserror::Error)]
pub enum TearDownError {
    /// The group could not be read or killed.
    #[error("kill the processes of instance {instance}")]
    Cgroup {
        /// The instance.
        instance: String,
        /// Why.
        source: CgroupError,
    },
    /// A process could not be watched.
    #[error("wait for the processes of instance {instance}")]
    Process {
        /// The instance.
        instance: String,
        /// Why.
        source: ProcessError,
    },
    /// Processes outlive SIGKILL: they hang in the kernel.
    #[error("processes of instance {instance} outlived SIGKILL for {} s", deadline.as_secs())]
    Deadline {
        /// The instance.
        instance: String,
        /// How long was waited.
        deadline: Duration,
    },
    /// Files could not be removed.
    #[error("remove {path}")]
    Remove {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The thread that blocks was lost: the runtime shuts down.
    #[error("tear down instance {instance}")]
    Lost {
        /// The instance.
        instance: String,
        /// Why.
        source: tokio::task::JoinError,
    },
}

/// Kills all processes of the group `group` until there are none. No exit status is taken.
///
/// A `runsc create` that still runs is killed with the rest, whatever it was about to start. Cancel safe, may be repeated.
pub async fn kill(
    cgroups: &Arc<dyn Cgroups>,
    group: &str,
    deadline: Duration,
) -> Result<(), TearDownError> {
    let instance = || group.to_owned();
    let rounds = async {
        loop {
            let (to_kill, name) = (Arc::clone(cgroups), instance());
            let alive = spawn_blocking(move || {
                to_kill.kill(&name)?;
                to_kill.processes(&name)
            })
            .await
            .map_err(|source| TearDownError::Lost {
                instance: instance(),
                source,
            })?
            .map_err(|source| TearDownError::Cgroup {
                instance: instance(),
                source,
            })?;
            if alive.is_empty() {
                return Ok(());
            }
            let held = alive
                .into_iter()
                .take(HELD)
                .filter_map(|pid| ProcessId::of(pid).transpose())
                .filter_map(|id| id.and_then(Process::open).transpose())
                .collect::<Result<Vec<_>, _>>()
                .map_err(|source| TearDownError::Process {
                    instance: instance(),
                    source,
                })?;
            // Too late or not at all, the next round decides.
            drop(timeout(LOOK_AGAIN, join_all(held.iter().map(Process::gone))).await);
        }
    };
    timeout(deadline, rounds)
        .await
        .map_err(|_| TearDownError::Deadline {
            instance: instance(),
            deadline,
        })?
}

/// Removes all files of an instance whose processes are gone. Gone already is fine.
pub async fn remove(paths: &InstancePaths) -> Result<(), TearDownError> {
    let home = paths.home().to_owned();
    let removed = spawn_blocking(move || match std::fs::remove_dir_all(&home) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(TearDownError::Remove {
            path: home,
            source: error,
        }),
        _ => Ok(()),
    })
    .await;
    removed.map_err(|source| TearDownError::Lost {
        instance: paths.name().to_string(),
        source,
    })?
}
