//! What every agent does at its start, wherever its sandboxes come from.
//!
//! In this order, each step only after the one before: the locks; preflight; groups and budget; records; every instance that no
//! sandbox claims is killed; runtime profile; images; each sandbox is decided and driven. Then whoever starts the agent joins its own
//! tasks to the [`Crew`], which ends all of them together: desired objects, pool and API come only now.

mod crew;
mod lock;
mod options;
mod prepare;
mod resume;

pub use crew::Crew;
pub use lock::{Locks, lock};
pub use options::Options;
pub use prepare::{Prepared, Regime, prepare};
