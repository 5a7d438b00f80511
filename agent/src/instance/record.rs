//! What the agent remembers of an instance, and what tells one instance from another kind.

use serde::{Deserialize, Serialize};

use crate::ledger::{Outlasts, Record};
use crate::sys::ProcessId;

/// What is fixed when an instance is made: two sandboxes of one shape can take each other's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shape {
    /// CPU limit in thousandths of a core: decides how many CPUs the guest sees.
    pub cpu_millis: u64,
    /// Memory that the guest sees, in bytes.
    pub memory: u64,
    /// What its network hangs on.
    pub link: Link,
}

/// What an instance's network hangs on. It is attached before the sentry's start and cannot change after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Link {
    /// Nothing: the guest has its loopback alone.
    Loopback,
}

/// An instance's record in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceRecord {
    /// The boot in which it was made. After another boot nothing of it can be left.
    pub boot_id: String,
    /// What it was made as.
    pub shape: Shape,
    /// The runtime profile that it runs on.
    pub profile: String,
    /// How far its making came.
    pub stage: Stage,
}

impl Record for InstanceRecord {
    const KIND: &'static str = "instance";
    const VERSION: u32 = 1;

    /// An instance does not outlast the kernel either.
    fn outlasts(&self) -> Outlasts {
        Outlasts::Agent
    }
}

/// How far an instance's making came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "at")]
pub enum Stage {
    /// Anything may be there: a group, a runtime on its way, a sentry without a file that names it.
    Making,
    /// It stands.
    Made {
        /// Its sentry.
        sentry: ProcessId,
    },
}
