//! The sandboxes that the objects of an apiserver want on this node.

use std::collections::BTreeMap;
use std::sync::Arc;

use cloche_crds::{Effective, Sandbox};

use crate::sandbox::{Cause, SandboxRecord};
use crate::source::{DesiredSet, Origin, SandboxKey, Wanted};

/// One sandbox that should exist.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DesiredObject {
    /// The object's UID.
    pub uid: String,
    /// Of its spec.
    pub generation: i64,
    /// The object, without status.
    pub object: Sandbox,
    /// What it means.
    pub effective: Effective,
    /// It has been declared ended: nothing of it may run.
    pub ended: Option<Cause>,
}

impl DesiredObject {
    /// As an earlier agent took it over. It stays desired until the apiserver says otherwise.
    pub(super) fn remembered(record: &SandboxRecord) -> Self {
        Self {
            uid: record.uid.clone(),
            generation: record.generation,
            object: record.object.clone(),
            effective: record.spec.clone(),
            ended: None,
        }
    }
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct DesiredObjects {
    /// Grows with each set.
    pub revision: u64,
    /// Shared: the set is copied at each change.
    pub sandboxes: BTreeMap<SandboxKey, Arc<DesiredObject>>,
}

impl DesiredSet for DesiredObjects {
    fn each(&self) -> impl Iterator<Item = (&SandboxKey, Wanted<'_>)> + Send {
        self.sandboxes.iter().map(|(key, sandbox)| {
            let wanted = Wanted {
                origin: Origin::Object {
                    uid: &sandbox.uid,
                    generation: sandbox.generation,
                },
                object: &sandbox.object,
                effective: &sandbox.effective,
                ended: sandbox.ended.as_ref(),
            };
            (key, wanted)
        })
    }

    fn has(&self, key: &SandboxKey) -> bool {
        self.sandboxes.contains_key(key)
    }

    fn revision(&self) -> u64 {
        self.revision
    }
}
