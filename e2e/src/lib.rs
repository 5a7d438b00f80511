//! What end-to-end tests stand on.
//!
//! ```text
//!   trial ──► agent      an agent with folders and a cgroup of its own; kill -9, restart, stop, fault points
//!     │        ├ client   Apply, Delete, List
//!     │        ├ level    waits for what Watch tells, with a deadline
//!     │        └ session  commands: output by offset, stdin, exit
//!     ├─────► audit       processes, mounts, cgroups, network namespaces and files, against what the ledger names
//!     └─────► dump        what a person needs after a failure
//!   image, registry       OCI layouts, hostile ones too; a real registry on the loopback
//!   rig                   a real control plane of Kubernetes, with an ID that nobody else uses
//!   cluster, helm         a whole Cloche on it: its parts as processes of the test, or installed on nodes with kubelets
//!   points, random        where and when to kill; subject, talk: sandboxes and commands that show whether they ran once
//! ```
//!
//! A test is `trial::run(options, async |agent| ...)`: whatever happens in it, the agent's state is dumped on failure, audited
//! on success, and everything is taken down. Nothing here sleeps for a time: what has no event is looked at again and again
//! until a deadline.
//!
//! Needs root and what the build makes: `cloche-agent`, `kubectl-sandbox`, `runsc`, `cloche-init`, found in cargo's target
//! folder or by `CLOCHE_AGENT`, `CLOCHE_CLI`, `CLOCHE_RUNSC`, `CLOCHE_INIT`, `CLOCHE_RIG`, `CLOCHE_PUSHED`. What is missing is an error, never a skipped test.

pub mod agent;
pub mod audit;
pub mod client;
pub mod cluster;
pub mod deadline;
pub mod dump;
pub mod helm;
pub mod image;
pub mod level;
pub mod points;
pub mod process;
pub mod random;
pub mod registry;
pub mod rig;
pub mod session;
pub mod subject;
pub mod talk;
pub mod trial;

pub use agent::{Agent, Options};
