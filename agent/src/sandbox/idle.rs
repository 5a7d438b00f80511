//! Whether anybody uses a sandbox.
//!
//! Idle is one to which no client is attached and whose commands use less than a hundredth of a core: work in the background counts, by what
//! it uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::holding::Shared;
use super::record::{SandboxRecord, State};
use super::step::Event;
use crate::clock;

/// Looks within one timeout, and the bounds of the time between two.
const LOOKS: u32 = 4;
const SOONEST: Duration = Duration::from_millis(250);
const LATEST: Duration = Duration::from_secs(5);
/// Of one core, in hundredths: the sentry and the init of a sandbox in which nothing is done stay well below.
const BUSY: u64 = 1;

/// The clients of one sandbox.
#[derive(Debug, Default)]
pub struct Activity {
    attached: AtomicUsize,
    /// When the last one went, in milliseconds of boot time.
    left: AtomicU64,
}

/// A client that is attached, until dropped.
#[derive(Debug)]
pub struct Use(Arc<Activity>);

impl Activity {
    /// Somebody comes.
    pub fn begin(self: &Arc<Self>) -> Use {
        self.attached.fetch_add(1, Ordering::AcqRel);
        Use(Arc::clone(self))
    }

    /// Whether anybody is attached.
    pub fn is_used(&self) -> bool {
        self.attached.load(Ordering::Acquire) > 0
    }

    fn left(&self) -> Duration {
        Duration::from_millis(self.left.load(Ordering::Acquire))
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let now = u64::try_from(clock::boot_time().as_millis()).unwrap_or(u64::MAX);
        self.0.left.store(now, Ordering::Release);
        self.0.attached.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What was seen of the use of one sandbox. Pure; times are of the boot clock.
#[derive(Clone, Copy, Debug)]
struct Gauge {
    /// Since when nobody uses it.
    since: Duration,
    at: Duration,
    cpu_usec: u64,
}

impl Gauge {
    fn new(now: Duration, cpu_usec: u64) -> Self {
        Self {
            since: now,
            at: now,
            cpu_usec,
        }
    }

    /// For how long nobody has used it.
    fn look(&mut self, now: Duration, cpu_usec: u64, is_used: bool, left: Duration) -> Duration {
        let used = u128::from(cpu_usec.saturating_sub(self.cpu_usec));
        let time = now.saturating_sub(self.at).as_micros();
        let is_busy = used * 100 > time * u128::from(BUSY);
        self.at = now;
        self.cpu_usec = cpu_usec;
        self.since = if is_used || is_busy {
            now
        } else {
            self.since.max(left)
        };
        now.saturating_sub(self.since)
    }
}

/// Whether `record` is of a sandbox whose idleness counts now.
pub(super) fn counts(record: &SandboxRecord) -> bool {
    record.spec.idle.is_some() && matches!(record.state, State::Running { pause: None, .. })
}

/// Tells when the sandbox has been idle for long enough. Ends where that does not count any more, and says so in what it holds.
pub(super) async fn watch(shared: Shared) {
    let mut gauge: Option<Gauge> = None;
    loop {
        let Some(idle) = current(&shared) else { return };
        let period = (idle / LOOKS).clamp(SOONEST, LATEST);
        if gauge.is_none() {
            let cpu = cpu_usec(&shared).await;
            gauge = cpu.map(|cpu| Gauge::new(clock::boot_time(), cpu));
        }
        tokio::select! {
            // Cancel safe: the next agent begins anew.
            () = shared.node.cancel.cancelled() => return,
            () = tokio::time::sleep(period) => {}
        }
        let (now, cpu) = (clock::boot_time(), cpu_usec(&shared).await);
        let (Some(known), Some(cpu)) = (&mut gauge, cpu) else {
            // What it uses cannot be seen: that is no idleness.
            gauge = None;
            continue;
        };
        let activity = &shared.activity;
        let seen = known.look(now, cpu, activity.is_used(), activity.left());
        if seen >= idle {
            let driver = shared.holding().driver.clone();
            if let Some(driver) = driver {
                driver.tell(Event::Idle).await;
            }
            // Told once; where it goes on all the same, it is as if it had been used.
            known.since = clock::boot_time();
        }
    }
}

/// How long it may be idle; where that does not count, nobody watches from here on.
fn current(shared: &Shared) -> Option<Duration> {
    let mut holding = shared.holding();
    let record = holding.record.as_ref().filter(|record| counts(record));
    let idle = record.and_then(|record| record.spec.idle);
    holding.is_watched = idle.is_some();
    idle.map(|idle| idle.timeout)
}

async fn cpu_usec(shared: &Shared) -> Option<u64> {
    let id = shared.instance()?.id().to_owned();
    let cgroups = Arc::clone(&shared.node.cgroups);
    let counted = tokio::task::spawn_blocking(move || cgroups.counters(&id));
    counted.await.ok()?.ok().map(|counters| counters.cpu_usec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn clients_and_work_count_as_use() {
        let mut gauge = Gauge::new(secs(100), 5000);
        assert_eq!(gauge.look(secs(105), 5000, false, secs(0)), secs(5));
        // A hundredth of a core in 5 s is 50 ms: not more than that is idle.
        assert_eq!(gauge.look(secs(110), 55_000, false, secs(0)), secs(10));
        assert_eq!(gauge.look(secs(115), 105_001, false, secs(0)), secs(0));
        assert_eq!(gauge.look(secs(120), 105_001, false, secs(0)), secs(5));
        assert_eq!(gauge.look(secs(125), 105_001, true, secs(0)), secs(0));
        // Somebody came and went between two looks.
        assert_eq!(gauge.look(secs(130), 105_001, false, secs(127)), secs(3));
        assert_eq!(
            gauge.look(secs(200), 0, false, secs(127)),
            secs(73),
            "counters anew"
        );
    }

    #[test]
    fn a_client_is_there_until_it_has_gone() {
        let activity = Arc::new(Activity::default());
        assert!(!activity.is_used());
        let (first, second) = (activity.begin(), activity.begin());
        drop(first);
        assert!(activity.is_used());
        drop(second);
        assert!(!activity.is_used());
        assert!(activity.left() > Duration::ZERO);
    }
}
