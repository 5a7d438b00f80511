//! The local side: the terminal's mode and size, stdin, stdout and stderr, signals.

mod events;
mod input;
mod raw;
mod sink;

use std::os::fd::AsFd;

use cloche_proto::agent::v1alpha1::TerminalSize;

pub(crate) use events::{Event, Events, asks_to_go, is_hangup};
pub(crate) use input::{CHUNK as INPUT_CHUNK, Input};
pub(crate) use raw::RawMode;
pub(crate) use sink::{Piece, Sink, notice};

/// What a terminal of unknown size is taken for.
const USUAL_SIZE: TerminalSize = TerminalSize {
    rows: 24,
    columns: 80,
};

/// Size of the local terminal: that of the first of stdin, stdout and stderr that is one.
pub(crate) fn size() -> TerminalSize {
    fn of(fd: impl AsFd) -> Option<TerminalSize> {
        let size = rustix::termios::tcgetwinsize(fd).ok()?;
        // 0 by 0: a terminal that nobody gave a size.
        (size.ws_row > 0 && size.ws_col > 0).then(|| TerminalSize {
            rows: size.ws_row.into(),
            columns: size.ws_col.into(),
        })
    }
    of(std::io::stdin())
        .or_else(|| of(std::io::stdout()))
        .or_else(|| of(std::io::stderr()))
        .unwrap_or(USUAL_SIZE)
}

/// Waits until `fd` can be read or written. Only for descriptors that somebody else set non-blocking.
fn wait_for(fd: impl AsFd, flags: rustix::event::PollFlags) -> std::io::Result<()> {
    let mut fds = [rustix::event::PollFd::new(&fd, flags)];
    match rustix::event::poll(&mut fds, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(problem) => Err(problem.into()),
    }
}
