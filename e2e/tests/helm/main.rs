//! Cloche installed by helm on nodes with a real kubelet: agents that are replaced, kept away or broken under sandboxes, and an uninstall.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod agents;
mod budget;
mod first;
mod scene;
mod uninstall;
