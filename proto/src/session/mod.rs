//! A client's side of a session: its bytes, exactly once and in order, over any number of connections. No I/O.
//!
//! ```text
//! local stdin, signals ──► State ──► requests ──► agent
//! bytes to write       ◄── State ◄── replies  ◄── agent
//! ```
//!
//! kubectl-sandbox keeps one for its user, the gateway one for each client that speaks the remote-command protocol of Kubernetes.

mod output;
mod state;
mod stdin;

pub use state::{Received, State};
