//! How the pool is kept filled. Pure.

use super::Shape;

/// How many instances of a shape are held ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The shape.
    pub shape: Shape,
    /// Made, not started: they refill the started ones, and later serve restores.
    pub created: usize,
    /// Started: they serve images at once.
    pub started: usize,
}

/// What the pool holds of one shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Made, not started.
    pub created: usize,
    /// Started.
    pub started: usize,
    /// Being made.
    pub making: usize,
    /// Being started.
    pub starting: usize,
}

/// The next step towards a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    /// Make one more.
    Make,
    /// Start one that is made.
    Start,
}

/// The next step for a shape of which `held` are there; `None` when it is at its target, or when sandboxes are waiting for
/// instances made on demand (`waiting`): a refill would take the processor from them.
pub fn refill(target: &Target, held: Held, waiting: usize) -> Option<Refill> {
    if waiting > 0 || held.making + held.starting > 0 {
        return None;
    }
    if held.started < target.started && held.created > 0 {
        return Some(Refill::Start);
    }
    (held.created + held.started < target.created + target.started).then_some(Refill::Make)
}

#[cfg(test)]
mod tests {
    use super::super::Link;
    use super::*;

    fn target(created: usize, started: usize) -> Target {
        Target {
            shape: Shape {
                cpu_millis: 1000,
                memory: 1 << 29,
                link: Link::Loopback,
            },
            created,
            started,
        }
    }

    fn held(created: usize, started: usize) -> Held {
        Held {
            created,
            started,
            ..Held::default()
        }
    }

    #[test]
    fn started_ones_come_first_and_then_the_reserve() {
        let two_one = target(1, 2);
        let cases = [
            (held(0, 0), Some(Refill::Make)),
            (held(1, 0), Some(Refill::Start)),
            (held(1, 1), Some(Refill::Start)),
            (held(0, 2), Some(Refill::Make)),
            (held(1, 2), None),
            (held(2, 2), None),
        ];
        for (held, wanted) in cases {
            assert_eq!(refill(&two_one, held, 0), wanted, "{held:?}");
        }
    }

    #[test]
    fn one_step_at_a_time_and_none_while_sandboxes_wait() {
        let busy = Held {
            making: 1,
            ..Held::default()
        };
        assert_eq!(refill(&target(1, 1), busy, 0), None);
        assert_eq!(refill(&target(1, 1), held(0, 0), 1), None);
        assert_eq!(refill(&target(0, 0), held(0, 0), 0), None);
    }

    #[test]
    fn every_start_reaches_the_target_and_stops() {
        for created in 0..4 {
            for started in 0..4 {
                let target = target(created, started);
                let mut now = held(0, 0);
                for _ in 0..20 {
                    match refill(&target, now, 0) {
                        Some(Refill::Make) => now.created += 1,
                        Some(Refill::Start) => {
                            now.created -= 1;
                            now.started += 1;
                        }
                        None => break,
                    }
                }
                assert_eq!(now, held(created, started));
            }
        }
    }
}
