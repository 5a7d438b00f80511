//! How the cluster knows of this node: its `SandboxNode` tells what it offers, and its Lease that the agent lives.

mod lease;
mod offer;
mod reservation;
mod sandbox_node;

pub(super) use lease::Heart;
pub(super) use offer::Terms;
pub(super) use reservation::Reservation;
pub(super) use sandbox_node::{Announcer, Standing};

use std::time::Duration;

/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
enum PresenceError {
    /// The apiserver refused or could not be reached.
    #[error("{what}")]
    Api {
        /// What was asked of it.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// There was no answer in time.
    #[error("{what}: no answer within {} s", PATIENCE.as_secs())]
    Silent {
        /// What was asked of it.
        what: &'static str,
    },
    /// What was to be written cannot be.
    #[error("encode what the node offers")]
    Encode(#[from] serde_json::Error),
}

async fn in_time<T>(
    what: &'static str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, PresenceError> {
    let answer = tokio::time::timeout(PATIENCE, request).await;
    let answer = answer.map_err(|_| PresenceError::Silent { what })?;
    answer.map_err(|source| PresenceError::Api {
        what,
        source: Box::new(source),
    })
}
