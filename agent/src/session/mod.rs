//! Sessions of one sandbox: the channel to cloche-init, and output kept on the node.
//!
//! ```text
//!   driver, api ── Sessions, Session ──requests──► channel's task ──frames──► cloche-init (holder)
//!        ▲   ▲                                      │   │   ▲
//!        │   └──────── watch: state, health ────────┘   │   └── frames, hostile until checked
//!        └── OutputReader ◄── sessions/<id>/{stdout,stderr} ◄── log (bounded pool)
//! ```
//!
//! | module | what | I/O |
//! |---|---|---|
//! | `identity` | command ids, streams | no |
//! | `wire`, `stdin`, `outbox`, `epoch` | the protocol, checked | no |
//! | `liveness` | when to ping, wake, bridge, give up | no |
//! | `life` | deadlines of one session | no |
//! | `table` | all sessions: requests, events, ends | no |
//! | `record`, `log` | what is on disk | blocking, on the runtime's blocking threads |
//! | `channel` | the task that owns all of the above and the pipes | yes |
//! | `handle`, `input`, `reader` | what the rest of the agent holds | |
//!
//! **Restart contract.** The agent may be killed at any instruction. What was acknowledged to the holder is in a log; what was
//! not is sent again from the log's length on: each byte once. A session is recorded before the holder hears of it and is
//! created there only by its id, so a command never runs twice. An end is recorded before it is told, so it never changes.
//!
//! **What a hostile sandbox can do**: falsify its own sessions and no others; keep its channel broken, which costs a few
//! epochs, then one attempt each half minute.

mod bridge;
mod channel;
mod epoch;
mod error;
mod handle;
mod identity;
mod input;
mod life;
mod liveness;
mod log;
mod outbox;
mod reader;
mod record;
mod request;
#[cfg(test)]
mod simulation;
mod state;
mod stdin;
mod table;
mod wire;

pub use bridge::{Bridge, BridgeError, Pipes};
pub use channel::CONNECT_TIMEOUT;
pub use error::SessionError;
pub use handle::{Attachment, Session, Sessions, main_has_ended};
pub use identity::{BadCommandId, CommandId, Stream};
pub use input::Input;
pub use log::LogError;
pub use reader::{Chunk, MAX_CHUNK, OutputReader, Until};
pub use record::{RecordError, put_main_aside};
pub use request::{Fingerprint, NewSession};
pub use state::{
    Ended, Health, Link, NotStarted, Outcome, Pauses, SessionState, SetUp, StdinState,
};
pub use stdin::StdinError;
