//! What a client asks of the session that it is attached to.

use std::sync::Arc;

use bytes::Bytes;
use cloche_proto::agent::v1alpha1 as pb;
use cloche_proto::agent::v1alpha1::session_request::Kind as In;
use cloche_proto::agent::v1alpha1::session_response::Kind as Out;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::{Status, Streaming};

use super::session::{size, status, tell};
use super::stream::Sending;
use crate::session::{Input, Session, SessionError, StdinError};

/// Stdin of one client that waits for room, in bytes and [`PIECE_COST`]. Twice the window of 1 MiB that the protocol gives it:
/// what it is told and what it sends cross each other.
const BACKLOG: usize = 2 << 20;
/// What a piece counts besides its bytes.
const PIECE_COST: usize = 64;

type Piece = (pb::Stdin, OwnedSemaphorePermit);

/// Takes the client's requests; the refusal of one that breaks the protocol is told and ends the stream. Stdin waits for room on
/// its own, so that a command which reads none can still be signalled, resized and killed.
pub(super) async fn take(
    session: &Session,
    announced: bool,
    input: Option<&Input>,
    requests: &mut Streaming<pb::SessionRequest>,
    sender: &Sending<pb::SessionResponse>,
) {
    let (queue, pieces) = mpsc::unbounded_channel();
    let refused = tokio::select! {
        // The other one is dropped with what it was doing: the client's stream ends.
        refused = obey(session, announced, requests, queue) => refused,
        refused = feed(input, pieces) => refused,
    };
    drop(sender.send(Err(refused)).await);
}

/// Does what is asked, until something must be refused.
async fn obey(
    session: &Session,
    announced: bool,
    requests: &mut Streaming<pb::SessionRequest>,
    queue: mpsc::UnboundedSender<Piece>,
) -> Status {
    // Bounds the queue.
    let room = Arc::new(Semaphore::new(BACKLOG));
    while let Ok(Some(request)) = requests.message().await {
        let done = match request.kind {
            Some(In::Stdin(_)) if !announced => {
                return Status::invalid_argument("`open` did not say that this client sends stdin");
            }
            Some(In::Stdin(stdin)) => {
                let cost = u32::try_from(stdin.data.len() + PIECE_COST).unwrap_or(u32::MAX);
                let Ok(permit) = Arc::clone(&room).try_acquire_many_owned(cost) else {
                    return Status::out_of_range(format!(
                        "stdin at offset {} is too far ahead: at most 1 MiB may be sent beyond the last `stdin_taken`",
                        stdin.offset
                    ));
                };
                // Where nobody takes it, the session has ended.
                drop(queue.send((stdin, permit)));
                Ok(())
            }
            Some(In::Resize(new)) => session.resize(size(new)).await,
            Some(In::Signal(signal)) => session.signal(signal.number).await,
            Some(In::Kill(_)) => session.kill().await,
            Some(In::Open(_)) => {
                return Status::invalid_argument("`open` is only the first request");
            }
            None => Ok(()),
        };
        if let Err(refused) = put_up_with(done) {
            return refused;
        }
    }
    // The client sends no more, and may still read.
    std::future::pending().await
}

/// Hands the stdin on, until something must be refused.
async fn feed(input: Option<&Input>, mut pieces: mpsc::UnboundedReceiver<Piece>) -> Status {
    while let Some((pb::Stdin { offset, data, end }, _room)) = pieces.recv().await {
        // Without, the session had ended when the client came.
        let Some(input) = input else { continue };
        let sent = input.send(offset, Bytes::from(data), end).await.map(drop);
        if let Err(refused) = put_up_with(sent) {
            return refused;
        }
    }
    std::future::pending().await
}

/// What is no reason to lose the command's end: it ended, or its stdin was closed or taken over, while this was on its way, which
/// is told anyway; or it has no terminal to be resized, which a client that attaches cannot know.
fn put_up_with(done: Result<(), SessionError>) -> Result<(), Status> {
    match done {
        Ok(())
        | Err(
            SessionError::Ended { .. }
            | SessionError::NoTerminal { .. }
            | SessionError::Stdin(StdinError::Closed | StdinError::TakenOver),
        ) => Ok(()),
        Err(error) => Err(status(&error)),
    }
}

/// Tells how far the client's stdin is safe, to the end of the session or of the client's part in its stdin.
pub(super) async fn stdin_taken(
    session: &Session,
    input: Option<&Input>,
    sender: &Sending<pb::SessionResponse>,
) {
    let mut state = session.state();
    let mut told = None;
    while let Some(input) = input {
        let now = match input.look(&state.borrow_and_update()) {
            // What is taken from now on is another client's.
            (_, true) => Some(pb::StdinTaken {
                offset: 0,
                closed: true,
                taken_over: true,
            }),
            (stdin, false) => stdin.map(|stdin| pb::StdinTaken {
                offset: stdin.taken,
                closed: stdin.closed,
                taken_over: false,
            }),
        };
        if let Some(taken) = now.filter(|now| told != Some(*now)) {
            told = now;
            if tell(sender, Out::StdinTaken(taken)).await.is_none() {
                return;
            }
        }
        if now.is_some_and(|now| now.taken_over) || state.changed().await.is_err() {
            break;
        }
    }
    std::future::pending::<()>().await;
}
