//! Limits and ends, hostile guests, bad input, what a guest sees, and how commands behave: on the real runtime.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod ends;
mod enforce;
mod every_end;
mod examples;
mod exec;
mod hostile;
mod input;
mod journey;
mod pause;
mod readers;
mod registries;
mod scene;
mod security;
mod shapes;
mod shortage;
mod stop;
mod usage;
mod verdict;
mod view;
mod whole;
