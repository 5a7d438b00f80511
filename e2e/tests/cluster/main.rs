//! Cloche in a cluster: objects applied, bound, run, ended and gone; its parts and the apiserver killed meanwhile; who may write what.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod due;
mod gone;
mod kills;
mod many;
mod marked;
mod outage;
mod points;
mod random;
mod references;
mod registries;
mod remote;
mod rights;
mod scene;
mod stop;
mod tokens;
mod whole;
