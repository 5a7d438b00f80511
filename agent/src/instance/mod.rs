//! Instances: every runsc sandbox, pooled or in use.
//!
//! ```text
//!   Making ──► Made ──► started ──► claimed by one sandbox ──► destroyed
//!                └─────────┴───────────────────────────────────────┘
//! ```
//!
//! An instance has its own record, control group, runsc root and panic folder. It is never used twice. Truth is the control
//! group, not runsc's files: a `runsc create` that was killed half-way can leave a live sentry without any file, and one whose
//! agent died goes on and finishes later. So an instance is destroyed by its group, until that is empty.
//!
//! [`plan`] decides how the pool is kept filled, [`pool`] owns what no sandbox has claimed, [`workshop`] makes and destroys.

pub mod limits;
pub mod plan;
pub mod pool;
mod record;
pub mod workshop;

pub use plan::Target;
pub use record::{InstanceRecord, Link, Shape, Stage};
pub use workshop::{Instance, InstanceError, Workshop};
