//! Placing those that wait, and telling why some cannot be placed.

use std::sync::Arc;
use std::time::Duration;

use super::Core;
use crate::clock::Now;
use crate::index::node::NodeName;
use crate::index::shape::Shape;
use crate::job::{Job, Subject};
use crate::schedule::fit::{Tally, best, fit};

/// How often what is told of a shape may change.
const TELL_EVERY: Duration = Duration::from_secs(30);
/// Most shapes that are asked whether there is room for them on a node, before other work goes on.
const MOST_ASKED: usize = 256;
/// Most shapes that are counted anew at one tick.
const MOST_RENEWED: usize = 64;
/// Most shapes without room that are looked at for one job.
const MOST_TRIED: usize = 64;

/// Why there is no room for a shape.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    /// What is told.
    pub(super) message: String,
    /// The reasons in it.
    pub(super) set: u16,
    /// When that was decided.
    told: Duration,
    /// What was known then.
    epoch: u64,
}

impl Core {
    /// The next sandbox for which there is room.
    pub(super) fn next_placed(&mut self, now: Now) -> Option<Job> {
        for _ in 0..MOST_TRIED {
            let turn = self.queue.take()?;
            let subject = Subject::Sandbox(Arc::clone(&turn.key));
            if self.is_held(&subject) {
                // Looking at it puts it back.
                continue;
            }
            match best(&turn.shape, self.index.nodes()) {
                Ok(node) => {
                    self.index.assume(&turn.key, &node);
                    self.epoch += 1;
                    let job = self.bind(&turn.key, &node, now);
                    if job.is_some() {
                        return job;
                    }
                }
                Err(tally) => {
                    let shape = Arc::clone(&turn.shape);
                    self.queue.park(&shape);
                    self.queue.put_back(turn);
                    self.tell(&shape, tally, now.run);
                }
            }
        }
        None
    }

    /// Whether parked shapes fit on nodes that changed.
    pub(super) fn make_room_known(&mut self) {
        let mut asked = 0;
        // A node that changes meanwhile is in `room` again, and all are asked once more.
        while let Some((name, last)) = self.next_asking() {
            let Some(shape) = self.queue.parked_after(last.as_ref()).map(Arc::clone) else {
                continue;
            };
            if asked == MOST_ASKED {
                self.asking = Some((name, last));
                return;
            }
            asked += 1;
            let node = self.index.node(&name);
            if node.is_some_and(|node| fit(&shape, node).is_ok()) {
                self.queue.unpark(&shape);
            }
            self.asking = Some((name, Some(shape)));
        }
    }

    /// For which node to ask, and after whom.
    fn next_asking(&mut self) -> Option<(NodeName, Option<Arc<Shape>>)> {
        let begun = self.asking.take();
        begun.or_else(|| Some((self.room.pop_first()?, None)))
    }

    /// Whether some have to be asked.
    pub(super) fn is_asking(&self) -> bool {
        self.asking.is_some() || !self.room.is_empty()
    }

    /// What is told changes with the set of reasons, at most once in [`TELL_EVERY`]; numbers alone change nothing.
    fn tell(&mut self, shape: &Arc<Shape>, tally: Tally, now: Duration) {
        let set = tally.set();
        match self.verdicts.get_mut(shape) {
            Some(known) if known.set == set => {
                known.epoch = self.epoch;
            }
            // What is known now is older than what a later look will find: it is looked at again when the time is over.
            Some(known) if now.saturating_sub(known.told) < TELL_EVERY => {}
            Some(_) | None => {
                let verdict = Verdict {
                    message: tally.message(),
                    set,
                    told: now,
                    epoch: self.epoch,
                };
                self.verdicts.insert(Arc::clone(shape), verdict);
                let all: Vec<_> = self.queue.of_shape(shape).cloned().collect();
                for key in all {
                    self.mark(Subject::Sandbox(key));
                }
            }
        }
    }

    /// Counts anew for shapes of which something old is told, and forgets those that nobody waits with.
    pub(super) fn renew_verdicts(&mut self, now: Duration) {
        let queue = &self.queue;
        self.verdicts
            .retain(|shape, _| queue.of_shape(shape).next().is_some());
        let old = self.verdicts.iter().filter(|(shape, verdict)| {
            verdict.epoch != self.epoch
                && now.saturating_sub(verdict.told) >= TELL_EVERY
                && self.queue.is_parked(shape)
        });
        let old: Vec<_> = old
            .map(|(shape, _)| Arc::clone(shape))
            .take(MOST_RENEWED)
            .collect();
        for shape in old {
            match best(&shape, self.index.nodes()) {
                Ok(_) => self.queue.unpark(&shape),
                Err(tally) => self.tell(&shape, tally, now),
            }
        }
    }
}
