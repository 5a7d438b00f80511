//! `cloche-gateway`: sandboxes' sessions and logs as subresources of the Kubernetes API, through its aggregation layer.
//!
//! ```text
//! kubectl, kubectl sandbox, clients ──► apiserver ──(front proxy's certificate, user in headers)──► serve ─► routes
//!                                         ▲  ▲                                                                 │
//!             may they? where is it? ─────┘  └─ follow, bundle, identity: CA, certificate, front proxy         │
//!                                                                                                              ▼
//!                  agents (one connection per node, mTLS) ◄──── remote (v4, v5) │ session (the agent's own) │ log
//! ```
//!
//! | part | owns | takes in | gives out |
//! |---|---|---|---|
//! | `serve`, `strangers`, `tls` | the listener, connections | certificates | requests, with what their client showed |
//! | `front_proxy` (pure), `follow` | how the front proxy is known | a `ConfigMap` | the user of a request |
//! | `access`, `place` | nothing | user, names | whether they may; the sandbox's node |
//! | `agents` | connections to the agents | node | a client of its API |
//! | `remote` | a client's session over all connections to its agent (`translator`, pure) | channels | channels, the end as a `Status` |
//! | `session` | one connection to an agent | messages | the same messages |
//! | `log` | one reader's offsets | output | bytes |
//! | `client` | one WebSocket: what is not written yet, pings | messages | messages |
//! | `bundle` | `caBundle` of the `APIService` | our CA | a patch where it differs |
//!
//! **Trust.** Users are believed from the front proxy alone, by its CA and its name. Every request asks the apiserver whether the user may: a
//! WebSocket is a GET, for which the apiserver itself has only asked for `get`. Agents are known by their node's name in their certificate.
//!
//! **Restart contract.** Nothing is kept. A gateway that stops first says for 10 s that it is not ready, and still serves; then it tells clients that can come back to do so; commands go on without it. When an
//! agent restarts, clients of the remote-command protocol see a pause of up to a minute, and no byte is lost or doubled.
//!
//! **Bounds.** Streams in all and per user, connections, heads, messages, questions to the apiserver; clients that are not known yet have
//! few connections, and 5 s. A client that does not
//! read makes its agent wait, not the gateway's memory grow.

mod access;
mod agents;
mod ask;
mod bundle;
mod client;
mod discovery;
mod follow;
mod front_proxy;
mod log;
mod options;
mod outage;
mod place;
mod refusal;
mod remote;
mod routes;
mod run;
mod serve;
mod session;
mod strangers;
mod streams;
mod tls;
mod usage;

pub use options::Options;
pub use run::{Error, Stop, run, run_with};
