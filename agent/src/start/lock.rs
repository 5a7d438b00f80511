//! One agent per place.

use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::Options;
use crate::cgroup::Groups;
use crate::clock;

/// How long an earlier agent's lock is waited for, and how often it is asked for.
const WAIT: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(20);

/// Held while the agent runs.
#[derive(Debug)]
pub struct Locks {
    _held: Vec<Flock<File>>,
}

/// One agent per state and run folder, per folder `beside` them, and per parent group: whatever it finds in them that it does not know
/// it takes for its own of old, and removes. What a killed one was about to start holds its locks until it is a program of its own
/// (seen: some milliseconds), so a lock that is held is asked for again until [`WAIT`] is over. Folders are made where they are missing.
pub async fn lock(options: &Options, beside: Option<&Path>) -> Result<Locks> {
    let mut folders = vec![options.state.as_path(), &options.run];
    folders.extend(beside);
    for folder in &folders {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .with_context(|| format!("make the folder {}", folder.display()))?;
    }
    let group = Groups::open(&options.cgroup_parent)?.make_parent_folder()?;
    folders.push(&group);
    let until = clock::now().boot + WAIT;
    let mut held = Vec::new();
    for folder in folders {
        held.push(lock_folder(folder, until).await?);
    }
    Ok(Locks { _held: held })
}

async fn lock_folder(folder: &Path, until: Duration) -> Result<Flock<File>> {
    let mut file = File::open(folder).with_context(|| format!("open {}", folder.display()))?;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((unlocked, Errno::EWOULDBLOCK)) if clock::now().boot < until => file = unlocked,
            Err((_, Errno::EWOULDBLOCK)) => bail!("{}: another agent runs on it", folder.display()),
            Err((_, errno)) => {
                return Err(errno).with_context(|| format!("lock {}", folder.display()));
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}
