//! What a sandbox asks of a node. Sandboxes that ask for the same share one.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use cloche_crds::quantity::{Bytes, Millicores};
use cloche_crds::sandbox::Toleration;
use cloche_crds::{Effective, SandboxSpec};

/// What a sandbox asks of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    /// Processor time that is set aside for it.
    pub cpu: Millicores,
    /// Memory that is set aside for it, without the node's overhead.
    pub memory: Bytes,
    /// Disk that is set aside for it.
    pub disk: Bytes,
    /// Labels that the node must have.
    pub selector: BTreeMap<String, String>,
    /// Taints that do not keep it away.
    pub tolerations: Vec<Toleration>,
}

impl Shape {
    /// Of a spec that kept every rule.
    pub fn of(spec: &SandboxSpec, effective: &Effective) -> Self {
        let mut tolerations = spec.tolerations.clone().unwrap_or_default();
        tolerations.sort();
        tolerations.dedup();
        Self {
            cpu: effective.resources.cpu_request,
            memory: effective.resources.memory_request,
            disk: effective.resources.disk_request,
            selector: spec.node_selector.clone().unwrap_or_default(),
            tolerations,
        }
    }
}

/// What a sandbox takes of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// What it asks for.
    pub shape: Arc<Shape>,
    /// It is stopped: it takes its disk alone.
    pub is_stopped: bool,
}

/// Every shape that is in use, each once.
#[derive(Debug, Default)]
pub struct Shapes(HashSet<Arc<Shape>>);

impl Shapes {
    /// The shared one.
    pub fn intern(&mut self, shape: Shape) -> Arc<Shape> {
        if let Some(known) = self.0.get(&shape) {
            return Arc::clone(known);
        }
        let shape = Arc::new(shape);
        self.0.insert(Arc::clone(&shape));
        shape
    }

    /// Forgets a shape of which the caller's is the last use.
    pub fn release(&mut self, shape: &Arc<Shape>) {
        // The caller's and the one in here.
        if Arc::strong_count(shape) == 2 {
            self.0.remove(shape);
        }
    }
}
