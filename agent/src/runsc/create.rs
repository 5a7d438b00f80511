//! Runs `runsc create`: the effect that makes a *created* sandbox.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use serde::Deserialize;
use tokio::task::{block_in_place, spawn_blocking};
use tokio::time::timeout;

use super::{InstancePaths, Profile, SavedFiles, argv, spec};
use crate::cgroup::{CgroupError, Cgroups, Limits};
use crate::sys::log::BoundedLog;
use crate::sys::{Exit, Process, ProcessError, ProcessId, Spawn, SpawnError, descendants, spawn};

/// Of the child's stderr, which its sentry inherits.
const LOG_SIZE: usize = 64 << 10;

/// As much of that is told when it fails.
const TOLD: usize = 2048;

/// The longest state file of runsc that is read; they have 5 to 10 KB.
const MAX_STATE: u64 = 1 << 20;

/// What a sentry's `oom_score_adj` is raised to: the guest's memory is given up before the node's own services.
const OOM_SCORE_ADJ: i32 = 900;

/// What to create.
#[derive(Clone, Debug)]
pub struct CreatePlan {
    /// Where, and under which name.
    pub paths: InstancePaths,
    /// With which programs.
    pub profile: Profile,
    /// The instance's group as [`Cgroups`] names it. It exists in every hierarchy.
    pub group: String,
    /// The same group as an absolute path below each hierarchy's mount point, for runsc.
    pub cgroups_path: String,
    /// Memory that the guest is to see, in bytes.
    pub guest_memory: u64,
    /// The limits of the group, in force when this returns. `memory` includes the sentry's own needs.
    pub limits: Limits,
    /// What the writable layer of `main` is made of; `None`: it begins empty.
    pub saved: Option<SavedFiles>,
    /// How long `runsc create` may take.
    pub deadline: Duration,
}

/// A created sandbox.
#[derive(Debug)]
pub struct Created {
    /// Its sentry. Held from before this is returned, so that its exit status is kept for whoever asks.
    pub sentry: Process,
}

/// A sandbox that was not created. Processes may be left: the caller tears the instance down.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// A file of the instance could not be made or read.
    #[error("{operation} {path}")]
    File {
        /// `make`, `write`, `read`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The group could not be limited, or a process is not in it.
    #[error("put instance {instance} into its control groups")]
    Cgroup {
        /// The instance.
        instance: String,
        /// Why.
        source: CgroupError,
    },
    /// `runsc create` could not be started.
    #[error("start runsc create for instance {instance}")]
    Spawn {
        /// The instance.
        instance: String,
        /// Why.
        source: SpawnError,
    },
    /// A process could not be watched.
    #[error("watch the processes of instance {instance}")]
    Process {
        /// The instance.
        instance: String,
        /// Why.
        source: ProcessError,
    },
    /// It took too long and was killed.
    #[error("runsc create for instance {instance} took longer than {} ms; it said: {said}", deadline.as_millis())]
    Deadline {
        /// The instance.
        instance: String,
        /// How long was waited.
        deadline: Duration,
        /// What it wrote to stderr, printable, bounded.
        said: String,
    },
    /// It failed.
    #[error("runsc create for instance {instance} ended with {exit:?}; it said: {said}")]
    Failed {
        /// The instance.
        instance: String,
        /// How.
        exit: Exit,
        /// What it wrote to stderr, printable, bounded.
        said: String,
    },
    /// Its state file does not describe a sandbox as we know them.
    #[error("the state file {path} {what}")]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// It succeeded, but the sentry is gone or was never in the group.
    #[error("instance {instance} was created, but its sentry (pid {pid}) {what}")]
    Sentry {
        /// The instance.
        instance: String,
        /// As the state file says.
        pid: i32,
        /// What is wrong.
        what: &'static str,
    },
    /// The thread that blocks was lost: the runtime shuts down.
    #[error("create instance {instance}")]
    Lost {
        /// The instance.
        instance: String,
        /// Why.
        source: tokio::task::JoinError,
    },
}

/// Creates a sandbox, and asserts that every process of it is in the instance's group in every hierarchy.
///
/// While runsc runs, the group's memory limit is what the guest is to see: runsc takes it from there, once. The real limit is
/// set after that, and before any guest code runs.
///
/// Dropped half-way, or when this fails, whatever was started goes on: the instance must be torn down ([`super::tear_down`]).
/// Needs a runtime with several threads, one of which blocks for some milliseconds while it starts the program.
pub async fn create(plan: &CreatePlan, cgroups: &Arc<dyn Cgroups>) -> Result<Created, CreateError> {
    // In place, not on another thread: dropped while it waited for that one, this would leave a child behind that joins the
    // group after the tear-down saw it empty (seen).
    let (process, log) = block_in_place(|| start(plan, cgroups.as_ref()))?;
    let said = || log.text(TOLD).unwrap_or_default();
    let name = plan.paths.name().clone();
    let instance = || name.to_string();
    let watched = |source| CreateError::Process {
        instance: instance(),
        source,
    };
    let Ok(exit) = timeout(plan.deadline, process.ended()).await else {
        process.signal(Signal::SIGKILL).map_err(watched)?;
        return Err(CreateError::Deadline {
            instance: instance(),
            deadline: plan.deadline,
            said: said(),
        });
    };
    let exit = exit.map_err(watched)?;
    if exit != Exit::Code(0) {
        return Err(CreateError::Failed {
            instance: instance(),
            exit,
            said: said(),
        });
    }
    let (plan, cgroups) = (plan.clone(), Arc::clone(cgroups));
    spawn_blocking(move || verify(&plan, cgroups.as_ref()))
        .await
        .map_err(|source| CreateError::Lost {
            instance: instance(),
            source,
        })?
}

fn start(plan: &CreatePlan, cgroups: &dyn Cgroups) -> Result<(Process, BoundedLog), CreateError> {
    let paths = &plan.paths;
    let instance = || paths.name().to_string();
    for path in [
        paths.home().to_owned(),
        paths.root(),
        paths.bundle(),
        paths.panic(),
    ] {
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|source| CreateError::File {
                operation: "make",
                path,
                source,
            })?;
    }
    let config = paths.bundle().join("config.json");
    let spec = spec::root(
        paths.name(),
        &plan.profile.init_erofs(),
        &plan.profile.empty(),
        &plan.cgroups_path,
    );
    std::fs::write(&config, spec.to_string()).map_err(|source| CreateError::File {
        operation: "write",
        path: config,
        source,
    })?;
    let while_created = Limits {
        memory: plan.guest_memory,
        ..plan.limits
    };
    limit(plan, cgroups, &while_created)?;
    let log = BoundedLog::new(LOG_SIZE).map_err(|source| CreateError::File {
        operation: "make",
        path: "the log of runsc create".into(),
        source,
    })?;
    let join = cgroups
        .join_files(&plan.group)
        .map_err(|source| CreateError::Cgroup {
            instance: instance(),
            source,
        })?;
    let process = spawn(&Spawn {
        program: &plan.profile.runsc(),
        arguments: &argv::create(paths, plan.saved.as_ref()),
        join: &join,
        stderr: log.file().as_fd(),
        oom_score_adj: OOM_SCORE_ADJ,
    })
    .map_err(|source| CreateError::Spawn {
        instance: instance(),
        source,
    })?;
    Ok((process, log))
}

fn verify(plan: &CreatePlan, cgroups: &dyn Cgroups) -> Result<Created, CreateError> {
    let instance = || plan.paths.name().to_string();
    let pid = sentry_pid(&plan.paths)?;
    let wrong = |what| CreateError::Sentry {
        instance: instance(),
        pid,
        what,
    };
    let watched = |source| CreateError::Process {
        instance: instance(),
        source,
    };
    let of = |pid| ProcessId::of(pid).map_err(watched);
    let sentry = of(pid)?
        .map(Process::open)
        .transpose()
        .map_err(watched)?
        .flatten()
        .ok_or_else(|| wrong("has died"))?;
    let grouped = |source| CreateError::Cgroup {
        instance: instance(),
        source,
    };
    // Both: what descends from the sentry but left the group, and what is in one hierarchy's group but not in another's.
    let mut members = descendants(pid).map_err(|source| CreateError::File {
        operation: "read",
        path: "/proc".into(),
        source,
    })?;
    let in_group = cgroups.processes(&plan.group).map_err(grouped)?;
    if !in_group.contains(&pid) {
        return Err(wrong("is not in its control group"));
    }
    members.extend(in_group);
    for member in members {
        if let Err(error) = cgroups.assert_member(&plan.group, member)
            // One that ended meanwhile is in no group.
            && of(member)?.is_some()
        {
            return Err(grouped(error));
        }
    }
    limit(plan, cgroups, &plan.limits)?;
    Ok(Created { sentry })
}

fn limit(plan: &CreatePlan, cgroups: &dyn Cgroups, limits: &Limits) -> Result<(), CreateError> {
    cgroups
        .limit(&plan.group, limits)
        .map_err(|source| CreateError::Cgroup {
            instance: plan.paths.name().to_string(),
            source,
        })
}

/// The part of runsc's state file that we use (`Container` and `Sandbox`, runsc/container and runsc/sandbox).
#[derive(Deserialize)]
struct State {
    sandbox: SandboxState,
}

#[derive(Deserialize)]
struct SandboxState {
    pid: i32,
    #[serde(rename = "controlSocketPath")]
    control_socket: PathBuf,
}

fn sentry_pid(paths: &InstancePaths) -> Result<i32, CreateError> {
    let path = paths.state_file();
    let bytes = read_bounded(&path).map_err(|source| CreateError::File {
        operation: "read",
        path: path.clone(),
        source,
    })?;
    let wrong = |what| CreateError::State {
        path: path.clone(),
        what,
    };
    parse_state(&bytes, &paths.socket()).map_err(wrong)
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        .open(path)?;
    let mut bytes = Vec::new();
    file.take(MAX_STATE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn parse_state(bytes: &[u8], socket: &Path) -> Result<i32, &'static str> {
    let state: State = serde_json::from_slice(bytes).map_err(|_| "does not describe a sandbox")?;
    // 0 would be ourselves, negative numbers are groups, 1 is nobody's sandbox.
    if state.sandbox.pid <= 1 {
        return Err("names no process");
    }
    if state.sandbox.control_socket != socket {
        return Err("names another control socket than the one asked for");
    }
    Ok(state.sandbox.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_file_is_believed_only_as_far_as_it_makes_sense() {
        let socket = Path::new("/run/x.sock");
        let parse = |text: &str| parse_state(text.as_bytes(), socket);
        assert_eq!(
            parse(r#"{"id":"a","sandbox":{"pid":77,"controlSocketPath":"/run/x.sock","more":[]}}"#),
            Ok(77)
        );
        for bad in [
            "",
            "null",
            "[]",
            "{}",
            r#"{"sandbox":null}"#,
            r#"{"sandbox":{"pid":0,"controlSocketPath":"/run/x.sock"}}"#,
            r#"{"sandbox":{"pid":1,"controlSocketPath":"/run/x.sock"}}"#,
            r#"{"sandbox":{"pid":-7,"controlSocketPath":"/run/x.sock"}}"#,
            r#"{"sandbox":{"pid":99999999999,"controlSocketPath":"/run/x.sock"}}"#,
            r#"{"sandbox":{"pid":"77","controlSocketPath":"/run/x.sock"}}"#,
            r#"{"sandbox":{"pid":77,"controlSocketPath":"/tmp/y.sock"}}"#,
            r#"{"sandbox":{"pid":77,"controlSocketPath":"/run/x.sock"}"#,
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
