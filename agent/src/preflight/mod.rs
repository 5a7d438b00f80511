//! What the agent needs of its host, looked at before it begins: an error at the start that says what to do, instead of sandboxes
//! that fail one after the other for a reason far from its cause.
//!
//! [`probe`] looks and concludes nothing; [`report`] concludes and is pure. A [`Problem`] that is fatal must keep the agent from
//! starting.

mod findings;
mod probe;
mod report;

pub use findings::{Directory, Findings, Run, Wanted};
pub use probe::probe;
pub use report::{Problem, report, runsc_version};
