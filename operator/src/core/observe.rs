//! Taking in what the watches tell.

use std::collections::HashSet;
use std::sync::Arc;

use cloche_crds::SandboxNode;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::ObjectMeta;

use super::Core;
use crate::clock::Now;
use crate::index::Changed;
use crate::index::node::{Heard, Machine, NodeName, Offer};
use crate::index::sandbox::{Asks, Key, key_of};
use crate::job::Subject;
use crate::lenient::Lenient;

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Sandboxes of every namespace.
    Sandbox,
    /// Nodes.
    Node,
    /// What agents offer.
    Offer,
    /// The agents' Leases.
    Lease,
}

impl Kind {
    /// Everything that is watched.
    pub const ALL: [Self; 4] = [Self::Sandbox, Self::Node, Self::Offer, Self::Lease];
}

/// What a watch tells.
#[derive(Clone, Debug)]
pub enum Event {
    /// Of a Sandbox.
    Sandbox(Change<Lenient>),
    /// Of a Node.
    Node(Change<NodeObject>),
    /// Of a `SandboxNode`.
    Offer(Change<SandboxNode>),
    /// Of an agent's Lease.
    Lease(Change<Lease>),
    /// Whether this kind can be watched at present.
    Sight(Kind, bool),
}

/// A change of one kind.
#[derive(Clone, Debug)]
pub enum Change<T> {
    /// A listing begins.
    Listing,
    /// It names an object.
    Listed(Box<T>),
    /// All are named: what is known and was not named is gone.
    Complete,
    /// An object came or changed.
    Applied(Box<T>),
    /// An object is gone.
    Gone(Box<ObjectMeta>),
    /// An object is there that cannot be read. What was known of it goes on to count.
    Unreadable(Box<ObjectMeta>),
}

impl Core {
    /// Takes in an event.
    pub fn observe(&mut self, event: Event, now: Now) {
        match event {
            Event::Sandbox(change) => self.follow(Kind::Sandbox, change, now),
            Event::Node(change) => self.follow(Kind::Node, change, now),
            Event::Offer(change) => self.follow(Kind::Offer, change, now),
            Event::Lease(change) => self.follow(Kind::Lease, change, now),
            Event::Sight(kind, sees) => self.see(Some(kind), sees, now.run),
        }
    }

    fn follow<T: Watched>(&mut self, kind: Kind, change: Change<T>, now: Now) {
        match change {
            Change::Listing => {
                self.listing.insert(kind, HashSet::new());
            }
            Change::Listed(object) => {
                self.name(kind, T::subject(object.metadata()));
                object.take(self, now);
            }
            Change::Applied(object) => object.take(self, now),
            Change::Gone(metadata) => {
                if let Some(subject) = T::subject(&metadata) {
                    self.forget(kind, &subject, metadata.uid.as_deref(), now);
                }
            }
            Change::Unreadable(metadata) => self.name(kind, T::subject(&metadata)),
            Change::Complete => {
                let named = self.listing.remove(&kind).unwrap_or_default();
                for subject in self.known(kind) {
                    if !named.contains(&subject) {
                        self.forget(kind, &subject, None, now);
                    }
                }
                let first = self.listed.insert(kind);
                if first && self.is_synced() {
                    self.judge_all(now.run);
                }
            }
        }
    }

    fn name(&mut self, kind: Kind, subject: Option<Subject>) {
        if let (Some(named), Some(subject)) = (self.listing.get_mut(&kind), subject) {
            named.insert(subject);
        }
    }

    fn known(&self, kind: Kind) -> Vec<Subject> {
        let nodes = self.index.nodes();
        match kind {
            Kind::Sandbox => self.index.keys().cloned().map(Subject::Sandbox).collect(),
            Kind::Node => nodes
                .filter(|(_, node)| node.machine.is_some())
                .map(|(name, _)| Subject::Node(NodeName::clone(name)))
                .collect(),
            Kind::Offer => nodes
                .filter(|(_, node)| node.offer.is_some())
                .map(|(name, _)| Subject::Node(NodeName::clone(name)))
                .collect(),
            Kind::Lease => nodes
                .filter(|(_, node)| {
                    node.heard
                        .as_ref()
                        .is_some_and(|heard| !heard.mark.is_empty())
                })
                .map(|(name, _)| Subject::Node(NodeName::clone(name)))
                .collect(),
        }
    }

    fn forget(&mut self, kind: Kind, subject: &Subject, uid: Option<&str>, now: Now) {
        match (kind, subject) {
            (Kind::Sandbox, Subject::Sandbox(key)) => self.drop_sandbox(&Key::clone(key), uid),
            (Kind::Node, Subject::Node(name)) => {
                self.index.change_node(name, |node| {
                    node.machine = None;
                    node.not_ready_since = None;
                });
                self.node_changed(name, now.run);
            }
            (Kind::Offer, Subject::Node(name)) => {
                self.index.change_node(name, |node| node.offer = None);
                self.forget_failures(subject);
                self.node_changed(name, now.run);
            }
            (Kind::Lease, Subject::Node(name)) => {
                self.index.change_node(name, |node| {
                    if let Some(heard) = &mut node.heard {
                        heard.mark.clear();
                    }
                });
                self.node_changed(name, now.run);
            }
            (Kind::Sandbox, Subject::Node(_))
            | (Kind::Node | Kind::Offer | Kind::Lease, Subject::Sandbox(_)) => {}
        }
    }

    pub(super) fn take_sandbox(&mut self, object: &Lenient) {
        if let Some(changed) = self.index.apply(object) {
            self.after(changed);
        }
    }

    pub(super) fn drop_sandbox(&mut self, key: &Key, uid: Option<&str>) {
        if let Some(changed) = self.index.remove(key, uid) {
            self.forget_failures(&Subject::Sandbox(Key::clone(key)));
            self.after(changed);
        }
    }

    /// Whether the sandbox waits, and what its change means for others.
    pub(super) fn after(&mut self, changed: Changed) {
        let Changed { key, freed } = changed;
        if let Some(node) = freed {
            self.room.insert(node);
            self.epoch += 1;
        }
        let seen = self.index.sandbox(&key);
        let waits = seen.filter(|seen| seen.is_waiting() && self.index.assumed(&key).is_none());
        let shape = waits.and_then(|seen| match &seen.asks {
            Asks::Shape(shape) => Some(Arc::clone(shape)),
            Asks::Invalid(_) => None,
        });
        match shape {
            // A sandbox that was made anew under its name may ask for something else.
            Some(shape) if self.queue.shape_of(&key) == Some(&shape) => {}
            Some(shape) => {
                self.queue.remove(&key);
                self.queue.push(&key, &shape);
            }
            None => {
                self.queue.remove(&key);
            }
        }
        self.mark(Subject::Sandbox(key));
    }

    pub(super) fn take_offer(&mut self, object: &SandboxNode) {
        let Some(name) = object.metadata.name.as_deref() else {
            return;
        };
        let mut offer = Offer::read(object);
        let known = self.offer(name).filter(|known| known.uid == offer.uid);
        if known.is_some_and(|known| known.version > offer.version) {
            return;
        }
        offer.told_silence = known.map_or(0, |known| known.told_silence);
        self.index.change_node(name, |node| {
            if offer.unreachable {
                offer.told_silence = node.silences;
            }
            node.offer = Some(offer);
        });
        self.mark(Subject::Node(name.into()));
    }
}

/// A kind of object that is watched.
trait Watched: kube::Resource {
    /// Whom it is about.
    fn subject(metadata: &ObjectMeta) -> Option<Subject>;

    /// Takes it in.
    fn take(&self, core: &mut Core, now: Now);

    /// Its metadata.
    fn metadata(&self) -> &ObjectMeta {
        self.meta()
    }
}

fn node_subject(metadata: &ObjectMeta) -> Option<Subject> {
    Some(Subject::Node(metadata.name.as_deref()?.into()))
}

impl Watched for Lenient {
    fn subject(metadata: &ObjectMeta) -> Option<Subject> {
        key_of(metadata).map(|key| Subject::Sandbox(Arc::new(key)))
    }

    fn take(&self, core: &mut Core, _: Now) {
        core.take_sandbox(self);
    }
}

impl Watched for NodeObject {
    fn subject(metadata: &ObjectMeta) -> Option<Subject> {
        node_subject(metadata)
    }

    fn take(&self, core: &mut Core, now: Now) {
        let Some(name) = self.metadata.name.as_deref() else {
            return;
        };
        let machine = Machine::read(self);
        let mut same = false;
        core.index.change_node(name, |node| {
            let another = node
                .machine
                .as_ref()
                .is_some_and(|known| known.uid != machine.uid);
            node.not_ready_since = match node.not_ready_since {
                _ if machine.ready => None,
                Some(since) if !another => Some(since),
                Some(_) | None => Some(now.run),
            };
            same = node.machine.as_ref() == Some(&machine);
            node.machine = Some(machine);
        });
        if !same {
            core.node_changed(name, now.run);
        }
    }
}

impl Watched for SandboxNode {
    fn subject(metadata: &ObjectMeta) -> Option<Subject> {
        node_subject(metadata)
    }

    fn take(&self, core: &mut Core, now: Now) {
        core.take_offer(self);
        if let Some(name) = self.metadata.name.as_deref() {
            core.node_changed(name, now.run);
        }
    }
}

impl Watched for Lease {
    fn subject(metadata: &ObjectMeta) -> Option<Subject> {
        node_subject(metadata)
    }

    /// Only a change is a sign of life: the first look at a Lease may be at one that was last renewed long ago, but its age is not known
    /// by our clock, so that it begins here.
    fn take(&self, core: &mut Core, now: Now) {
        let Some(name) = self.metadata.name.as_deref() else {
            return;
        };
        // In the namespace there are Leases of others too.
        let owners = self.metadata.owner_references.as_deref();
        let mut owners = owners.unwrap_or_default().iter();
        if !owners.any(|owner| owner.kind == "Node" && owner.name == name) {
            return;
        }
        let spec = self.spec.as_ref();
        let mark = spec.map_or_else(String::new, |spec| {
            format!("{:?} {:?}", spec.holder_identity, spec.renew_time)
        });
        core.index.change_node(name, |node| {
            if node.heard.as_ref().is_none_or(|heard| heard.mark != mark) {
                node.heard = Some(Heard { mark, at: now.run });
            }
        });
        core.judge(name, now.run);
    }
}
