//! The operator: binds sandboxes to nodes, judges nodes, releases what no agent can, signs certificates, and tells agents what their
//! sandboxes take from Secrets and `ConfigMap`s.
//!
//! ```text
//!   watches: Sandboxes, Nodes, SandboxNodes, Leases        lease: which replica acts
//!        │ Event                                              │ Standing
//!        ▼                                                    ▼
//!   controller ──► core (pure): index, queue, scheduler, loss rules ──► Job ──► work ──► apiserver
//!        ▲                                                                       │
//!        └──────────────────────────── Outcome ◄────────────────────────────────┘
//! ```
//!
//! | task | owns | takes in | gives out |
//! |---|---|---|---|
//! | lease | the Lease `cloche-operator` | | whether this replica acts; ends the process when it is lost |
//! | watch | the watches | the apiserver | events, over a bounded channel that holds the watches up when full |
//! | controller | the core: all that is known | events, outcomes, time | jobs, at most 64 at a time, one per object |
//! | signer | the CA's key | certificate requests | certificates, or why not |
//! | references | nothing | questions of agents, over mTLS | what their sandboxes take from Secrets and `ConfigMap`s |
//! | certificate | the operator's own certificate | the signer's answers | credentials for references |
//! | work (one per job) | nothing | a job | writes, each with a test of the UID; its outcome |
//!
//! **Restart contract.** Nothing is kept but what stands in objects. A `kill -9` at any instruction leaves at most a job half done: the
//! finalizer without the binding or the other way round, and whoever acts next sees that and does the rest. Ages of silence are of one
//! process: they begin anew with it, so that a restart can only declare a node lost later, never sooner.

pub mod clock;
pub mod controller;
pub mod core;
pub mod event;
pub mod failure;
pub mod health;
pub mod index;
pub mod job;
pub mod lease;
pub mod lenient;
pub mod loss;
pub mod options;
pub mod patch;
pub mod references;
pub mod run;
pub mod schedule;
pub mod signer;
pub mod told;
pub mod uninstall;
pub mod watch;
pub mod work;
