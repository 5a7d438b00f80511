//! What the supervisor needs to know of a desired set, whatever it stands in.

use std::collections::BTreeSet;

use cloche_crds::{Effective, Sandbox};

use super::{Desired, SandboxKey};
use crate::sandbox::Cause;

/// Where a desired sandbox stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin<'a> {
    /// In a manifest.
    Manifest {
        /// Name of the file in its directory.
        file: &'a str,
        /// Differs, within one run of the agent, where it was deleted and made anew between two looks. Never 0.
        incarnation: u64,
    },
    /// In an object of an apiserver.
    Object {
        /// The object's UID: one that was made anew has another.
        uid: &'a str,
        /// Of its spec.
        generation: i64,
    },
}

/// One sandbox that should exist.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted<'a> {
    /// Where it stands.
    pub origin: Origin<'a>,
    /// The object, without status.
    pub object: &'a Sandbox,
    /// What it means.
    pub effective: &'a Effective,
    /// It has been declared ended already: nothing of it may run any more, though the object is there.
    pub ended: Option<&'a Cause>,
}

/// Everything that should exist. A sandbox that is in it no more is to be deleted.
pub trait DesiredSet: Clone + Send + Sync + 'static {
    /// All, each once.
    fn each(&self) -> impl Iterator<Item = (&SandboxKey, Wanted<'_>)> + Send;
    /// Whether there is one of this name.
    fn has(&self, key: &SandboxKey) -> bool;
    /// Grows with each set; 0 where nobody asks how far the supervisor is.
    fn revision(&self) -> u64;
}

/// How far the supervisor is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounted {
    /// The newest set that it has followed.
    pub revision: u64,
    /// UIDs of all sandboxes of which the node has anything: at least a record.
    pub driven: BTreeSet<String>,
}

impl DesiredSet for Desired {
    fn each(&self) -> impl Iterator<Item = (&SandboxKey, Wanted<'_>)> + Send {
        self.sandboxes.iter().map(|(key, sandbox)| {
            let wanted = Wanted {
                origin: Origin::Manifest {
                    file: &sandbox.file,
                    incarnation: sandbox.incarnation,
                },
                object: &sandbox.object,
                effective: &sandbox.effective,
                ended: None,
            };
            (key, wanted)
        })
    }

    fn has(&self, key: &SandboxKey) -> bool {
        self.sandboxes.contains_key(key)
    }

    fn revision(&self) -> u64 {
        0
    }
}
