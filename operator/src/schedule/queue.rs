//! Sandboxes that wait for a node.
//!
//! Namespaces take turns, so that one with thousands does not hold up the others. Within a namespace shapes take turns, so that one
//! that no node can take does not hold up the rest. A shape for which there is no room is *parked* and costs nothing until room for it
//! appears.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::index::sandbox::Key;
use crate::index::shape::Shape;

type Namespace = Arc<str>;

/// All that wait.
#[derive(Debug, Default)]
pub struct Queue {
    lines: BTreeMap<Arc<Shape>, Waiting>,
    /// Namespaces with something to try, in the order of their turns.
    turns: VecDeque<Namespace>,
    /// The shapes to try of each namespace in `turns`, in the order of their turns.
    ready: HashMap<Namespace, VecDeque<Arc<Shape>>>,
    places: HashMap<Key, (Arc<Shape>, u64)>,
    parked: BTreeSet<Arc<Shape>>,
    arrivals: u64,
}

/// All of one shape.
#[derive(Debug, Default)]
struct Waiting {
    /// How many.
    count: usize,
    namespaces: HashMap<Namespace, Line>,
}

/// All of one shape in one namespace, by their arrival.
#[derive(Debug, Default)]
struct Line {
    keys: BTreeMap<u64, Key>,
    /// Whether the shape stands in the namespace's `ready`.
    listed: bool,
}

/// One whose turn it is. It waits no more: it is bound, or [put back](Queue::put_back).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The sandbox.
    pub key: Key,
    /// What it asks for.
    pub shape: Arc<Shape>,
    arrival: u64,
}

impl Queue {
    /// A sandbox begins to wait; of one that waits already nothing changes.
    pub fn push(&mut self, key: &Key, shape: &Arc<Shape>) {
        if self.places.contains_key(key) {
            return;
        }
        self.arrivals += 1;
        self.put_back(Turn {
            key: Arc::clone(key),
            shape: Arc::clone(shape),
            arrival: self.arrivals,
        });
    }

    /// It waits again, in its old place.
    pub fn put_back(&mut self, turn: Turn) {
        let Turn {
            key,
            shape,
            arrival,
        } = turn;
        let namespace = Arc::clone(&key.namespace);
        self.places
            .insert(Arc::clone(&key), (Arc::clone(&shape), arrival));
        let waiting = self.lines.entry(Arc::clone(&shape)).or_default();
        let line = waiting
            .namespaces
            .entry(Arc::clone(&namespace))
            .or_default();
        line.keys.insert(arrival, key);
        let begin = !line.listed && !self.parked.contains(&shape);
        line.listed |= begin;
        waiting.count += 1;
        if begin {
            list(&mut self.turns, &mut self.ready, namespace, shape);
        }
    }

    /// It waits no more. Whether it did.
    pub fn remove(&mut self, key: &Key) -> bool {
        let Some((shape, arrival)) = self.places.remove(key) else {
            return false;
        };
        if let Some(line) = self.line(&shape, &key.namespace) {
            line.keys.remove(&arrival);
        }
        self.count_one_less(&shape);
        self.forget_if_empty(&shape, &key.namespace);
        true
    }

    /// Whose turn it is.
    pub fn take(&mut self) -> Option<Turn> {
        while let Some(namespace) = self.turns.pop_front() {
            let shape = self.ready.get_mut(&namespace).and_then(VecDeque::pop_front);
            let Some(shape) = shape else {
                self.ready.remove(&namespace);
                continue;
            };
            let is_parked = self.parked.contains(&shape);
            let mut taken = None;
            let mut more = false;
            if let Some(line) = self.line(&shape, &namespace) {
                if !is_parked {
                    taken = line.keys.pop_first();
                }
                more = taken.is_some() && !line.keys.is_empty();
                line.listed = more;
            }
            let shapes = self.ready.entry(Arc::clone(&namespace)).or_default();
            if more {
                shapes.push_back(Arc::clone(&shape));
            }
            if shapes.is_empty() {
                self.ready.remove(&namespace);
            } else {
                self.turns.push_back(Arc::clone(&namespace));
            }
            if taken.is_some() {
                self.count_one_less(&shape);
            }
            self.forget_if_empty(&shape, &namespace);
            if let Some((arrival, key)) = taken {
                self.places.remove(&key);
                return Some(Turn {
                    key,
                    shape,
                    arrival,
                });
            }
        }
        None
    }

    /// There is no room for this shape.
    pub fn park(&mut self, shape: &Arc<Shape>) {
        self.parked.insert(Arc::clone(shape));
    }

    /// There may be room for it.
    pub fn unpark(&mut self, shape: &Arc<Shape>) {
        if !self.parked.remove(shape) {
            return;
        }
        let Some(waiting) = self.lines.get_mut(shape) else {
            return;
        };
        for (namespace, line) in &mut waiting.namespaces {
            if !line.listed && !line.keys.is_empty() {
                line.listed = true;
                list(
                    &mut self.turns,
                    &mut self.ready,
                    Arc::clone(namespace),
                    Arc::clone(shape),
                );
            }
        }
    }

    /// Whether there is no room for this shape.
    pub fn is_parked(&self, shape: &Shape) -> bool {
        self.parked.contains(shape)
    }

    /// The parked shape after this one, or the first.
    pub fn parked_after(&self, shape: Option<&Arc<Shape>>) -> Option<&Arc<Shape>> {
        let from = shape.map_or(Bound::Unbounded, |shape| Bound::Excluded(Arc::clone(shape)));
        self.parked.range((from, Bound::Unbounded)).next()
    }

    /// All that wait with this shape.
    pub fn of_shape(&self, shape: &Shape) -> impl Iterator<Item = &Key> {
        let waiting = self.lines.get(shape).into_iter();
        waiting.flat_map(|waiting| {
            waiting
                .namespaces
                .values()
                .flat_map(|line| line.keys.values())
        })
    }

    /// What a waiting sandbox asks for.
    pub fn shape_of(&self, key: &Key) -> Option<&Arc<Shape>> {
        self.places.get(key).map(|(shape, _)| shape)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn line(&mut self, shape: &Arc<Shape>, namespace: &Namespace) -> Option<&mut Line> {
        self.lines.get_mut(shape)?.namespaces.get_mut(namespace)
    }

    fn count_one_less(&mut self, shape: &Arc<Shape>) {
        if let Some(waiting) = self.lines.get_mut(shape) {
            waiting.count = waiting.count.saturating_sub(1);
        }
    }

    /// A line that nobody waits in and that is not listed is gone, and so is a shape without lines.
    fn forget_if_empty(&mut self, shape: &Arc<Shape>, namespace: &Namespace) {
        let Some(waiting) = self.lines.get_mut(shape) else {
            return;
        };
        let is_idle = |line: &Line| line.keys.is_empty() && !line.listed;
        if waiting.namespaces.get(namespace).is_some_and(is_idle) {
            waiting.namespaces.remove(namespace);
        }
        if waiting.namespaces.is_empty() {
            self.lines.remove(shape);
        }
        if self
            .lines
            .get(shape)
            .is_none_or(|waiting| waiting.count == 0)
        {
            self.parked.remove(shape);
        }
    }
}

fn list(
    turns: &mut VecDeque<Namespace>,
    ready: &mut HashMap<Namespace, VecDeque<Arc<Shape>>>,
    namespace: Namespace,
    shape: Arc<Shape>,
) {
    let shapes = ready.entry(Arc::clone(&namespace)).or_default();
    if shapes.is_empty() {
        turns.push_back(namespace);
    }
    shapes.push_back(shape);
}

#[cfg(test)]
mod tests;
