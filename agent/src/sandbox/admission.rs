//! Whether the node has room for one more sandbox. Pure: the agent has the last word on a binding.

use cloche_crds::sandbox::EffectiveResources;
use cloche_crds::{FailureDomain, Reason};

use super::record::Cause;
use crate::instance::limits::memory_request;

/// What the node gives to sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Memory in bytes.
    pub memory: u64,
    /// Processor time in thousandths of a core that may be requested.
    pub cpu_millis: u64,
    /// Bytes of what sandboxes write to files that may be requested.
    pub disk: u64,
}

/// Whether a sandbox can have what it requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Room {
    /// It can have it at once.
    Now,
    /// Once what is ending has given its share back.
    Later,
    /// Not even then.
    Never(Cause),
}

/// What a sandbox takes of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Memory in bytes, its overhead included.
    pub memory: u64,
    /// Thousandths of a core.
    pub cpu_millis: u64,
    /// Bytes of what it writes to files.
    pub disk: u64,
}

impl Need {
    /// What these request.
    pub fn of(resources: &EffectiveResources) -> Self {
        Self {
            memory: memory_request(resources),
            cpu_millis: resources.cpu_request.0,
            disk: resources.disk_request.0,
        }
    }

    /// The same while it is stopped.
    #[must_use]
    pub fn stopped(self) -> Self {
        Self {
            memory: 0,
            cpu_millis: 0,
            disk: self.disk,
        }
    }
}

/// Whether there is room in `budget` for `asked`, beside what stays and what is ending and has its share still.
pub fn room(budget: &Budget, staying: &[Need], leaving: &[Need], asked: Need) -> Room {
    let all = staying.iter().chain(leaving).copied();
    if refuse(budget, all, asked).is_none() {
        return Room::Now;
    }
    refuse(budget, staying.iter().copied(), asked).map_or(Room::Later, Room::Never)
}

/// Why `asked` does not fit beside `taken` into `budget`, if it does not.
fn refuse(budget: &Budget, taken: impl IntoIterator<Item = Need>, asked: Need) -> Option<Cause> {
    let (mut memory, mut cpu, mut disk) = (0_u64, 0_u64, 0_u64);
    for need in taken {
        memory = memory.saturating_add(need.memory);
        cpu = cpu.saturating_add(need.cpu_millis);
        disk = disk.saturating_add(need.disk);
    }
    let short = |what: &str, unit: &str, asked: u64, taken: u64, budget: u64| {
        let free = budget.saturating_sub(taken);
        (asked > free).then(|| {
            let message = format!(
                "the node has {free} {unit} of {what} left of {budget} for sandboxes; {asked} are requested (the sandbox's own \
                 overhead included): lower spec.resources.requests, or end other sandboxes and apply it again"
            );
            Cause::new(Reason::NodeRejected, FailureDomain::Infrastructure, message)
        })
    };
    short("memory", "bytes", asked.memory, memory, budget.memory)
        .or_else(|| {
            short(
                "cpu",
                "thousandths of a core",
                asked.cpu_millis,
                cpu,
                budget.cpu_millis,
            )
        })
        .or_else(|| short("ephemeral-storage", "bytes", asked.disk, disk, budget.disk))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::limits::SENTRY_MEMORY;
    use crate::sandbox::fixture::record;

    #[test]
    fn requests_and_overhead_fill_the_budget_to_the_byte() {
        let resources = record().spec.resources; // 512 MiB, 1 core
        let one = Need::of(&resources);
        let each = resources.memory_request.0 + SENTRY_MEMORY;
        let budget = Budget {
            memory: 2 * each,
            cpu_millis: 2000,
            disk: 2 * one.disk,
        };
        assert_eq!(refuse(&budget, [], one), None);
        assert_eq!(refuse(&budget, [one], one), None);
        let refused = refuse(&budget, [one, one], one).unwrap();
        assert_eq!(refused.reason, Reason::NodeRejected);
        let tight = Budget {
            memory: 2 * each - 1,
            ..budget
        };
        assert!(
            refuse(&tight, [one], one)
                .unwrap()
                .message
                .contains("memory")
        );
        let small_disk = Budget {
            disk: 2 * one.disk - 1,
            ..budget
        };
        assert!(
            refuse(&small_disk, [one], one)
                .unwrap()
                .message
                .contains("ephemeral-storage")
        );
        let few_cores = Budget {
            cpu_millis: 1999,
            ..budget
        };
        assert!(
            refuse(&few_cores, [one], one)
                .unwrap()
                .message
                .contains("cpu")
        );
    }

    #[test]
    fn what_is_ending_makes_room_and_is_waited_for() {
        let one = Need::of(&record().spec.resources);
        let budget = Budget {
            memory: 2 * one.memory,
            cpu_millis: 2 * one.cpu_millis,
            disk: 2 * one.disk,
        };
        assert_eq!(room(&budget, &[one], &[], one), Room::Now);
        assert_eq!(room(&budget, &[one], &[one], one), Room::Later);
        assert_eq!(room(&budget, &[], &[one, one], one), Room::Later);
        let never =
            |room| matches!(room, Room::Never(cause) if cause.reason == Reason::NodeRejected);
        assert!(never(room(&budget, &[one, one], &[], one)));
        assert!(never(room(&budget, &[one, one], &[one], one)));
    }
}
