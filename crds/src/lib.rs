//! Cloche's API objects: types, rules, reasons, phases and conditions. No client, no runtime.

mod reason;

pub use reason::{FailureDomain, Reason};
