//! Commands in the remote-command protocol of Kubernetes, over `WebSocket`s: what `kubectl exec` and the clients of other languages speak.
//!
//! ```text
//! client ──channels──► Translator (pure) ──requests──► agent
//!        ◄─channels──   │  cloche_proto::session::State   ◄──replies──┘
//!                       └ survives the connection to the agent, which `drive` makes anew
//! ```
//!
//! The client knows no offsets: when an agent restarts, the gateway comes back to the command by them, and the client sees a pause.

mod channel;
mod drive;
mod ending;
mod translator;

pub(crate) use channel::Version;
pub(crate) use drive::serve;
pub(crate) use translator::Translator;

/// Most bytes of one message of a client. Those of Kubernetes send 32 KiB at most.
pub(crate) const MESSAGE: usize = 256 << 10;
