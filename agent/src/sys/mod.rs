//! Processes as the kernel sees them: starting one clean, naming one without doubt, waiting for its end.
//!
//! The one module of this crate in which `unsafe` is allowed: system calls that no safe wrapper offers.
//!
//! - [`spawn`]: start a program inside control groups, with nothing inherited from the agent.
//! - [`Process`], [`ProcessId`]: a process by pid *and* start time, held by a pidfd.
//! - [`orphan`]: the agent adopts what its children leave behind, and reaps what nobody waits for.
//! - `confine`: what a child that reads hostile bytes gives up.
//! - `wait`: how a child ended, told exactly.
//! - [`log`]: a file in memory that cannot grow, for the output of a child.
#![allow(unsafe_code)]

pub(crate) mod confine;
pub(crate) mod inotify;
pub mod log;
pub mod orphan;
mod process;
mod spawn;
mod stat;
mod wait;

pub use process::{Exit, Process, ProcessError, ProcessId};
pub use spawn::{Spawn, SpawnError, spawn};
pub use stat::descendants;
