//! The whole gateway, between a made-up apiserver and a made-up agent, over real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod access;
mod remote;
mod session;
mod support;
