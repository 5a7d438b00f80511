//! What the holder has open for one session.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cloche_proto::frame::{ExitCause, SessionSpec, TerminalSize};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, openat};
use nix::libc;
use nix::sys::stat::Mode;
use nix::sys::termios::{LocalFlags, SpecialCharacterIndices, tcgetattr};
use nix::unistd::{pipe2, read, write};

use crate::core::Failure;
use crate::launch;
use crate::letter;
use crate::sys::terminal;

/// Bytes that a command may write before the holder reads them.
const PIPE: i32 = 1024 * 1024;
/// The longest record of why a command did not start.
const MAX_RECORD: usize = 1 + cloche_proto::frame::MAX_MESSAGE;

/// The holder's ends. What is `None` was closed by either side.
#[derive(Debug)]
pub(super) struct Streams {
    status: Option<OwnedFd>,
    record: Vec<u8>,
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    terminal: bool,
    /// The terminal's other side is closed by all: only what it still holds can be read.
    hung: bool,
    last_input: u8,
}

/// What goes to the spawner with the order to start a session, in this order.
pub(super) type Parcel = Vec<OwnedFd>;

fn short_of(error: Errno) -> Failure {
    let cause = match error {
        Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::EAGAIN | Errno::ENOSPC => {
            ExitCause::NoResources
        }
        _ => ExitCause::SetupFailed,
    };
    let why = error.desc().to_lowercase();
    Failure::new(cause, format!("making its streams: {why}"))
}

impl Streams {
    /// Makes everything that a session needs. `group` is the member list of its group, `terminals` the devpts that it sees.
    pub(super) fn open(
        spec: &SessionSpec,
        group: OwnedFd,
        terminals: Option<BorrowedFd<'_>>,
    ) -> Result<(Self, Parcel), Failure> {
        let (status, status_in) = pipe(true).map_err(short_of)?;
        let mut streams = Self {
            status: Some(status),
            record: Vec::new(),
            stdin: None,
            stdout: None,
            stderr: None,
            terminal: spec.terminal.is_some(),
            hung: false,
            last_input: b'\n',
        };
        let mut parcel = vec![status_in, letter::write(spec).map_err(short_of)?, group];
        if let Some(size) = spec.terminal {
            let directory = terminals.ok_or_else(|| {
                Failure::new(ExitCause::SetupFailed, "the sandbox has no /dev/pts")
            })?;
            let (master, other) = open_terminal(directory, size).map_err(short_of)?;
            streams.stdout = Some(master);
            parcel.push(other);
            return Ok((streams, parcel));
        }
        if spec.stdin {
            let (read, write) = pipe(false).map_err(short_of)?;
            streams.stdin = Some(write);
            parcel.push(read);
        }
        for end in [&mut streams.stdout, &mut streams.stderr] {
            let (read, write) = pipe(true).map_err(short_of)?;
            // A smaller pipe works as well, only slower.
            let _grown = fcntl(&read, FcntlArg::F_SETPIPE_SZ(PIPE)).is_ok();
            *end = Some(read);
            parcel.push(write);
        }
        Ok((streams, parcel))
    }

    /// Says whether the command runs, once that is known; `None` until then. Known once, told once.
    pub(super) fn outcome(&mut self) -> Option<Result<(), Failure>> {
        let status = self.status.as_ref()?;
        let mut buffer = [0; MAX_RECORD];
        match read(status, &mut buffer) {
            Ok(count) if count > 0 => {
                let room = MAX_RECORD - self.record.len().min(MAX_RECORD);
                self.record.extend_from_slice(&buffer[..count.min(room)]);
                // One write makes the record; its end may not be seen yet.
                self.status = None;
            }
            Err(Errno::EAGAIN | Errno::EINTR) => return None,
            Ok(_) | Err(_) => self.status = None,
        }
        Some(launch::read_record(&self.record).map_or(Ok(()), Err))
    }

    /// What tells of [`Self::outcome`].
    pub(super) fn status(&self) -> Option<BorrowedFd<'_>> {
        self.status.as_ref().map(AsFd::as_fd)
    }

    /// The end of the pipe that the command reads, where it has one.
    pub(super) fn stdin(&self) -> Option<BorrowedFd<'_>> {
        self.stdin.as_ref().map(AsFd::as_fd)
    }

    /// The terminal, or what the command's stdout is.
    pub(super) fn stdout(&self) -> Option<BorrowedFd<'_>> {
        self.stdout.as_ref().map(AsFd::as_fd)
    }

    /// What the command's stderr is.
    pub(super) fn stderr(&self) -> Option<BorrowedFd<'_>> {
        self.stderr.as_ref().map(AsFd::as_fd)
    }

    /// The terminal.
    pub(super) fn terminal(&self) -> Option<BorrowedFd<'_>> {
        self.stdout().filter(|_| self.terminal)
    }

    /// Whether the terminal is worth waiting on for something else than its last output.
    pub(super) fn is_hung(&self) -> bool {
        self.hung
    }

    /// The terminal's other side was closed by all.
    pub(super) fn hang(&mut self) {
        self.hung = true;
    }

    /// Bytes of stdout and stderr that are still to be read.
    pub(super) fn pending(&self) -> [usize; 2] {
        [self.stdout(), self.stderr()].map(|fd| fd.map_or(0, terminal::pending))
    }

    /// Gives the command what it takes of `bytes` now; an error means that it takes no more at all.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> nix::Result<usize> {
        let fd = self.stdin().or(self.terminal()).ok_or(Errno::EPIPE)?;
        match write(fd, bytes) {
            Ok(count) => {
                self.last_input = count
                    .checked_sub(1)
                    .and_then(|last| bytes.get(last).copied())
                    .unwrap_or(self.last_input);
                Ok(count)
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Ends the command's input: a pipe is closed, a terminal is given its end-of-file character (twice where a line was begun,
    /// as a person would). False where the terminal cannot take it now.
    pub(super) fn end_input(&mut self) -> bool {
        self.stdin = None;
        let Some(tty) = self.terminal() else {
            return true;
        };
        let Ok(settings) = tcgetattr(tty) else {
            return true;
        };
        let end = settings.control_chars[SpecialCharacterIndices::VEOF as usize];
        let line_begun = self.last_input != b'\n'
            && self.last_input != end
            && settings.local_flags.contains(LocalFlags::ICANON);
        let bytes = [end, end];
        let count = if line_begun { 2 } else { 1 };
        !matches!(write(tty, &bytes[..count]), Err(Errno::EAGAIN))
    }

    /// The command takes no input any more.
    pub(super) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// No writer is left.
    pub(super) fn close_stdout(&mut self) {
        self.stdout = None;
    }

    /// No writer is left.
    pub(super) fn close_stderr(&mut self) {
        self.stderr = None;
    }

    /// Sends a key's signal as the key press would, through the terminal: so it reaches the foreground process group, which the
    /// kernel tells to nobody outside of the terminal's session. False where no key means it now.
    pub(super) fn press_key(&mut self, signal: i32) -> bool {
        let key = match signal {
            libc::SIGINT => SpecialCharacterIndices::VINTR,
            libc::SIGQUIT => SpecialCharacterIndices::VQUIT,
            libc::SIGTSTP => SpecialCharacterIndices::VSUSP,
            _ => return false,
        };
        let Some(tty) = self.terminal() else {
            return false;
        };
        let Ok(settings) = tcgetattr(tty) else {
            return false;
        };
        let byte = settings.control_chars[key as usize];
        byte != 0
            && settings.local_flags.contains(LocalFlags::ISIG)
            && matches!(write(tty, &[byte]), Ok(1))
    }
}

/// A pipe, close-on-exec; the holder's end, which `reads` tells, does not block.
fn pipe(reads: bool) -> nix::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    let ours = if reads { &read } else { &write };
    fcntl(ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((read, write))
}

/// Both sides of a new terminal, by the nodes of devpts itself, which a guest cannot replace as it can those in /dev.
fn open_terminal(directory: BorrowedFd<'_>, size: TerminalSize) -> nix::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = openat(directory, "ptmx", flags | OFlag::O_NONBLOCK, Mode::empty())?;
    let name = terminal::unlock(master.as_fd())?.to_string();
    let other = openat(directory, name.as_str(), flags, Mode::empty())?;
    launch::prepare_terminal(directory, &name)?;
    if size.rows != 0 || size.columns != 0 {
        terminal::resize(master.as_fd(), size.rows, size.columns)?;
    }
    Ok((master, other))
}
