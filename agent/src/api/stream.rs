//! Response streams fed by a task, bounded: a slow client slows its task down, and one that has gone ends it.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use tokio::sync::mpsc;
use tonic::Status;

/// Messages that may wait for a client. What comes after them waits where it is: output in the log.
const AHEAD: usize = 1;

/// What a task sends into.
pub(super) type Sending<T> = mpsc::Sender<Result<T, Status>>;

/// What the transport reads from.
pub(super) struct Receiving<T>(mpsc::Receiver<Result<T, Status>>);

/// Both ends of a stream.
pub(super) fn channel<T>() -> (Sending<T>, Receiving<T>) {
    let (sender, receiver) = mpsc::channel(AHEAD);
    (sender, Receiving(receiver))
}

impl<T> Stream for Receiving<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}
