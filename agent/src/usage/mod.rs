//! What instances use, sampled: peaks for the end record, groups whose stubs were killed, and a budget that runs out.
//!
//! One task looks at the whole once a second, and at every instance each [`EVERY`] looks, or each time while the whole is near
//! its budget: reading a group costs some 0.1 ms, so a hundred idle sandboxes cost a few thousandths of a core.

pub mod evict;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cloche_crds::{FailureDomain, Reason};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::cgroup::{Cgroups, Counters};
use crate::sandbox::driver::DriverHandle;
use crate::sandbox::{Cause, Event, Usage};

const PERIOD: Duration = Duration::from_secs(1);
/// Looks at the whole between two looks at every instance.
const EVERY: u32 = 5;

/// Instances in use, and what was last seen of them. Cheap to clone.
#[derive(Clone)]
pub struct Sampler {
    cgroups: Arc<dyn Cgroups>,
    budget: Option<u64>,
    watched: Arc<Mutex<BTreeMap<String, Watched>>>,
}

#[derive(Clone, Debug)]
struct Watched {
    sandbox: String,
    request: u64,
    driver: DriverHandle,
    /// The sandbox's folder, where its peak is kept.
    folder: PathBuf,
    peak: u64,
    /// The peak that the next agent will find.
    kept: u64,
    last: Counters,
    /// Its driver was told to evict it.
    evicting: bool,
}

impl Sampler {
    /// A sampler of these groups; `budget` is the memory that all instances together may use, in bytes.
    pub fn new(cgroups: Arc<dyn Cgroups>, budget: Option<u64>) -> Self {
        Self {
            cgroups,
            budget,
            watched: Arc::default(),
        }
    }

    /// Watches the instance `id` of `sandbox`, which requested `request` bytes, for `driver`; its peak is kept in `folder`.
    pub fn watch(
        &self,
        id: &str,
        sandbox: &str,
        folder: PathBuf,
        request: u64,
        driver: DriverHandle,
    ) {
        let watched = Watched {
            sandbox: sandbox.to_owned(),
            request,
            driver,
            folder,
            peak: 0,
            kept: 0,
            last: Counters::default(),
            evicting: false,
        };
        self.lock().insert(id.to_owned(), watched);
    }

    /// Looks at the instance `id` no more, and tells the most memory that it was seen to use.
    pub fn forget(&self, id: &str) -> Option<u64> {
        self.lock()
            .remove(id)
            .map(|watched| watched.peak)
            .filter(|peak| *peak > 0)
    }

    /// Samples until `cancel`.
    pub async fn run(self, cancel: CancellationToken) {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for look in (0..EVERY).cycle() {
            tokio::select! {
                // Both are cancel safe.
                () = cancel.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let sampler = self.clone();
            let looked = tokio::task::spawn_blocking(move || sampler.look(look == 0)).await;
            let Ok(seen) = looked else { return };
            self.act(seen).await;
        }
    }

    fn look(&self, at_all: bool) -> Seen {
        let total = self.budget.and_then(|_| self.cgroups.total().ok());
        let is_near = self
            .budget
            .zip(total)
            .is_some_and(|(budget, total)| evict::is_near(budget, total.memory));
        let ids = if at_all || is_near {
            self.lock().keys().cloned().collect()
        } else {
            Vec::new()
        };
        let counters = ids.into_iter().filter_map(|id| {
            let counters = self.cgroups.counters(&id).ok()?;
            Some((id, counters))
        });
        Seen {
            counters: counters.collect(),
            total,
        }
    }

    async fn act(&self, seen: Seen) {
        let mut stubs_killed = Vec::new();
        let mut candidates = Vec::new();
        {
            let mut watched = self.lock();
            for (id, counters) in &seen.counters {
                let Some(one) = watched.get_mut(id) else {
                    continue;
                };
                if counters.oom_kills > one.last.oom_kills {
                    stubs_killed.push(id.clone());
                }
                one.peak = one.peak.max(counters.memory);
                one.last = *counters;
                candidates.push(evict::Candidate {
                    id: id.clone(),
                    request: one.request,
                    memory: counters.memory,
                });
            }
        }
        for id in stubs_killed {
            // v1 may kill one stub and leave the sentry: the group goes as a whole, as memory.oom.group does on v2. The
            // sentry's end then tells the driver, with the counters as evidence.
            let cgroups = Arc::clone(&self.cgroups);
            let killed = tokio::task::spawn_blocking(move || cgroups.kill(&id)).await;
            if let Ok(Err(error)) = killed {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot kill a group out of memory"
                );
            }
        }
        if let (Some(budget), Some(total)) = (self.budget, seen.total)
            && let Some(id) = evict::choose(budget, total.memory, &candidates)
        {
            self.evict(&id, budget, total.memory);
        }
        let sampler = self.clone();
        // A write that is lost with its thread is made again with the next peak.
        drop(tokio::task::spawn_blocking(move || sampler.keep_peaks()).await);
    }

    /// Keeps the peaks that have grown by more than a sixteenth, for the next agent. Blocking, and not under the lock: a disk that
    /// stands still must hold up nobody else.
    fn keep_peaks(&self) {
        let mut grown = Vec::new();
        for watched in self.lock().values_mut() {
            if watched.peak > watched.kept + watched.kept / 16 {
                watched.kept = watched.peak;
                grown.push((watched.folder.clone(), watched.peak));
            }
        }
        for (folder, peak) in grown {
            keep_peak(&folder, peak);
        }
    }

    fn evict(&self, id: &str, budget: u64, total: u64) {
        let mut all = self.lock();
        let Some(watched) = all.get_mut(id).filter(|watched| !watched.evicting) else {
            return;
        };
        let message = format!(
            "the node's sandboxes use {total} of {budget} bytes; this one uses {} and requested {}: request what it needs",
            watched.last.memory, watched.request
        );
        tracing::warn!(
            sandbox = watched.sandbox,
            instance = id,
            message,
            "evicting"
        );
        let cause = Cause::new(Reason::Evicted, FailureDomain::Infrastructure, message);
        // A driver whose queue is full is told at the next look.
        watched.evicting = watched.driver.try_tell(Event::Evict(cause));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Seen {
    counters: Vec<(String, Counters)>,
    total: Option<Counters>,
}

const KEPT: &str = "usage.json";

/// The use that [`keep`] kept in the folder of a sandbox; nothing in it where nothing was. Blocking.
pub fn kept(folder: &Path) -> Usage {
    std::fs::read(folder.join(KEPT))
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

/// Keeps a peak of a sandbox that runs on, unless a higher one is kept. Blocking.
fn keep_peak(folder: &Path, peak: u64) {
    let before = kept(folder);
    if before.peak_memory.is_none_or(|before| before < peak) {
        let peak_memory = Some(peak);
        keep(
            folder,
            &Usage {
                peak_memory,
                ..before
            },
        );
    }
}

/// Keeps the use of a sandbox over `kill -9` of the agent: of one whose group is about to go, or its peak so far. Blocking.
///
/// Best effort: what cannot be kept is not told if the agent dies, and nothing else is told in its place.
pub fn keep(folder: &Path, used: &Usage) {
    let stored = serde_json::to_vec(used)
        .map_err(std::io::Error::other)
        .and_then(|bytes| std::fs::write(folder.join("usage.json.new"), bytes))
        .and_then(|()| std::fs::rename(folder.join("usage.json.new"), folder.join(KEPT)));
    if let Err(error) = stored {
        tracing::warn!(error = &error as &dyn std::error::Error, folder = %folder.display(), "cannot keep what a sandbox used");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_peak_only_rises_and_an_end_is_kept_whole() {
        let folder = tempfile::tempdir().unwrap();
        let peak = |bytes| Usage {
            peak_memory: Some(bytes),
            cpu_usec: None,
        };
        assert_eq!(kept(folder.path()), Usage::default());
        for (seen, wanted) in [(5, 5), (3, 5), (9, 9)] {
            keep_peak(folder.path(), seen);
            assert_eq!(kept(folder.path()), peak(wanted));
        }
        let end = Usage {
            cpu_usec: Some(7),
            ..peak(9)
        };
        keep(folder.path(), &end);
        assert_eq!(kept(folder.path()), end);
    }
}
