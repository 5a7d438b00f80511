//! What is to be done of one object, by what is known of it.

use std::sync::Arc;

use super::Core;
use crate::clock::Now;
use crate::index::node::{Node, NodeName};
use crate::index::sandbox::{Asks, Bound, Key, SandboxSeen, Told};
use crate::job::{Job, Subject, Task};
use crate::loss;
use crate::patch::{Scheduled, never_bound, put_finalizer, schedule, take_finalizer};
use crate::schedule::fit::{set_of_message, suits};
use cloche_crds::Reason;
use cloche_crds::condition::bounded;

impl Core {
    pub(super) fn decide(&mut self, subject: &Subject, now: Now) -> Option<Job> {
        match subject {
            Subject::Sandbox(key) => {
                self.wait_again(key);
                if let Some(node) = self.index.assumed(key).cloned() {
                    return self.bind(key, &node, now);
                }
                let seen = self.index.sandbox(key)?;
                let task = match &seen.bound {
                    Some(bound) => self.of_bound(seen, bound, now),
                    None => self.of_unbound(key, seen, now),
                }?;
                Some(Job {
                    subject: subject.clone(),
                    uid: seen.uid.clone(),
                    task,
                })
            }
            Subject::Node(name) => self.of_node(name),
        }
    }

    /// Who waits is in the queue, or about to be bound.
    fn wait_again(&mut self, key: &Key) {
        let seen = self.index.sandbox(key).filter(|seen| seen.is_waiting());
        if self.index.assumed(key).is_some() {
            return;
        }
        if let Some(SandboxSeen {
            asks: Asks::Shape(shape),
            ..
        }) = seen
        {
            self.queue.push(key, &Arc::clone(shape));
        }
    }

    fn of_bound(&self, seen: &SandboxSeen, bound: &Bound, now: Now) -> Option<Task> {
        let node = self.index.node(&bound.node);
        let uid = bound.uid.as_deref();
        let is_still = node.is_some_and(|node| node.is_still(uid));
        if seen.deleting && !is_still {
            let patch = take_finalizer(&seen.uid, &seen.finalizers)?;
            let absent = Some((NodeName::clone(&bound.node), bound.uid.clone()));
            return Some(Task::Release { patch, absent });
        }
        if seen.told == Told::Ended {
            return delete(seen, now);
        }
        let has_files = matches!(seen.told, Told::Stopped | Told::Waking);
        if let Some(loss) = loss::loss_of(node, uid, has_files, self.brake) {
            return Some(Task::Lose(loss));
        }
        if !seen.deleting && !seen.has_finalizer() {
            return Some(Task::Write {
                finalizer: Some(put_finalizer(&seen.uid, &seen.finalizers)),
                status: None,
            });
        }
        // Once: an agent that writes otherwise lives, though its Lease says nothing.
        let silent = node.filter(|node| node.judged.silent);
        let news = silent.is_some_and(|node| node.silences != seen.told_silence);
        (news && !seen.unreachable).then_some(Task::Unreachable)
    }

    fn of_unbound(&self, key: &Key, seen: &SandboxSeen, now: Now) -> Option<Task> {
        if seen.deleting {
            let patch = take_finalizer(&seen.uid, &seen.finalizers)?;
            return Some(Task::Release {
                patch,
                absent: None,
            });
        }
        if seen.told == Told::Ended {
            return delete(seen, now);
        }
        let told = seen.unschedulable();
        if seen.is_due(now.wall)
            && let Some((reason, why)) = self.refusal(key, seen)
        {
            let status = seen.unbound_status.as_deref();
            let end = never_bound(&seen.uid, seen.generation, status, reason, why, now.wall);
            return Some(Task::Write {
                finalizer: None,
                status: Some(end),
            });
        }
        let message = match &seen.asks {
            Asks::Invalid(why) => {
                let message = bounded(why);
                (told != Some(message.as_str())).then_some(message)
            }
            Asks::Shape(shape) => {
                // Who is not in a parked line is tried first.
                let is_parked = self.queue.is_parked(shape) && self.queue.shape_of(key).is_some();
                let verdict = self.verdicts.get(shape).filter(|_| is_parked);
                let news =
                    verdict.filter(|verdict| told.and_then(set_of_message) != Some(verdict.set));
                news.map(|verdict| verdict.message.clone())
            }
        }?;
        let scheduled = Scheduled::Not { message };
        Some(Task::Write {
            finalizer: None,
            status: Some(of_status(seen, &scheduled, now)),
        })
    }

    /// Why no node takes it; `None` as long as that has not been tried, which may be so where nobody led until now.
    fn refusal<'a>(&'a self, key: &Key, seen: &'a SandboxSeen) -> Option<(Reason, &'a str)> {
        match &seen.asks {
            Asks::Invalid(why) => Some((Reason::SpecInvalid, why)),
            Asks::Shape(shape) => {
                let is_parked = self.queue.is_parked(shape) && self.queue.shape_of(key).is_some();
                let verdict = self.verdicts.get(shape).filter(|_| is_parked)?;
                Some((Reason::Unschedulable, &verdict.message))
            }
        }
    }

    /// Binds to the node that is assumed, as long as there is one.
    pub(super) fn bind(&mut self, key: &Key, node: &NodeName, now: Now) -> Option<Job> {
        let seen = self.index.sandbox(key).filter(|seen| seen.is_waiting());
        let found = self.index.node(node);
        // It may have become unfit while the binding could not be written.
        let suits = |node: &&Node| match seen.map(|seen| &seen.asks) {
            Some(Asks::Shape(shape)) => suits(shape, node).is_ok(),
            Some(Asks::Invalid(_)) | None => false,
        };
        let machine = found.filter(suits).and_then(|node| node.machine.as_ref());
        let (Some(machine), Some(seen)) = (machine, seen) else {
            let changed = self.index.give_up(key);
            self.after(changed);
            return None;
        };
        let scheduled = Scheduled::To {
            node: NodeName::clone(node),
            uid: machine.uid.clone(),
        };
        let finalizer = (!seen.has_finalizer()).then(|| put_finalizer(&seen.uid, &seen.finalizers));
        Some(Job {
            subject: Subject::Sandbox(Arc::clone(key)),
            uid: seen.uid.clone(),
            task: Task::Write {
                finalizer,
                status: Some(of_status(seen, &scheduled, now)),
            },
        })
    }

    fn of_node(&self, name: &NodeName) -> Option<Job> {
        let node = self.index.node(name)?;
        let offer = node.offer.as_ref()?;
        let news = node.judged.silent && node.silences != offer.told_silence;
        (news && !offer.unreachable).then(|| Job {
            subject: Subject::Node(NodeName::clone(name)),
            uid: offer.uid.clone(),
            task: Task::NodeUnreachable,
        })
    }
}

/// Once the time after its end is over. Only as it was seen: who changes the object meanwhile may have taken the time away.
fn delete(seen: &SandboxSeen, now: Now) -> Option<Task> {
    seen.is_due(now.wall).then_some(Task::Delete {
        version: seen.version,
    })
}

fn of_status(seen: &SandboxSeen, scheduled: &Scheduled, now: Now) -> crate::patch::JsonPatch {
    let status = seen.unbound_status.as_deref();
    schedule(&seen.uid, seen.generation, status, scheduled, now.wall)
}
