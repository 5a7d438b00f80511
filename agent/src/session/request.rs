//! What handles ask of the channel's task.

use std::time::Duration;

use bytes::Bytes;
use cloche_proto::frame;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use super::error::SessionError;
use super::identity::CommandId;
use super::record::to_hex;
use super::table::Found;

/// A session to be made.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// What to run. Its `timeout_ms` is kept by the sandbox's init and by the agent.
    pub spec: frame::SessionSpec,
    /// Kill its tree once nobody was attached for so long.
    pub kill_on_detach: Option<Duration>,
    /// Tells one command from another, where whoever asks for another under its id is to be refused.
    pub fingerprint: Option<Fingerprint>,
}

/// Of what a client asks for: 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// Of these parts, in this order.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(to_hex(&hash.finalize()))
    }

    /// The digits.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

type Reply<T> = oneshot::Sender<Result<T, SessionError>>;

#[derive(Debug)]
pub(super) enum Request {
    Create {
        id: CommandId,
        new: NewSession,
        reply: Reply<Found>,
    },
    Get {
        id: CommandId,
        reply: Reply<Found>,
    },
    List {
        reply: oneshot::Sender<Vec<Found>>,
    },
    TakeInput {
        id: CommandId,
        /// The number of the one who takes it again; none where it is taken over.
        known: Option<u64>,
        reply: Reply<u64>,
    },
    Stdin {
        id: CommandId,
        input: u64,
        offset: u64,
        bytes: Bytes,
        end: bool,
        reply: Reply<u64>,
    },
    Signal {
        id: CommandId,
        signal: i32,
        reply: Reply<()>,
    },
    Resize {
        id: CommandId,
        size: frame::TerminalSize,
        reply: Reply<()>,
    },
    Terminate {
        id: CommandId,
        reply: Reply<()>,
    },
    Kill {
        id: CommandId,
        reply: Reply<()>,
    },
}
