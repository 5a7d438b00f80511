//! The decider: takes in what is observed and what came of jobs, gives out jobs. Pure: no clock, no client.
//!
//! ```text
//! Event ──observe──► Index ──► subjects to look at ──┐
//! Outcome ──done───►   │                             ├──next_job──► Job
//!                      └────► Queue (who waits) ─────┘
//! time ──tick──► judgements of nodes, retries
//! ```
//! Level-triggered: a subject is looked at anew whenever anything of it changed, and what is to be done follows from what is known alone,
//! never from what happened. One job at a time is done for a subject.

mod decide;
mod judge;
mod observe;
mod place;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub use observe::{Change, Event, Kind};

use crate::clock::Now;
use crate::failure::{self, Class};
use crate::index::Index;
use crate::index::node::{NodeName, Offer};
use crate::index::shape::Shape;
use crate::job::{Job, Outcome, Subject};
use crate::schedule::queue::Queue;
use judge::Sight;
use place::Verdict;

/// Most jobs at one time. More would only wait at the apiserver, which serves a client's share of requests.
const MOST_JOBS: usize = 64;

/// Everything that is known and undone.
#[derive(Debug, Default)]
pub struct Core {
    index: Index,
    queue: Queue,
    /// Whether this replica is the one that acts.
    active: bool,
    /// The kinds of which everything has been listed once.
    listed: BTreeSet<Kind>,
    /// What was named so far by a listing that goes on.
    listing: BTreeMap<Kind, HashSet<Subject>>,
    look_at: VecDeque<Subject>,
    marked: HashSet<Subject>,
    in_flight: HashSet<Subject>,
    /// How often a subject's jobs have failed one after another.
    failures: HashMap<Subject, u32>,
    later: BinaryHeap<Reverse<(Duration, Subject)>>,
    /// Those in `later`.
    paused: HashSet<Subject>,
    /// Objects that the apiserver refused to change, by the version that it refused.
    refused: HashMap<Subject, u64>,
    verdicts: HashMap<Arc<Shape>, Verdict>,
    /// Nodes on which there may be room for those that wait.
    room: BTreeSet<NodeName>,
    /// The one for which they are being asked, and who was asked last.
    asking: Option<(NodeName, Option<Arc<Shape>>)>,
    /// Counts what could change a verdict.
    epoch: u64,
    /// When time was last let pass.
    ticked: Duration,
    brake: bool,
    sight: Sight,
    /// Whose turn it is: those that wait, or all else.
    turn: bool,
}

impl Core {
    /// This replica acts from now on. What has been observed while it stood by counts.
    pub fn activate(&mut self) {
        self.active = true;
    }

    /// Whether everything has been listed once.
    pub fn is_synced(&self) -> bool {
        self.listed.len() == Kind::ALL.len()
    }

    /// What has to be done next. To be asked again until there is nothing.
    pub fn next_job(&mut self, now: Now) -> Option<Job> {
        if !self.active || !self.is_synced() {
            return None;
        }
        self.make_room_known();
        if self.in_flight.len() >= MOST_JOBS {
            return None;
        }
        self.turn = !self.turn;
        let first = if self.turn {
            self.next_in_turn(now)
        } else {
            None
        };
        // Who was looked at may wait again.
        let job = first
            .or_else(|| self.next_looked_at(now))
            .or_else(|| self.next_in_turn(now))?;
        self.in_flight.insert(job.subject.clone());
        Some(job)
    }

    /// Of those that wait. Not before all of them have been asked whether they fit where there is room: who is asked first would always
    /// have it, whoever's turn it is.
    fn next_in_turn(&mut self, now: Now) -> Option<Job> {
        if self.is_asking() {
            None
        } else {
            self.next_placed(now)
        }
    }

    /// What came of a job.
    pub fn done(&mut self, subject: &Subject, outcome: Outcome, now: Now) {
        self.in_flight.remove(subject);
        self.mark(subject.clone());
        match outcome {
            // Of an object that is gone meanwhile, or made anew, nothing is news: the watch tells what is there now.
            Outcome::Sandbox(object) => {
                self.failures.remove(subject);
                if self.knows(subject, object.sandbox.metadata.uid.as_deref()) {
                    self.take_sandbox(&object);
                }
                self.settle(subject);
            }
            Outcome::Node(object) => {
                self.failures.remove(subject);
                if self.knows(subject, object.metadata.uid.as_deref()) {
                    self.take_offer(&object);
                }
            }
            // The watch tells so too, and whether there is another of its name.
            Outcome::Gone => self.failed(subject, Class::Gone, now),
            Outcome::Failed(class) => self.failed(subject, class, now),
        }
    }

    /// Whether the object of this UID is the one that is known.
    fn knows(&self, subject: &Subject, uid: Option<&str>) -> bool {
        let known = match subject {
            Subject::Sandbox(key) => self.index.sandbox(key).map(|seen| &seen.uid),
            Subject::Node(name) => self.offer(name).map(|offer| &offer.uid),
        };
        known.is_some_and(|known| Some(&**known) == uid)
    }

    fn offer(&self, node: &str) -> Option<&Offer> {
        self.index.node(node)?.offer.as_ref()
    }

    fn failed(&mut self, subject: &Subject, class: Class, now: Now) {
        let is_known = match subject {
            Subject::Sandbox(key) => self.index.sandbox(key).is_some(),
            Subject::Node(name) => self.offer(name).is_some(),
        };
        if !is_known {
            self.forget_failures(subject);
            return;
        }
        match class {
            Class::Invalid | Class::Bug => {
                let version = self.version(subject);
                self.refused.insert(subject.clone(), version);
                self.settle(subject);
            }
            Class::Conflict | Class::Transient | Class::Gone => {
                let failures = self.failures.entry(subject.clone()).or_default();
                let pause = failure::pause(*failures, seed(subject));
                *failures = failures.saturating_add(1);
                self.paused.insert(subject.clone());
                self.later.push(Reverse((now.run + pause, subject.clone())));
                if class != Class::Transient {
                    self.settle(subject);
                }
            }
        }
    }

    fn forget_failures(&mut self, subject: &Subject) {
        self.failures.remove(subject);
        self.refused.remove(subject);
    }

    /// A binding that was not written is given up: the sandbox waits again.
    fn settle(&mut self, subject: &Subject) {
        if let Subject::Sandbox(key) = subject
            && self.index.assumed(key).is_some()
        {
            let changed = self.index.give_up(key);
            self.after(changed);
        }
    }

    /// Lets time pass: retries that are due, judgements of nodes, verdicts that are old.
    pub fn tick(&mut self, now: Now) {
        while let Some(Reverse((at, _))) = self.later.peek() {
            if *at > now.run {
                break;
            }
            if let Some(Reverse((_, subject))) = self.later.pop() {
                self.paused.remove(&subject);
                self.mark(subject);
            }
        }
        self.ticked = now.run;
        let due: Vec<_> = self.index.due(now.wall).map(Arc::clone).collect();
        for key in due {
            self.mark(Subject::Sandbox(key));
        }
        if self.is_synced() {
            self.judge_all(now.run);
            self.renew_verdicts(now.run);
        }
    }

    /// When [`Core::tick`] has something to do at the latest.
    pub fn next_tick(&self, now: Now) -> Duration {
        const TICK: Duration = Duration::from_secs(1);
        // Whether there is room for those that wait is asked in parts, so that other work goes on in between.
        if self.active && self.is_synced() && self.is_asking() {
            return now.run;
        }
        let retry = self.later.peek().map(|Reverse((at, _))| *at);
        // From the last one: what happens in between must not put it off.
        let tick = self.ticked + TICK;
        retry.map_or(tick, |retry| retry.min(tick)).max(now.run)
    }

    fn mark(&mut self, subject: Subject) {
        if self.marked.insert(subject.clone()) {
            self.look_at.push_back(subject);
        }
    }

    fn next_looked_at(&mut self, now: Now) -> Option<Job> {
        while let Some(subject) = self.look_at.pop_front() {
            self.marked.remove(&subject);
            if self.is_held(&subject) {
                continue;
            }
            if let Some(job) = self.decide(&subject, now) {
                return Some(job);
            }
        }
        None
    }

    /// Whether nothing is to be done of it for now: it is looked at again when its job is done, its pause over, or it has changed.
    fn is_held(&mut self, subject: &Subject) -> bool {
        self.in_flight.contains(subject)
            || self.paused.contains(subject)
            || self.is_refused(subject)
    }

    fn is_refused(&mut self, subject: &Subject) -> bool {
        let Some(refused) = self.refused.get(subject).copied() else {
            return false;
        };
        let same = refused == self.version(subject);
        if !same {
            self.refused.remove(subject);
        }
        same
    }

    fn version(&self, subject: &Subject) -> u64 {
        match subject {
            Subject::Sandbox(key) => self.index.sandbox(key).map_or(0, |seen| seen.version),
            Subject::Node(name) => self.offer(name).map_or(0, |offer| offer.version),
        }
    }
}

fn seed(subject: &Subject) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    subject.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
