//! A client's WebSocket: what is heard, what is said, bounded both ways, and kept alive.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use bytes::Bytes;
use futures::{Sink as _, Stream as _};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// How often a sign of life is sent: proxies and load balancers cut what is silent for a minute.
const PING: Duration = Duration::from_secs(30);
/// How long a client may take to read what is said last.
const FAREWELL: Duration = Duration::from_mins(1);
/// How long a client that was told the end may take to close. Cut off before, it may lose what was told last.
const LINGER: Duration = Duration::from_secs(5);

/// What comes of a client.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A binary message.
    Binary(Bytes),
    /// A text message.
    Text,
    /// It has taken everything that was said: there is room for more.
    Room,
    /// It breaks the protocol; more cannot be read. Why.
    Wrong(String),
    /// It has closed, or is gone.
    Left,
}

/// A client. All of its state is in here, so that waiting for it can be given up at any point.
pub(crate) struct Client {
    socket: WebSocket,
    /// Said, and not taken by the socket yet.
    waiting: VecDeque<Message>,
    /// The socket holds something that is not written.
    unflushed: bool,
    ping: Interval,
}

impl Client {
    /// Of an upgraded connection.
    pub(crate) fn new(socket: WebSocket) -> Self {
        let mut ping = interval_at(Instant::now() + PING, PING);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            socket,
            waiting: VecDeque::new(),
            unflushed: false,
            ping,
        }
    }

    /// Whether all that was said is written. Who says more before makes it wait here.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.is_empty() && !self.unflushed
    }

    /// Says something; it is written while [`Self::next`] is waited for.
    pub(crate) fn say(&mut self, message: Message) {
        self.waiting.push_back(message);
    }

    /// Waits for the client, and meanwhile writes. With `listen` false nothing is read of it. Cancel safe.
    pub(crate) async fn next(&mut self, listen: bool) -> Heard {
        poll_fn(|context| self.poll(context, listen)).await
    }

    fn poll(&mut self, context: &mut Context<'_>, listen: bool) -> Poll<Heard> {
        let had_room = self.has_room();
        if self.ping.poll_tick(context).is_ready() {
            // The next tick has to wake this task too.
            while self.ping.poll_tick(context).is_ready() {}
            self.give_a_sign(listen);
        }
        if let Poll::Ready(Err(_)) = self.poll_write(context) {
            return Poll::Ready(Heard::Left);
        }
        if listen {
            match Pin::new(&mut self.socket).poll_next(context) {
                Poll::Ready(Some(Ok(message))) => match message {
                    Message::Binary(data) => return Poll::Ready(Heard::Binary(data)),
                    Message::Text(_) => return Poll::Ready(Heard::Text),
                    Message::Close(_) => {
                        // Its echo, as far as it can be written now: the client waits for no more than that.
                        drop(Pin::new(&mut self.socket).poll_flush(context));
                        return Poll::Ready(Heard::Left);
                    }
                    // Answered by the socket itself; its answer must be flushed.
                    Message::Ping(_) => {
                        self.unflushed = true;
                        context.waker().wake_by_ref();
                    }
                    Message::Pong(_) => context.waker().wake_by_ref(),
                },
                Poll::Ready(Some(Err(error))) => return Poll::Ready(fault(&error)),
                Poll::Ready(None) => return Poll::Ready(Heard::Left),
                Poll::Pending => {}
            }
        }
        if !had_room && self.has_room() {
            return Poll::Ready(Heard::Room);
        }
        Poll::Pending
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        let mut socket = Pin::new(&mut self.socket);
        while !self.waiting.is_empty() {
            match socket.as_mut().poll_ready(context)? {
                Poll::Ready(()) => {}
                Poll::Pending => return Poll::Pending,
            }
            if let Some(message) = self.waiting.pop_front() {
                self.unflushed = true;
                socket.as_mut().start_send(message)?;
            }
        }
        if self.unflushed {
            match socket.poll_flush(context)? {
                Poll::Ready(()) => self.unflushed = false,
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// One ping at a time. A client that is not listened to gets no answer to its own pings, and kubectl leaves after a minute
    /// without one, so it is given one unasked.
    fn give_a_sign(&mut self, listen: bool) {
        if self.has_room() {
            self.waiting.push_back(Message::Ping(Bytes::new()));
            if !listen {
                self.waiting.push_back(Message::Pong(Bytes::new()));
            }
        }
    }

    /// Says the last things and closes; waits until they are read, within bounds.
    pub(crate) async fn finish(mut self, last: impl IntoIterator<Item = Message>, normal: bool) {
        self.waiting.extend(last);
        let code = if normal {
            close_code::NORMAL
        } else {
            close_code::ERROR
        };
        self.waiting.push_back(Message::Close(Some(CloseFrame {
            code,
            reason: "".into(),
        })));
        let written = async {
            while !self.has_room() {
                if matches!(self.next(false).await, Heard::Left) {
                    return false;
                }
            }
            true
        };
        if !tokio::time::timeout(FAREWELL, written)
            .await
            .unwrap_or(false)
        {
            return;
        }
        let closed =
            async { while !matches!(self.next(true).await, Heard::Left | Heard::Wrong(_)) {} };
        // Late or not: everything was said.
        drop(tokio::time::timeout(LINGER, closed).await);
    }
}

/// What an error of the socket means: a breach of the protocol is told, a connection that broke is not.
fn fault(error: &axum::Error) -> Heard {
    let text = error.to_string();
    let is_gone = std::error::Error::source(error)
        .and_then(std::error::Error::source)
        .is_some_and(<dyn std::error::Error>::is::<std::io::Error>)
        || text.contains("without closing handshake");
    if is_gone {
        Heard::Left
    } else {
        Heard::Wrong(text)
    }
}
