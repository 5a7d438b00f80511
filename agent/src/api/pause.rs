//! Clients of a sandbox that stands still or is stopped.

use std::time::Duration;

use cloche_crds::DesiredState;
use tokio::sync::broadcast::error::RecvError;
use tonic::Status;

use crate::board::Posting;
use crate::node::Node;
use crate::sandbox::{Event, PausedBy, State};
use crate::session::CommandId;
use crate::source::SandboxKey;

/// How long a client waits for a sandbox that is to go on: it takes milliseconds. For one that is brought back, the time that its start
/// may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Lets a client through that is counted as a use of the sandbox: at once where it runs, and once it runs again where it does not for want
/// of use. One that is not to run by its spec takes no new command; what there is of earlier ones can be attached to.
pub(super) async fn pass(
    node: &Node,
    key: &SandboxKey,
    posting: &Posting,
    new: Option<&CommandId>,
) -> Result<(), Status> {
    let record = &posting.record;
    let patience = match record.stopped {
        Some(_) => PATIENCE.max(record.spec.start_timeout),
        None => PATIENCE,
    };
    let waited = tokio::time::timeout(patience, wait(node, key, &record.uid, new));
    waited.await.unwrap_or_else(|_| {
        Err(Status::unavailable(format!(
            "sandbox {:?} does not run, and did not run again within {} s; retry",
            key.name,
            patience.as_secs()
        )))
    })
}

async fn wait(
    node: &Node,
    key: &SandboxKey,
    uid: &str,
    new: Option<&CommandId>,
) -> Result<(), Status> {
    let mut was_tried = false;
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
        let state = &posting.record.state;
        let pause = state.pause().map(|pause| pause.by);
        let Some(by) = pause.or(posting.record.stopped) else {
            return Ok(());
        };
        if by == PausedBy::Spec {
            return by_spec(&posting, new).await;
        }
        match state {
            State::Stopped {
                failed: Some(why), ..
            } if was_tried => {
                return Err(Status::unavailable(format!(
                    "sandbox {:?} could not be brought back: {why}",
                    key.name
                )));
            }
            State::Bound | State::Claimed { .. } | State::MainRequested { .. } => was_tried = true,
            _ => {
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

async fn by_spec(posting: &Posting, new: Option<&CommandId>) -> Result<(), Status> {
    let Some(id) = new else { return Ok(()) };
    let record = &posting.record;
    // A client that comes back for what it began before.
    if let Some(sessions) = &posting.sessions
        && sessions.get(id).await.is_ok()
    {
        return Ok(());
    }
    let name = &record.name;
    Err(Status::failed_precondition(match record.spec.desired {
        DesiredState::Running => {
            format!("sandbox {name:?} is not running yet: wait for its condition Ready")
        }
        DesiredState::Paused => format!(
            "sandbox {name:?} is paused (spec.lifecycle.desiredState): set it to Running first, as `kubectl sandbox resume` does"
        ),
        DesiredState::Stopped => format!(
            "sandbox {name:?} is stopped (spec.lifecycle.desiredState): set it to Running first, as `kubectl sandbox start` does"
        ),
    }))
}
