//! The node agent: runs the sandboxes that are bound to this node, and tells the truth about them.
//!
//! ```text
//!   source (manifest directory) ──desired objects──► supervisor ──► one driver per sandbox ──► status (beside the manifest,
//!   or clerk (an apiserver's objects)                   │             │                        or of the object)
//!                                                       │             │  step(state, event, now): pure
//!                                                       │             ├──► image     pull, unpack, EROFS, cache
//!   api (gRPC, local socket) ──► sessions ◄─────────────┤             ├──► pool      instances made ahead, per shape
//!                                   │                   │             │      └► instance: cgroup + runsc, ledger record each
//!                               cloche-init             └── usage     └──► session   channel to cloche-init, logs on the node
//! ```
//!
//! | task | owns | takes in | gives out |
//! |---|---|---|---|
//! | source | the manifest directory's listing | inotify | the set of desired objects |
//! | clerk (in a cluster) | what is known of the apiserver's objects | its watch, the board, what the supervisor has | the set of desired objects, patches |
//! | supervisor | the set of drivers | desired objects, the ledger at start | drivers, status of what was refused |
//! | driver (one per sandbox) | the sandbox's record | desired changes, effects' outcomes, deadlines | records, status |
//! | pool | instances that no sandbox has claimed | claims, deaths | instances |
//! | image store | blobs, EROFS files, pins | references | images, or why not |
//! | channel (one per running sandbox) | the pipes to cloche-init, session logs | frames, requests | session states |
//! | usage | what was last seen of each instance | the groups' counters | peaks, evictions, groups to kill |
//! | api | the local socket; in a cluster also the port for gateways | requests | replies |
//! | presence (in a cluster) | the node's `SandboxNode` and Lease | facts of the Node, time | both |
//!
//! **Restart contract.** `kill -9` at any instruction loses no sandbox, leaks nothing and forgets no end reason: a record is
//! on disk before the effect that it describes ([`ledger`]), and [`recovery`] decides each sandbox by its last record and by
//! what the kernel holds. Instances that no sandbox record claims are killed before anything else begins.
//!
//! Deciders (`sandbox::step`, `recovery`, `instance::plan`, `runsc::spec`, `runsc::argv`, policy tables) are pure: no I/O, no
//! clock. Effects live beside them and decide nothing.

pub mod api;
pub mod board;
pub mod cgroup;
pub mod clock;
pub mod cluster;
pub mod fault;
pub mod image;
pub mod instance;
pub mod ledger;
pub mod mirror;
pub mod node;
pub mod preflight;
pub mod process;
pub mod recovery;
pub mod reserve;
pub mod runsc;
pub mod sandbox;
pub mod session;
pub mod settled;
pub mod snapshot;
pub mod source;
pub mod standalone;
pub mod start;
pub mod status;
pub mod supervisor;
pub mod sys;
pub mod told;
pub mod unique;
pub mod usage;
