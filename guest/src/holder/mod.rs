//! PID 1 of the container `main`: holds the sessions' buffers, ends and groups, and the channel to the agent. It carries out what
//! [`crate::core`] decides, and never waits for anything but in its one poll.

mod channel;
mod setup;
mod start;
mod streams;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use cloche_proto::frame::{ExitCause, SessionSpec, SignalScope, Stream};
use nix::errno::Errno;
use nix::libc;
use nix::poll::PollFlags;
use nix::sys::signalfd::SignalFd;
use nix::unistd::{Pid, read};

pub use start::{HolderError, run};

use crate::bridge;
use crate::clock::{RunningTime, TICK, monotonic_ms};
use crate::core::{Core, Effect, Failure, Serial, Session};
use crate::group::Groups;
use crate::sys::{process, socket, terminal};
use crate::wire::{self, Notice, Order};
use channel::{Channel, Heard};
use setup::Root;
use streams::{Parcel, Streams};
use waiting::Source;

/// Bytes read at once, of the channel and of a command.
const BLOCK: usize = 128 * 1024;
/// Bytes read of all commands in one round, so that the channel is looked at often however much they write.
const ROUND: usize = 1024 * 1024;
/// Orders kept while the spawner takes none. Sessions are bounded; of signals beyond this the oldest go.
const MAX_ORDERS: usize = 2048;
/// The longest wait between two rounds of killing, in milliseconds.
const KILL_PAUSE: u64 = 256;

struct Holder {
    core: Core,
    time: RunningTime,
    now: u64,
    channel: Channel,
    groups: Groups,
    children: SignalFd,
    checkpoint: Option<File>,
    listener: OwnedFd,
    visitor: Option<OwnedFd>,
    spawner: Spawner,
    streams: BTreeMap<Serial, Streams>,
    /// Trees being killed, and in how many rounds until now.
    killing: BTreeMap<Serial, u32>,
    hostname: Option<String>,
    root: Root,
    /// Why it could not be set up.
    fault: Option<String>,
    /// The session whose output was read last.
    cursor: Serial,
    scratch: Vec<u8>,
}

struct Spawner {
    pid: Pid,
    /// `None` once it is gone.
    socket: Option<OwnedFd>,
    ready: bool,
    terminals: Option<OwnedFd>,
    orders: VecDeque<(Order, Parcel)>,
}

impl Holder {
    fn run(&mut self) -> Result<(), HolderError> {
        loop {
            let limit = self.patience();
            let ready = waiting::wait(self, limit)?;
            let bounded = limit.is_some_and(|limit| limit <= TICK);
            self.now = self.time.advance(monotonic_ms(), bounded);
            let is_ready = |source| ready.iter().any(|(known, _)| *known == source);

            // First: after a restore the channel's bytes are other bytes.
            if is_ready(Source::Checkpoint) {
                self.checkpointed();
            }
            // Calls are dear in gVisor: what has nothing to say is not asked.
            if is_ready(Source::Children) {
                self.watch_children();
            }
            if is_ready(Source::Listener) {
                self.visitor = socket::accept(self.listener.as_fd()).ok();
            } else if is_ready(Source::Visitor) {
                self.receive_channel();
            }
            if is_ready(Source::ChannelIn) {
                self.hear();
            }
            // Before the status pipes: a process is told of before its pipe can end.
            let starting = |source: &Source| matches!(source, Source::Spawner | Source::Status(_));
            if ready.iter().any(|(source, _)| starting(source)) {
                self.hear_spawner();
            }
            let serials: BTreeSet<Serial> = ready
                .iter()
                .filter_map(|(source, _)| source.session())
                .collect();
            for serial in &serials {
                self.settle(*serial);
            }
            self.exchange(&ready);

            let overdue = self.core.overdue(self.now);
            self.carry_out(overdue);
            self.kill_round();
            self.send_orders();
            self.say();
        }
    }

    /// How long nothing needs to be looked at, in milliseconds; `None`: until something happens.
    fn patience(&self) -> Option<u64> {
        let deadline = self
            .core
            .next_deadline()
            .map(|deadline| deadline.saturating_sub(self.now).min(TICK));
        let killing = self
            .killing
            .values()
            .map(|rounds| (1 << (*rounds).min(16)).min(KILL_PAUSE))
            .min();
        deadline.into_iter().chain(killing).min()
    }

    /// The sandbox was captured, or restored from a capture: then the donated pipes are new ones.
    fn checkpointed(&mut self) {
        let mut word = [0; 16];
        let count = self
            .checkpoint
            .as_ref()
            .and_then(|file| read(file, &mut word).ok())
            .unwrap_or(0);
        // Tells of one capture each time that it is opened. The old one stays where no other can be had, and tells again.
        if let Some(next) = start::open_checkpoint() {
            self.checkpoint = Some(next);
        }
        if word[..count].starts_with(b"restore") {
            self.time.rebase();
            self.visitor = None;
            self.channel.return_to_donated();
            self.core.reset_channel();
        }
    }

    fn watch_children(&mut self) {
        // Drained before looking: a child that changes after the look makes it readable again.
        while let Ok(Some(_)) = self.children.read_signal() {}
        while let Ok(Some(change)) = process::reap() {
            match change {
                process::Change::Stopped(pid) if pid == self.spawner.pid => {
                    // From inside; it cannot be kept from being stopped, only from staying so.
                    let _continued = process::kill(pid, libc::SIGCONT).is_ok();
                }
                process::Change::Ended(pid, status)
                    if pid == self.spawner.pid && self.spawner.socket.is_some() =>
                {
                    // What it said before, first.
                    self.hear_spawner();
                    self.lose_spawner(status);
                }
                process::Change::Stopped(_) | process::Change::Ended(..) => {}
            }
        }
    }

    fn lose_spawner(&mut self, status: i32) {
        self.spawner.socket = None;
        self.spawner.orders.clear();
        for (serial, streams) in &self.streams {
            self.core
                .exited(*serial, libc::SIGKILL, streams.pending(), self.now);
            self.killing.insert(*serial, 0);
        }
        let how = if libc::WIFSIGNALED(status) {
            format!("by signal {}", libc::WTERMSIG(status))
        } else {
            format!("with code {}", libc::WEXITSTATUS(status))
        };
        let message =
            format!("init was killed from inside: the process of all sessions ended {how}");
        self.core.spawner_killed(message, self.now);
    }

    fn receive_channel(&mut self) {
        let Some(visitor) = self.visitor.take() else {
            return;
        };
        let mut word = [0; 1];
        let Ok((_, fds)) = socket::receive(visitor.as_fd(), &mut word) else {
            return;
        };
        let Ok([input, output]) = <[OwnedFd; 2]>::try_from(fds) else {
            return;
        };
        let _raised = start::raise_files().is_ok();
        self.channel.adopt(input, output);
        self.core.reset_channel();
        // Should it be gone already, the agent finds out by its hello.
        let _told = socket::send(visitor.as_fd(), bridge::TAKEN, &[]).is_ok();
    }

    fn hear(&mut self) {
        match self.channel.read(&mut self.scratch[..BLOCK]) {
            Heard::Bytes(count) => {
                let effects = self.core.receive(&self.scratch[..count], self.now);
                if let Ok(effects) = effects {
                    self.carry_out(effects);
                } else {
                    self.hang_up();
                }
            }
            Heard::Nothing => {}
            Heard::End => self.hang_up(),
        }
    }

    fn hang_up(&mut self) {
        self.channel.hang_up();
        self.core.reset_channel();
    }

    fn say(&mut self) {
        let mut budget = ROUND;
        while self.channel.output().is_some() {
            let bytes = self.core.unwritten();
            if bytes.is_empty() || budget == 0 {
                return;
            }
            match self.channel.write(bytes) {
                Ok(0) => return,
                Ok(count) => {
                    self.core.wrote(count);
                    budget = budget.saturating_sub(count);
                }
                Err(_) => self.hang_up(),
            }
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Spawn(serial, spec) => self.spawn(serial, &spec),
                Effect::Signal(serial, signal, scope) => self.signal(serial, signal, scope),
                Effect::Kill(serial) => {
                    self.killing.insert(serial, 0);
                }
                Effect::Resize(serial, size) => {
                    if let Some(tty) = self.streams.get(&serial).and_then(Streams::terminal) {
                        let _resized = terminal::resize(tty, size.rows, size.columns).is_ok();
                    }
                }
                Effect::Drop(serial) => {
                    self.streams.remove(&serial);
                    self.killing.remove(&serial);
                    self.groups.release(serial);
                }
                Effect::Setup(setup) => self.set_up(setup),
            }
        }
    }

    fn spawn(&mut self, serial: Serial, spec: &SessionSpec) {
        if let Some(why) = &self.fault {
            let message = format!("the sandbox could not be set up: {why}");
            let failure = Failure::new(ExitCause::SetupFailed, message);
            self.core.failed(serial, &failure, self.now);
            return;
        }
        let opened = self
            .groups
            .create(serial)
            .map_err(|error| {
                let why = error.desc().to_lowercase();
                Failure::new(ExitCause::NoResources, format!("making its group: {why}"))
            })
            .and_then(|group| {
                let terminals = self.spawner.terminals.as_ref().map(AsFd::as_fd);
                Streams::open(spec, group, terminals)
            });
        match opened {
            Ok((streams, parcel)) => {
                self.streams.insert(serial, streams);
                self.order(Order::Spawn(serial), parcel);
            }
            Err(failure) => self.core.failed(serial, &failure, self.now),
        }
    }

    fn signal(&mut self, serial: Serial, signal: i32, scope: SignalScope) {
        if self.is_starting(serial) {
            // It may run by now: what the spawner said of it first, as in every round.
            self.hear_spawner();
            self.settle(serial);
        }
        let starting = self.is_starting(serial);
        let Some(streams) = self.streams.get_mut(&serial) else {
            return;
        };
        let scope = match scope {
            // Until it is known to run it may have neither joined its group nor become the leader of a process group, and its
            // terminal has nobody in front. The command is all that there is, and what it gets now waits until it takes signals.
            SignalScope::Tree | SignalScope::Foreground if starting => SignalScope::Leader,
            SignalScope::Tree => {
                self.groups.signal(serial, signal);
                return;
            }
            SignalScope::Foreground if streams.press_key(signal) => return,
            SignalScope::Foreground | SignalScope::Leader | SignalScope::Unspecified => scope,
        };
        self.order(Order::Signal(serial, signal, scope), Parcel::new());
    }

    /// Whether it is not known yet that the command runs, nor that it does not.
    fn is_starting(&self, serial: Serial) -> bool {
        self.streams
            .get(&serial)
            .is_some_and(|streams| streams.status().is_some())
    }

    fn order(&mut self, order: Order, parcel: Parcel) {
        if self.spawner.orders.len() >= MAX_ORDERS
            && let Some(oldest) = self
                .spawner
                .orders
                .iter()
                .position(|(order, _)| matches!(order, Order::Signal(..)))
        {
            self.spawner.orders.remove(oldest);
        }
        self.spawner.orders.push_back((order, parcel));
    }

    fn send_orders(&mut self) {
        let Some(socket) = self.spawner.socket.as_ref().filter(|_| self.spawner.ready) else {
            return;
        };
        while let Some((order, parcel)) = self.spawner.orders.front() {
            let fds: Vec<_> = parcel.iter().map(AsFd::as_fd).collect();
            match socket::send(socket.as_fd(), &order.encode(), &fds) {
                // Of the spawner's end waitpid tells.
                Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::EPIPE | Errno::ECONNRESET) => return,
                Ok(()) => {}
                Err(error) => {
                    if *order == Order::ReadOnlyRoot {
                        self.spawner.orders.pop_front();
                        self.hear_of_root(error as i32, -1);
                        return;
                    }
                    if let Order::Spawn(serial) = *order {
                        let why = error.desc().to_lowercase();
                        let message = format!("handing it to the spawner: {why}");
                        let failure = Failure::new(ExitCause::NoResources, message);
                        self.core.failed(serial, &failure, self.now);
                        self.streams.remove(&serial);
                    }
                }
            }
            self.spawner.orders.pop_front();
        }
    }

    fn hear_spawner(&mut self) {
        while let Some(socket) = &self.spawner.socket {
            let mut bytes = [0; wire::LENGTH];
            let Ok((length @ 1.., fds)) = socket::receive(socket.as_fd(), &mut bytes) else {
                return;
            };
            match Notice::decode(&bytes[..length]) {
                Some(Notice::Ready) => {
                    self.spawner.ready = true;
                    self.spawner.terminals = fds.into_iter().next();
                }
                Some(Notice::Spawned(serial, pid)) => self.core.spawned(serial, pid),
                Some(Notice::NotSpawned(serial, error)) => {
                    let why = Errno::from_raw(error).desc().to_lowercase();
                    let failure =
                        Failure::new(ExitCause::NoResources, format!("making a process: {why}"));
                    self.core.failed(serial, &failure, self.now);
                    self.streams.remove(&serial);
                }
                Some(Notice::RootDone(error, path)) => self.hear_of_root(error, path),
                Some(Notice::Exited(serial, status)) => {
                    self.settle(serial);
                    if let Some(streams) = self.streams.get(&serial) {
                        self.core
                            .exited(serial, status, streams.pending(), self.now);
                    }
                }
                None => {}
            }
        }
    }

    /// Finds out whether the command runs, if that is still open.
    fn settle(&mut self, serial: Serial) {
        match self.streams.get_mut(&serial).and_then(Streams::outcome) {
            Some(Ok(())) => self.core.started(serial),
            Some(Err(failure)) => {
                self.core.failed(serial, &failure, self.now);
                self.streams.remove(&serial);
            }
            None => {}
        }
    }

    fn kill_round(&mut self) {
        let groups = &self.groups;
        let core = &self.core;
        self.killing.retain(|serial, rounds| {
            *rounds = rounds.saturating_add(1);
            let left = groups.kill(*serial);
            // Until its end is told a command may be about to join its group.
            left || core.session(*serial).is_some_and(Session::is_alive)
        });
    }

    /// Moves bytes of the ready streams, beginning behind the session that came last, until the round's bytes are used up.
    fn exchange(&mut self, ready: &[(Source, PollFlags)]) {
        let mut turns: Vec<_> = ready
            .iter()
            .filter_map(|(source, flags)| Some((source.session()?, *source, *flags)))
            .collect();
        let cursor = self.cursor;
        turns.sort_by_key(|(serial, ..)| (*serial <= cursor, *serial));
        let mut budget = ROUND;
        for (serial, source, flags) in turns {
            match source {
                Source::Stdin(_) => self.feed(serial, flags),
                Source::Stdout(_) | Source::Stderr(_) => {
                    if source == Source::Stdout(serial) && flags.contains(PollFlags::POLLOUT) {
                        self.feed(serial, PollFlags::POLLOUT);
                    }
                    if budget == 0 {
                        continue;
                    }
                    let stream = match source {
                        Source::Stderr(_) => Stream::Stderr,
                        _ => Stream::Stdout,
                    };
                    budget = budget.saturating_sub(self.drain(serial, stream, flags));
                    self.cursor = serial;
                }
                _ => {}
            }
        }
    }

    fn feed(&mut self, serial: Serial, flags: PollFlags) {
        let (Some(streams), Some(session)) =
            (self.streams.get_mut(&serial), self.core.session(serial))
        else {
            return;
        };
        let pending = session.stdin().pending();
        if !pending.is_empty() && flags.contains(PollFlags::POLLOUT) {
            if let Ok(count) = streams.feed(pending) {
                self.core.stdin_drained(serial, count);
            } else {
                streams.close_stdin();
                self.core.stdin_closed(serial);
                return;
            }
        } else if flags.contains(PollFlags::POLLERR) {
            streams.close_stdin();
            self.core.stdin_closed(serial);
            return;
        }
        self.end_input(serial);
    }

    fn end_input(&mut self, serial: Serial) {
        let is_over = self
            .core
            .session(serial)
            .is_some_and(|session| session.stdin().is_over());
        if is_over
            && self
                .streams
                .get_mut(&serial)
                .is_some_and(Streams::end_input)
        {
            self.core.stdin_closed(serial);
        }
    }

    /// Reads one block of a command's output; tells how many bytes those were.
    fn drain(&mut self, serial: Serial, stream: Stream, flags: PollFlags) -> usize {
        let (Some(streams), Some(session)) =
            (self.streams.get_mut(&serial), self.core.session(serial))
        else {
            return 0;
        };
        if flags.contains(PollFlags::POLLHUP) {
            streams.hang();
        }
        let fd = match stream {
            Stream::Stderr => streams.stderr(),
            _ => streams.stdout(),
        };
        let room = session.output(stream).room().min(BLOCK);
        let Some(fd) = fd.filter(|_| room > 0) else {
            return 0;
        };
        match read(fd, &mut self.scratch[..room]) {
            Ok(count) if count > 0 => {
                self.core.output(serial, stream, &self.scratch[..count]);
                count
            }
            Err(Errno::EAGAIN | Errno::EINTR) => 0,
            // EIO is how a terminal says that nobody has it open.
            Ok(_) | Err(_) => {
                match stream {
                    Stream::Stderr => streams.close_stderr(),
                    _ => streams.close_stdout(),
                }
                self.core.output_ended(serial, stream);
                0
            }
        }
    }
}
