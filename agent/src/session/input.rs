//! A client's way to a session's stdin.

use bytes::Bytes;
use cloche_proto::frame::MAX_STREAM_BUFFER;
use tokio::sync::watch;

use super::error::SessionError;
use super::handle::Session;
use super::request::Request;
use super::state::{SessionState, StdinState};
use super::stdin::StdinError;

/// Bytes of stdin handed to the channel at once.
const PIECE: usize = 256 * 1024;

/// The right to send a session's stdin. Only the newest one of a session counts: two clients that each number their bytes from
/// where they began would overwrite each other.
#[derive(Clone, Debug)]
pub struct Input {
    session: Session,
    /// The number of this one among those of its session.
    number: u64,
}

impl Input {
    pub(super) fn new(session: Session, number: u64) -> Self {
        Self { session, number }
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The stdin's state, and whether another client has taken it over; from `state`, which is the session's.
    pub fn look(&self, state: &SessionState) -> (Option<StdinState>, bool) {
        (state.stdin, state.input != self.number)
    }

    /// Waits until it is known how far stdin is, and tells; nothing where the session ends before, or stdin is a later one's.
    pub async fn known(&self) -> Option<StdinState> {
        let mut state = self.session.state();
        let known = state
            .wait_for(|state| state.stdin.is_some() || state.ended.is_some() || self.look(state).1);
        let (stdin, taken_over) = self.look(&*known.await.ok()?);
        stdin.filter(|_| !taken_over)
    }

    /// Sends `bytes` that begin at `offset`, then the end where `end` is set. Returns once the agent took all of it, which it does
    /// as the sandbox takes what came before (1 MiB is on the way at most); the bytes are safe once [`StdinState::taken`] has
    /// passed them. Repeats are skipped. Cancel safe: go on at [`StdinState::accepted`].
    pub async fn send(&self, offset: u64, bytes: Bytes, end: bool) -> Result<u64, SessionError> {
        let mut state = self.session.state();
        let mut offset = offset;
        let mut rest = bytes;
        loop {
            self.room(&mut state).await?;
            let piece = rest.slice(..rest.len().min(PIECE));
            let last = piece.len() == rest.len();
            let (id, bytes) = (self.session.id().clone(), piece.clone());
            let accepted = self
                .session
                .ask(|reply| Request::Stdin {
                    id,
                    input: self.number,
                    offset,
                    bytes,
                    end: end && last,
                    reply,
                })
                .await??;
            // What it had before is skipped, as far as this piece goes.
            let taken = usize::try_from(accepted.saturating_sub(offset))
                .unwrap_or(usize::MAX)
                .min(piece.len());
            offset += taken as u64;
            rest = rest.slice(taken..);
            if rest.is_empty() {
                return Ok(accepted);
            }
        }
    }

    /// Waits for room; also for what is not known yet after a restart of the agent.
    async fn room(&self, state: &mut watch::Receiver<SessionState>) -> Result<(), SessionError> {
        let state = state
            .wait_for(|state| {
                state.ended.is_some()
                    || self.look(state).1
                    || state.stdin.is_some_and(|stdin| {
                        stdin.closed || stdin.accepted - stdin.taken < MAX_STREAM_BUFFER as u64
                    })
            })
            .await
            .map_err(|_| SessionError::ShuttingDown)?;
        if state.ended.is_some() {
            let id = self.session.id().clone();
            return Err(SessionError::Ended { id });
        }
        if self.look(&state).1 {
            return Err(StdinError::TakenOver.into());
        }
        Ok(())
    }
}
