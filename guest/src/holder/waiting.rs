//! What the holder's one poll waits on.

use std::os::fd::AsFd;

use cloche_proto::frame::Stream;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Holder, HolderError};
use crate::core::Serial;

/// Where something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A child changed.
    Children,
    /// The spawner said something, or takes orders again.
    Spawner,
    /// The sandbox was captured or restored.
    Checkpoint,
    /// A bridge came.
    Listener,
    /// The bridge said something.
    Visitor,
    /// The agent said something.
    ChannelIn,
    /// The agent takes more.
    ChannelOut,
    /// It is known whether a command runs.
    Status(Serial),
    /// A command takes input, or closed it.
    Stdin(Serial),
    /// A command wrote to stdout or its terminal, or the terminal takes input.
    Stdout(Serial),
    /// A command wrote to stderr.
    Stderr(Serial),
}

impl Source {
    /// The session that it belongs to.
    pub(super) fn session(self) -> Option<Serial> {
        match self {
            Self::Status(serial)
            | Self::Stdin(serial)
            | Self::Stdout(serial)
            | Self::Stderr(serial) => Some(serial),
            Self::Children
            | Self::Spawner
            | Self::Checkpoint
            | Self::Listener
            | Self::Visitor
            | Self::ChannelIn
            | Self::ChannelOut => None,
        }
    }
}

/// Waits until something happens, or for `limit` milliseconds.
///
/// poll(2) reports the end of a stream whether asked or not; so what cannot be read now, because its buffer is full, and what
/// has ended is left out, or the loop would spin.
pub(super) fn wait(
    holder: &mut Holder,
    limit: Option<u64>,
) -> Result<Vec<(Source, PollFlags)>, HolderError> {
    let input = PollFlags::POLLIN;
    let output = PollFlags::POLLOUT;
    let saying = !holder.core.unwritten().is_empty();
    let ordering = holder.spawner.ready && !holder.spawner.orders.is_empty();
    let mut sources = Vec::new();
    let mut fds = Vec::new();
    let mut add = |source, fd, flags| {
        sources.push(source);
        fds.push(PollFd::new(fd, flags));
    };
    add(Source::Children, holder.children.as_fd(), input);
    add(Source::Listener, holder.listener.as_fd(), input);
    if let Some(socket) = &holder.spawner.socket {
        let flags = if ordering { input | output } else { input };
        add(Source::Spawner, socket.as_fd(), flags);
    }
    if let Some(file) = &holder.checkpoint {
        add(Source::Checkpoint, file.as_fd(), input);
    }
    if let Some(visitor) = &holder.visitor {
        add(Source::Visitor, visitor.as_fd(), input);
    }
    // Sessions need what the spawner brings when it is ready; one that was lost is told of by every answer.
    let settled = holder.spawner.ready || holder.spawner.socket.is_none();
    if let Some(fd) = holder.channel.input().filter(|_| settled) {
        add(Source::ChannelIn, fd, input);
    }
    if let Some(fd) = holder.channel.output().filter(|_| saying) {
        add(Source::ChannelOut, fd, output);
    }
    for (serial, streams) in &holder.streams {
        let Some(session) = holder.core.session(*serial) else {
            continue;
        };
        if let Some(fd) = streams.status() {
            add(Source::Status(*serial), fd, input);
        }
        let feeding = !session.stdin().pending().is_empty() || session.stdin().is_over();
        let feed = if feeding { output } else { PollFlags::empty() };
        if let Some(fd) = streams.stdin() {
            add(Source::Stdin(*serial), fd, feed);
        }
        let room = |stream| session.output(stream).room() > 0;
        if let Some(fd) = streams.stdout() {
            let mut flags = PollFlags::empty();
            flags.set(input, room(Stream::Stdout));
            if streams.terminal().is_some() && !streams.is_hung() {
                flags |= feed;
            }
            if !flags.is_empty() {
                add(Source::Stdout(*serial), fd, flags);
            }
        }
        if let Some(fd) = streams.stderr().filter(|_| room(Stream::Stderr)) {
            add(Source::Stderr(*serial), fd, input);
        }
    }
    let timeout = limit.map_or(PollTimeout::NONE, |limit| {
        PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)
    });
    match poll(&mut fds, timeout) {
        Ok(_) => {}
        Err(Errno::EINTR) => return Ok(Vec::new()),
        Err(source) => return Err(HolderError::new("waiting", source)),
    }
    Ok(sources
        .into_iter()
        .zip(fds)
        .filter_map(|(source, fd)| {
            let flags = fd.revents().unwrap_or(PollFlags::POLLERR);
            (!flags.is_empty()).then_some((source, flags))
        })
        .collect())
}
