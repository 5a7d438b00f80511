//! Limits as the kernel keeps them: units and rounding. Pure.

/// Period of CPU quotas in microseconds: the kernel's default. Shorter ones cost more and throttle less evenly.
pub(super) const PERIOD_USEC: u64 = 100_000;

/// The kernel refuses a smaller quota (kernel/sched/core.c, `min_cfs_quota_period`).
const MIN_QUOTA_USEC: u64 = 1_000;

/// Limits of a group. Every value is written, read back and compared; a difference is an error (fail closed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Hard memory limit in bytes, sentry headroom included. Rounded down to whole pages, as the kernel does; at least one page. Swap is off (v2), or at
    /// most 4 MiB (v1).
    pub memory: u64,
    /// CPU quota in thousandths of a core, period 100 ms; at least 1, and less than 10 are given 10, the kernel's least.
    pub cpu_millis: u32,
    /// CPU request in thousandths of a core: becomes shares (v1) or weight (v2), see [`CpuShare`].
    pub cpu_request_millis: u32,
    /// Host processes and threads, at least 1.
    pub pids: u32,
}

/// What all instances may use together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Hard memory limit in bytes, rounded down to whole pages.
    pub memory: u64,
    /// Host processes and threads; None leaves them without a common limit.
    pub pids: Option<u32>,
    /// Thousandths of a core that count against everything else on the machine when it is busy; None leaves the kernel's default (1000).
    pub cpu_request_millis: Option<u32>,
}

/// A memory limit in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit(u64);

impl MemoryLimit {
    /// Rounds down to whole pages of `page` bytes, as the kernel does (`page_counter_memparse` in the kernel); None for less
    /// than one page.
    pub fn new(bytes: u64, page: u64) -> Option<Self> {
        let pages = bytes.checked_div(page)?;
        (pages > 0).then(|| Self(pages * page))
    }

    /// In bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

/// Part of a busy machine that a group gets, in proportion to the others. One core is the kernel's default for a group, in both
/// versions, so that a group that asks for a core counts as much as one that nobody configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuShare {
    millis: u32,
}

impl CpuShare {
    /// For a request of thousandths of a core.
    pub fn new(millis: u32) -> Self {
        Self { millis }
    }

    /// `cpu.shares` of v1: 1024 per core, between the kernel's 2 and 262144.
    pub fn shares(self) -> u64 {
        (u64::from(self.millis) * 1024 / 1000).clamp(2, 262_144)
    }

    /// `cpu.weight` of v2: 100 per core, between the kernel's 1 and 10000.
    pub fn weight(self) -> u64 {
        (u64::from(self.millis) / 10).clamp(1, 10_000)
    }
}

/// CPU quota per [`PERIOD_USEC`], in microseconds.
pub(super) fn quota_usec(cpu_millis: u32) -> u64 {
    (u64::from(cpu_millis) * PERIOD_USEC / 1000).max(MIN_QUOTA_USEC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_rounded_down_to_pages() {
        let bytes = |wanted| MemoryLimit::new(wanted, 4096).map(MemoryLimit::bytes);
        assert_eq!(bytes(4095), None);
        assert_eq!(bytes(4096), Some(4096));
        assert_eq!(bytes(8191), Some(4096));
        assert_eq!(bytes(u64::MAX), Some(u64::MAX - 4095));
        assert_eq!(MemoryLimit::new(1, 0), None);
    }

    #[test]
    fn cpu_is_within_what_the_kernel_takes() {
        for (millis, shares, weight, quota) in [
            (0, 2, 1, 1000),
            (1, 2, 1, 1000),
            (10, 10, 1, 1000),
            (11, 11, 1, 1100),
            (250, 256, 25, 25_000),
            (1000, 1024, 100, 100_000),
            (1500, 1536, 150, 150_000),
            (u32::MAX, 262_144, 10_000, 429_496_729_500),
        ] {
            let share = CpuShare::new(millis);
            assert_eq!(
                (share.shares(), share.weight(), quota_usec(millis)),
                (shares, weight, quota),
                "{millis}"
            );
        }
    }
}
