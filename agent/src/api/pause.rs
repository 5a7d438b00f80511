//! Clients of a sandbox that stands still.

use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tonic::Status;

use crate::board::Posting;
use crate::node::Node;
use crate::sandbox::{Event, PausedBy};
use crate::session::{CommandId, Sessions};
use crate::source::SandboxKey;

/// How long a client waits for a sandbox that is to go on: it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Lets a client through that is counted as a use of the sandbox: at once where it runs, and once it goes on where it stands still for want
/// of use. One that is to stand still by its spec takes no new command; what runs in it can be attached to.
pub(super) async fn pass(
    node: &Node,
    key: &SandboxKey,
    uid: &str,
    sessions: &Sessions,
    new: Option<&CommandId>,
) -> Result<(), Status> {
    let waited = tokio::time::timeout(PATIENCE, wait(node, key, uid, sessions, new));
    waited.await.unwrap_or_else(|_| {
        Err(Status::unavailable(format!(
            "sandbox {:?} is paused, and did not go on within {} s; retry",
            key.name,
            PATIENCE.as_secs()
        )))
    })
}

async fn wait(
    node: &Node,
    key: &SandboxKey,
    uid: &str,
    sessions: &Sessions,
    new: Option<&CommandId>,
) -> Result<(), Status> {
    loop {
        // From before the look: no change falls between the two.
        let mut changes = node.board.changes();
        let Some(posting) = node
            .board
            .get(key)
            .filter(|posting| posting.record.uid == uid)
        else {
            // Whatever is asked of it next tells why.
            return Ok(());
        };
        let Some(pause) = posting.record.state.pause() else {
            return Ok(());
        };
        match pause.by {
            PausedBy::Spec => return by_spec(&posting, sessions, new).await,
            PausedBy::Idleness => {
                if let Some(driver) = &posting.driver {
                    driver.tell(Event::Wake).await;
                }
            }
        }
        if let Err(RecvError::Closed) = changes.recv().await {
            return Err(Status::unavailable("the agent stops; retry"));
        }
    }
}

async fn by_spec(
    posting: &Posting,
    sessions: &Sessions,
    new: Option<&CommandId>,
) -> Result<(), Status> {
    let Some(id) = new else { return Ok(()) };
    // A client that comes back for what it began before the pause.
    if sessions.get(id).await.is_ok() {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "sandbox {:?} is paused (spec.lifecycle.desiredState): set it to Running first, as `kubectl sandbox resume` does",
        posting.record.name
    )))
}
