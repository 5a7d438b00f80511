//! What holds when the agent, or a sentry, is killed: nothing is lost, leaked, forgotten or run twice.
//!
//! Loops scale with `CLOCHE_SCALE`; what is random prints the seed that repeats it (`CLOCHE_SEED`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod ends;
mod many;
mod points;
mod random;
mod reboot;
mod stream;
mod subject;
