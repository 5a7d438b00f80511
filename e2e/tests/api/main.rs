//! What the real apiserver makes of the CRDs: the table of accept and deny, and what can be written to a status.
//!
//! The tests share one control plane, and each has a namespace of its own; but for the one of the control plane itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod cli;
mod evolution;
mod node;
mod plane;
mod server;
mod status;
#[path = "../../../crds/tests/table/mod.rs"]
mod table;
mod whole;
