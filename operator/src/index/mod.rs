//! Everything that is known, kept up to date object by object: no event costs more than its own object. Pure.

pub mod node;
pub mod sandbox;
pub mod shape;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use node::{Node, NodeName};
use sandbox::{Asks, Bound, Key, SandboxKey, SandboxSeen, Told, key_of, version_of};
use shape::{Charge, Shapes};

use crate::lenient::Lenient;

/// Sandboxes and nodes.
#[derive(Debug, Default)]
pub struct Index {
    sandboxes: HashMap<Key, SandboxSeen>,
    nodes: BTreeMap<NodeName, Node>,
    /// Bindings that are decided and not yet seen.
    assumed: HashMap<Key, NodeName>,
    /// Sandboxes by the time at which something is due of them.
    due: BTreeSet<(Timestamp, Key)>,
    shapes: Shapes,
}

/// What a change did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Of which sandbox.
    pub key: Key,
    /// The node on which it takes room no more.
    pub freed: Option<NodeName>,
}

impl Index {
    /// A sandbox.
    pub fn sandbox(&self, key: &SandboxKey) -> Option<&SandboxSeen> {
        self.sandboxes.get(key)
    }

    /// A node.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// Every node.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeName, &Node)> {
        self.nodes.iter()
    }

    /// Every sandbox's key. For the end of a listing.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.sandboxes.keys()
    }

    /// Sandboxes of which something is due by the wall clock.
    pub fn due(&self, now: Timestamp) -> impl Iterator<Item = &Key> {
        let come = self.due.iter().take_while(move |(at, _)| *at <= now);
        come.map(|(_, key)| key)
    }

    /// The node to which it is about to be bound.
    pub fn assumed(&self, key: &SandboxKey) -> Option<&NodeName> {
        self.assumed.get(key)
    }

    /// Takes in an object; `None` where a newer one is known already.
    pub fn apply(&mut self, object: &Lenient) -> Option<Changed> {
        let metadata = &object.sandbox.metadata;
        let key = Arc::new(key_of(metadata)?);
        let known = self.sandboxes.get_key_value(&key);
        let key = known.map_or(key, |(known, _)| Arc::clone(known));
        let known = known.map(|(_, seen)| seen);
        let same_object = known.filter(|known| metadata.uid.as_deref() == Some(&*known.uid));
        if same_object.is_some_and(|known| known.version > version_of(metadata)) {
            return None;
        }
        let told_silence = same_object.map_or(0, |known| known.told_silence);
        let same_spec = same_object
            .filter(|known| metadata.generation == Some(known.generation))
            .map(|known| known.asks.clone());
        let shapes = &mut self.shapes;
        let mut seen = SandboxSeen::read(object, same_spec.as_ref(), |shape| shapes.intern(shape));
        drop(same_spec);
        let node = seen.bound.as_ref().and_then(|bound| self.node(&bound.node));
        seen.told_silence = match node {
            Some(node) if seen.unreachable => node.silences,
            Some(_) | None => told_silence,
        };
        Some(self.change(key, move |index, key| {
            if seen.bound.is_some() {
                index.assumed.remove(key);
            }
            index.sandboxes.insert(Arc::clone(key), seen)
        }))
    }

    /// It is gone; nothing where the known one is another object. `None` of a UID means whichever it is.
    pub fn remove(&mut self, key: &SandboxKey, uid: Option<&str>) -> Option<Changed> {
        let (key, seen) = self.sandboxes.get_key_value(key)?;
        if uid.is_some_and(|uid| *uid != *seen.uid) {
            return None;
        }
        let key = Arc::clone(key);
        Some(self.change(key, |index, key| {
            index.assumed.remove(key);
            index.sandboxes.remove(key)
        }))
    }

    /// It is about to be bound there.
    pub fn assume(&mut self, key: &Key, node: &NodeName) {
        self.change(Arc::clone(key), |index, key| {
            index.assumed.insert(Arc::clone(key), NodeName::clone(node));
            None
        });
    }

    /// It is not.
    pub fn give_up(&mut self, key: &Key) -> Changed {
        self.change(Arc::clone(key), |index, key| {
            index.assumed.remove(key);
            None
        })
    }

    /// Changes a node, which begins to be known by that; nothing is kept of one of which nothing is known.
    pub fn change_node(&mut self, name: &str, change: impl FnOnce(&mut Node)) {
        let node = match self.nodes.get_mut(name) {
            Some(node) => node,
            None => self.nodes.entry(name.into()).or_default(),
        };
        change(node);
        node.forget_agent_that_is_gone();
        if node.is_forgotten() {
            self.nodes.remove(name);
        }
    }

    /// Does a change of one sandbox and keeps what nodes count in step. `change` returns what it replaced.
    fn change(
        &mut self,
        key: Key,
        change: impl FnOnce(&mut Self, &Key) -> Option<SandboxSeen>,
    ) -> Changed {
        let charged = self.charge_of(&key);
        let bound = self.bound_to(&key);
        let was_due = self.due_of(&key);
        let replaced = change(self, &key);
        let is_due = self.due_of(&key);
        if was_due != is_due {
            if let Some(at) = was_due {
                self.due.remove(&(at, Arc::clone(&key)));
            }
            if let Some(at) = is_due {
                self.due.insert((at, Arc::clone(&key)));
            }
        }
        let (takes, binds) = (self.charge_of(&key), self.bound_to(&key));
        if bound != binds {
            if let Some(node) = bound {
                self.change_node(&node, |node| {
                    node.sandboxes.remove(&key);
                });
            }
            if let Some(node) = binds {
                self.change_node(&node, |node| {
                    node.sandboxes.insert(Arc::clone(&key));
                });
            }
        }
        let mut freed = None;
        if charged != takes {
            if let Some((node, charge)) = &takes {
                self.change_node(node, |node| node.charge(charge));
            }
            if let Some((node, charge)) = charged {
                self.change_node(&node, |node| node.discharge(&charge));
                freed = Some(node);
            }
        }
        drop(takes);
        if let Some(Asks::Shape(shape)) = replaced.map(|seen| seen.asks) {
            self.shapes.release(&shape);
        }
        Changed { key, freed }
    }

    /// Where a sandbox takes room, and how much.
    fn charge_of(&self, key: &Key) -> Option<(NodeName, Charge)> {
        let seen = self.sandboxes.get(key)?;
        let node = match (&seen.bound, self.assumed.get(key)) {
            (Some(bound), _) if seen.told != Told::Ended => &bound.node,
            (None, Some(assumed)) => assumed,
            (Some(_), _) | (None, None) => return None,
        };
        match &seen.asks {
            Asks::Shape(shape) => {
                let charge = Charge {
                    shape: Arc::clone(shape),
                    is_stopped: seen.told == Told::Stopped,
                };
                Some((NodeName::clone(node), charge))
            }
            Asks::Invalid(_) => None,
        }
    }

    fn due_of(&self, key: &Key) -> Option<Timestamp> {
        self.sandboxes.get(key)?.due
    }

    fn bound_to(&self, key: &Key) -> Option<NodeName> {
        let seen = self.sandboxes.get(key)?;
        seen.bound
            .as_ref()
            .map(|Bound { node, .. }| NodeName::clone(node))
    }
}
