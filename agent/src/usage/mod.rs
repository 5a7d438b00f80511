//! What instances use, sampled: peaks for the end record, groups whose stubs were killed, and a budget that runs out.
//!
//! One task looks at the whole once a second, and at every instance each [`EVERY`] looks, or each time while the whole is near
//! its budget: reading a group costs some 0.1 ms, so a hundred idle sandboxes cost a few thousandths of a core.

mod disk;
pub mod evict;
mod pressure;
mod space;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cloche_crds::{FailureDomain, Reason};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use self::disk::Layer;
use self::pressure::Barometer;
pub use self::pressure::Pressure;
pub use self::space::{Space, Watermarks};
use crate::cgroup::{Cgroups, Counters};
use crate::clock;
use crate::sandbox::driver::DriverHandle;
use crate::sandbox::{Cause, Event, Usage};

const PERIOD: Duration = Duration::from_secs(1);
/// Looks at the whole between two looks at every instance.
const EVERY: u32 = 5;
/// Least time between two looks at what an instance is short of: a little less than all are apart.
const PRESSED: Duration = Duration::from_millis(4500);

/// Instances in use, and what was last seen of them. Cheap to clone.
#[derive(Clone)]
pub struct Sampler {
    cgroups: Arc<dyn Cgroups>,
    budget: Option<u64>,
    space: Space,
    watched: Arc<Mutex<BTreeMap<String, Watched>>>,
}

/// An instance to be sampled, and of whom.
pub struct Subject {
    /// Name of the sandbox, for the log.
    pub sandbox: String,
    /// The sandbox's folder, where its peaks are kept.
    pub folder: PathBuf,
    /// Memory that it requested, in bytes.
    pub request: u64,
    /// What it may hold of its writable layer, in bytes.
    pub disk_limit: u64,
    /// What it requested of that.
    pub disk_request: u64,
    /// Its sentry.
    pub sentry: i32,
    /// Folder of the writable layers.
    pub scratch: PathBuf,
    /// Who ends it.
    pub driver: DriverHandle,
    /// Who tells what it is short of.
    pub tell: Box<dyn Fn(Pressure) + Send + Sync>,
}

/// What an instance uses now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// What the kernel counted.
    pub counters: Counters,
    /// Thousandths of a core over the last seconds; `None` where it was not there for as long.
    pub cpu_millis: Option<u64>,
    /// The most memory that it was seen to use, in bytes.
    pub peak_memory: u64,
    /// What it holds of its writable layer, in bytes; `None` where that cannot be seen.
    pub disk: Option<u64>,
}

struct Watched {
    subject: Arc<Subject>,
    layer: Option<Layer>,
    peaks: Peaks,
    /// The peaks that the next agent will find.
    kept: Peaks,
    /// When it was looked at last, by the boot clock, and what was seen then; and the look before.
    last: Option<(Duration, Counters)>,
    before: Option<(Duration, Counters)>,
    barometer: Barometer,
    /// What the barometer saw last: it looks at most as often as everybody is looked at.
    pressed: Option<(Duration, Counters)>,
    pressure: Pressure,
    /// Its driver was told to evict it.
    evicting: bool,
}

/// The most that an instance was seen to use, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Memory.
    pub memory: u64,
    /// Of its writable layer; `None` where that could not be seen.
    pub disk: Option<u64>,
}

impl Peaks {
    /// The greater of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            memory: self.memory.max(other.memory),
            disk: self.disk.max(other.disk),
        }
    }
}

impl Sampler {
    /// A sampler of these groups; `budget` is the memory that all instances together may use, in bytes, and `space` the disk that they
    /// write to.
    pub fn new(cgroups: Arc<dyn Cgroups>, budget: Option<u64>, space: Space) -> Self {
        Self {
            cgroups,
            budget,
            space,
            watched: Arc::default(),
        }
    }

    /// Watches the instance `id`.
    pub fn watch(&self, id: &str, subject: Subject) {
        let layer = Layer::new(subject.sentry, &subject.scratch)
            .inspect_err(|error| {
                tracing::warn!(
                    error = error as &dyn std::error::Error,
                    "cannot see what a sandbox writes"
                );
            })
            .ok();
        let watched = Watched {
            subject: Arc::new(subject),
            layer,
            peaks: Peaks::default(),
            kept: Peaks::default(),
            last: None,
            before: None,
            barometer: Barometer::default(),
            pressed: None,
            pressure: Pressure::default(),
            evicting: false,
        };
        self.lock().insert(id.to_owned(), watched);
    }

    /// Looks at the instance `id` no more, and tells the most that it was seen to use.
    pub fn forget(&self, id: &str) -> Peaks {
        self.lock()
            .remove(id)
            .map(|watched| watched.peaks)
            .unwrap_or_default()
    }

    /// What the instance `id` holds of its writable layer. Blocking.
    pub fn disk(&self, id: &str) -> Option<u64> {
        let mut layer = self.lock().get(id)?.layer.clone()?;
        layer.bytes()
    }

    /// What the instance `id` uses; `None` where it is not watched, or is gone. Blocking.
    pub fn now(&self, id: &str) -> Option<Now> {
        let counters = self.cgroups.counters(id).ok()?;
        let disk = self.disk(id);
        let now = clock::boot_time();
        let mut watched = self.lock();
        let watched = watched.get_mut(id)?;
        let seen = Peaks {
            memory: counters.memory,
            disk,
        };
        // What was told is not taken back at the end.
        watched.peaks = watched.peaks.max(seen);
        let since = [watched.last, watched.before]
            .into_iter()
            .flatten()
            .find(|(at, _)| now.saturating_sub(*at) >= PERIOD);
        let cpu_millis = since.map(|(at, before)| {
            let used = u128::from(counters.cpu_usec.saturating_sub(before.cpu_usec)) * 1000;
            let rate = used / now.saturating_sub(at).as_micros().max(1);
            u64::try_from(rate).unwrap_or(u64::MAX)
        });
        Some(Now {
            counters,
            cpu_millis,
            peak_memory: watched.peaks.memory,
            disk,
        })
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
        let free = self.space.free();
        let is_near = is_near || free.is_some_and(|free| free < self.space.watermarks.pressure);
        let ids = if at_all || is_near {
            self.lock().keys().cloned().collect()
        } else {
            Vec::new()
        };
        let counters = ids.into_iter().filter_map(|id| {
            let counters = self.cgroups.counters(&id).ok()?;
            let mut layer = self.lock().get(&id)?.layer.clone();
            let disk = layer.as_mut().and_then(Layer::bytes);
            if let Some(watched) = self.lock().get_mut(&id) {
                watched.layer = layer;
            }
            Some((id, counters, disk))
        });
        Seen {
            counters: counters.collect(),
            total,
            free,
        }
    }

    async fn act(&self, seen: Seen) {
        let mut stubs_killed = Vec::new();
        let (mut candidates, mut writers) = (Vec::new(), Vec::new());
        let mut pressures = Vec::new();
        {
            let now = clock::boot_time();
            let mut watched = self.lock();
            for (id, counters, disk) in &seen.counters {
                let Some(one) = watched.get_mut(id) else {
                    continue;
                };
                let last = one.last.map(|(_, last)| last).unwrap_or_default();
                if counters.oom_kills > last.oom_kills {
                    stubs_killed.push(id.clone());
                }
                let used = Peaks {
                    memory: counters.memory,
                    disk: *disk,
                };
                one.peaks = one.peaks.max(used);
                one.before = one.last.replace((now, *counters));
                let since = one.pressed.map_or(now, |(at, _)| at);
                if one.pressed.is_none() || now.saturating_sub(since) >= PRESSED {
                    let (_, before) = one
                        .pressed
                        .replace((now, *counters))
                        .unwrap_or((now, *counters));
                    let limit = one.subject.disk_limit;
                    let pressure = one.barometer.look(limit, *disk, &before, counters);
                    if std::mem::replace(&mut one.pressure, pressure) != pressure {
                        pressures.push((Arc::clone(&one.subject), pressure));
                    }
                }
                candidates.push(evict::Candidate {
                    id: id.clone(),
                    request: one.subject.request,
                    used: counters.memory,
                });
                writers.push(evict::Candidate {
                    id: id.clone(),
                    request: one.subject.disk_request,
                    used: disk.unwrap_or(0),
                });
            }
        }
        // Not under the lock: who is told looks at others.
        for (subject, pressure) in pressures {
            (subject.tell)(pressure);
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
            self.evict(&id, |watched| {
                format!(
                    "the node's sandboxes use {} of {budget} bytes; this one uses {} and requested {}: request what it needs",
                    total.memory,
                    watched.last.map_or(0, |(_, last)| last.memory),
                    watched.subject.request
                )
            });
        }
        if let Some(free) = seen.free {
            self.space.tell(free);
            let least = self.space.watermarks.eviction;
            if let Some(writer) = evict::furthest(&writers).filter(|_| free < least) {
                self.evict(&writer, |watched| {
                    let held = writers.iter().find(|one| one.id == writer);
                    format!(
                        "the node's disk has {free} bytes left, less than the {least} that have to stay free; this one holds {} and requested {} \
                         of ephemeral-storage: request what it needs",
                        held.map_or(0, |one| one.used),
                        watched.subject.disk_request
                    )
                });
            }
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
            let (now, kept) = (watched.peaks, watched.kept);
            let has_grown = |now: u64, kept: u64| now > kept + kept / 16;
            let has_written = now
                .disk
                .is_some_and(|disk| kept.disk.is_none_or(|kept| has_grown(disk, kept)));
            if has_grown(now.memory, kept.memory) || has_written {
                watched.kept = now;
                grown.push((watched.subject.folder.clone(), now));
            }
        }
        for (folder, peaks) in grown {
            keep_peaks(&folder, peaks);
        }
    }

    fn evict(&self, id: &str, why: impl FnOnce(&Watched) -> String) {
        let mut all = self.lock();
        let Some(watched) = all.get_mut(id).filter(|watched| !watched.evicting) else {
            return;
        };
        let message = why(watched);
        tracing::warn!(
            sandbox = watched.subject.sandbox,
            instance = id,
            message,
            "evicting"
        );
        let cause = Cause::new(Reason::Evicted, FailureDomain::Infrastructure, message);
        // A driver whose queue is full is told at the next look.
        watched.evicting = watched.subject.driver.try_tell(Event::Evict(cause));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Seen {
    /// What was counted of each, and what it holds of its writable layer.
    counters: Vec<(String, Counters, Option<u64>)>,
    total: Option<Counters>,
    /// Bytes that are free on the disk.
    free: Option<u64>,
}

const KEPT: &str = "usage.json";

/// The use that [`keep`] kept in the folder of a sandbox; nothing in it where nothing was. Blocking.
pub fn kept(folder: &Path) -> Usage {
    std::fs::read(folder.join(KEPT))
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

/// Forgets what was kept: another life begins. Blocking.
pub fn forget(folder: &Path) {
    match std::fs::remove_file(folder.join(KEPT)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(error = &error as &dyn std::error::Error, folder = %folder.display(), "cannot forget what a sandbox used");
        }
        Ok(()) | Err(_) => {}
    }
}

/// Keeps peaks of a sandbox that runs on, unless higher ones are kept. Blocking.
fn keep_peaks(folder: &Path, peaks: Peaks) {
    let before = kept(folder);
    let known = peaks_of(&before);
    let peaks = peaks.max(known);
    if peaks != known {
        keep(
            folder,
            &Usage {
                peak_memory: Some(peaks.memory),
                written: peaks.disk,
                ..before
            },
        );
    }
}

/// The peaks that are known of a use.
pub fn peaks_of(used: &Usage) -> Peaks {
    Peaks {
        memory: used.peak_memory.unwrap_or(0),
        disk: used.written,
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
            written: Some(2 * bytes),
            cpu_usec: None,
        };
        assert_eq!(kept(folder.path()), Usage::default());
        for (seen, wanted) in [(5, 5), (3, 5), (9, 9)] {
            let peaks = Peaks {
                memory: seen,
                disk: Some(2 * seen),
            };
            keep_peaks(folder.path(), peaks);
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
