//! Takes everything down that is a test's own, whatever state it is in.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};

use super::Agent;
use crate::audit::world::{World, groups, hierarchies};
use crate::deadline::until;

/// How long the kernel may take to end killed processes.
const KILL: Duration = Duration::from_secs(10);

impl Agent {
    /// Kills the agent and all in its cgroups, detaches its mounts, removes its groups and folders.
    pub async fn take_down(mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().await.context("kill the agent")?;
        }
        self.end_all().await
    }

    /// Kills all that the agent, which does not run, has left; detaches its mounts and removes its groups.
    pub(super) async fn end_all(&self) -> Result<()> {
        until(KILL, "the test's processes end", async || {
            Ok((self.kill_processes()? && self.clear()?).then_some(()))
        })
        .await
    }

    /// Sends SIGKILL to each process that is its own; whether there was none.
    fn kill_processes(&self) -> Result<bool> {
        let world = World::see(self)?;
        for process in &world.processes {
            // Gone already is what is wanted.
            kill(nix::unistd::Pid::from_raw(process.pid), Signal::SIGKILL).ok();
        }
        Ok(world.processes.is_empty())
    }

    /// Whether all went: what was just forked, or is about to be gone, still keeps its group, and is killed in the next round.
    fn clear(&self) -> Result<bool> {
        for mount in World::see(self)?.mounts {
            umount2(Path::new(&mount.point), MntFlags::MNT_DETACH)
                .with_context(|| format!("unmount {}", mount.point))?;
        }
        for hierarchy in hierarchies()? {
            let mut folders: Vec<PathBuf> = groups(&hierarchy, self.group())?;
            // Children before parents.
            folders.sort_by_key(|folder| std::cmp::Reverse(folder.components().count()));
            for folder in folders {
                let removed = std::fs::remove_dir(&folder);
                if matches!(&removed, Err(problem) if problem.kind() == ErrorKind::ResourceBusy) {
                    return Ok(false);
                }
                removed.with_context(|| format!("remove the group {}", folder.display()))?;
            }
        }
        Ok(true)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Reached with something left only where a test broke off without `take_down`. The child is killed by its handle; the
        // rest is done as far as it goes, since nobody can be told.
        drop(self.child.take());
        drop(self.kill_processes());
        drop(self.clear());
    }
}
