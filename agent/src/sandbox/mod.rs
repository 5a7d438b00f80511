//! One sandbox: its record, its pure state machine, its driver.
//!
//! ```text
//!             events                    record, actions
//!   driver ───────────► step (pure) ──────────────────► driver: write the record, publish, perform
//!      ▲                                                                                  │
//!      └────────────────────────────── outcomes ──────────────────────────────────────────┘
//! ```
//!
//! [`step`] decides, [`driver`] owns the record and performs. [`command`] (what a session runs) and [`view`] (what the object's
//! status says) are pure too.

pub mod admission;
pub mod command;
pub mod death;
pub mod driver;
#[cfg(test)]
pub(crate) mod fixture;
pub mod hands;
mod holding;
mod idle;
mod keep;
mod pace;
mod record;
mod references;
mod start;
mod step;
mod values;
pub mod view;

pub use idle::{Activity, Use};
pub use record::{
    Cause, ImageUse, Kept, Lack, Lacking, Pause, PausedBy, SandboxRecord, Stage, State,
    Termination, Usage,
};
pub use step::{Action, Event, deadline, step};
pub use values::Values;
