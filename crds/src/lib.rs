//! Cloche's API objects: types, rules, reasons, phases and conditions. No client, no runtime.
//!
//! ```text
//! a manifest ──decode──► Sandbox ──rules──► every violation, each with its path
//!                           └─────────────► Effective: what all else works on
//! ```

pub mod cluster;
pub mod condition;
pub mod decode;
pub mod event;
pub mod image;
pub mod limits;
pub mod node;
mod phase;
pub mod quantity;
mod reason;
pub mod refusal;
pub mod rules;
pub mod sandbox;
pub mod schema;

pub use condition::{ConditionReason, ConditionStatus, ConditionType};
pub use image::ImageRef;
pub use node::{NodeAllocatable, SandboxNode, SandboxNodeSpec, SandboxNodeStatus};
pub use phase::Phase;
pub use reason::{FailureDomain, Reason};
pub use sandbox::{
    DesiredState, Effective, IdleAction, MainCommand, PullPolicy, Sandbox, SandboxSpec,
    SandboxStatus,
};
