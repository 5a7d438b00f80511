//! Signals to this process, and what they mean for the command.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Something that the user or the system did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A signal, by its number, for the command.
    Signal(i32),
    /// The local terminal has another size.
    Resized,
}

/// The signals that are passed on, caught from now on until the process ends: none of them leaves the terminal in raw mode
/// or a sandbox of `run --rm` behind.
#[derive(Debug)]
pub(crate) struct Events {
    interrupt: Signal,
    terminate: Signal,
    quit: Signal,
    hangup: Signal,
    user1: Signal,
    user2: Signal,
    resized: Signal,
}

impl Events {
    /// Begins to catch.
    pub(crate) fn start() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::quit())?,
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
            resized: signal(SignalKind::window_change())?,
        })
    }

    /// The next one. Cancel safe, because `Signal::recv` is.
    pub(crate) async fn next(&mut self) -> Event {
        let kind = tokio::select! {
            Some(()) = self.interrupt.recv() => SignalKind::interrupt(),
            Some(()) = self.terminate.recv() => SignalKind::terminate(),
            Some(()) = self.quit.recv() => SignalKind::quit(),
            Some(()) = self.hangup.recv() => SignalKind::hangup(),
            Some(()) = self.user1.recv() => SignalKind::user_defined1(),
            Some(()) = self.user2.recv() => SignalKind::user_defined2(),
            Some(()) = self.resized.recv() => return Event::Resized,
            // All streams ended: the runtime is gone, and so is whoever waits here.
            else => return std::future::pending().await,
        };
        Event::Signal(kind.as_raw_value())
    }
}

/// Whether a signal asks this program to go, rather than telling the command something.
pub(crate) fn asks_to_go(number: i32) -> bool {
    [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::quit(),
    ]
    .iter()
    .any(|kind| kind.as_raw_value() == number)
}

/// SIGHUP: the user's terminal is gone.
pub(crate) fn is_hangup(number: i32) -> bool {
    number == SignalKind::hangup().as_raw_value()
}
