//! Standard output and standard error, written by one thread in the order of arrival.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;

use cloche_proto::agent::v1alpha1::Stream;
use rustix::event::PollFlags;
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;
use crate::terminal::raw;

/// Pieces under way to the thread. Full: no more is taken from the agent, and in the end the command waits.
const PIECES: usize = 8;

/// A piece of output.
pub(crate) type Piece = (Stream, Vec<u8>);

/// Takes output. A thread of its own, so that a reader that stands still does not keep signals and stdin from passing; one
/// for both streams, so that they meet on a terminal as they were written.
#[derive(Debug)]
pub(crate) struct Sink {
    pieces: Option<mpsc::Sender<Piece>>,
    result: oneshot::Receiver<Result<(), Error>>,
}

impl Sink {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        // Not through std's Stdout: it cuts at line ends and keeps the rest.
        let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let (pieces, receiver) = mpsc::channel(PIECES);
        let (sender, result) = oneshot::channel();
        std::thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || {
                let outcome = write_pieces(receiver, stdout, Some(stderr));
                // Nobody asks any more when the process ends early.
                drop(sender.send(outcome));
            })?;
        Ok(Self {
            pieces: Some(pieces),
            result,
        })
    }

    /// Waits for room. `None`: the thread has ended, see [`Self::finish`]. Cancel safe.
    pub(crate) async fn room(&self) -> Option<mpsc::OwnedPermit<Piece>> {
        match &self.pieces {
            Some(pieces) => pieces.clone().reserve_owned().await.ok(),
            None => None,
        }
    }

    /// Says something that is true only now, in order with the output. Dropped where there is no room: a user whose terminal
    /// stands still cannot read it.
    pub(crate) fn say(&self, text: &str) {
        if let Some(pieces) = &self.pieces {
            drop(pieces.try_send(notice(text)));
        }
    }

    /// Waits until everything is written, and before it `last`, which waits for room. Cancel safe; a second call after it has
    /// answered says that all is well.
    pub(crate) async fn finish(&mut self, last: &mut VecDeque<Piece>) -> Result<(), Error> {
        while !last.is_empty() {
            let Some(room) = self.room().await else {
                break;
            };
            if let Some(piece) = last.pop_front() {
                drop(room.send(piece));
            }
        }
        self.pieces = None;
        match (&mut self.result).await {
            Ok(outcome) => outcome,
            Err(_) => Ok(()),
        }
    }
}

/// A line to the user, as a piece of output: what must be read waits for room as output does.
pub(crate) fn notice(text: &str) -> Piece {
    let end = if raw::is_on() { "\r\n" } else { "\n" };
    let line = format!("kubectl-sandbox: {text}{end}");
    (Stream::Stderr, line.into_bytes())
}

fn write_pieces(
    mut pieces: mpsc::Receiver<Piece>,
    mut stdout: File,
    mut stderr: Option<File>,
) -> Result<(), Error> {
    while let Some((stream, data)) = pieces.blocking_recv() {
        match (stream, &mut stderr) {
            (Stream::Stdout | Stream::Unspecified, _) => {
                write_all(&mut stdout, &data).map_err(Error::stdout)?;
            }
            (Stream::Stderr, Some(file)) => match write_all(file, &data) {
                Ok(()) => {}
                // Nobody reads it: go on without, as a shell's `2>&-` does.
                Err(problem) if problem.kind() == io::ErrorKind::BrokenPipe => stderr = None,
                Err(source) => {
                    return Err(Error::Write {
                        stream: "standard error",
                        source,
                    });
                }
            },
            (Stream::Stderr, None) => {}
        }
    }
    Ok(())
}

fn write_all(file: &mut File, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        match file.write(data) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(length) => data = &data[length..],
            Err(problem) if problem.kind() == io::ErrorKind::Interrupted => {}
            Err(problem) if problem.kind() == io::ErrorKind::WouldBlock => {
                super::wait_for(&*file, PollFlags::OUT)?;
            }
            Err(problem) => return Err(problem),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_non_blocking_pipe_gets_every_byte() {
        let (mut reader, writer) = io::pipe().unwrap();
        let fd: std::os::fd::OwnedFd = writer.into();
        rustix::io::ioctl_fionbio(&fd, true).unwrap();
        let data: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
        let expected = data.clone();
        let writing = std::thread::spawn(move || write_all(&mut File::from(fd), &data));
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        writing.join().unwrap().unwrap();
        assert!(read == expected);
    }

    #[test]
    fn a_closed_stderr_does_not_stop_stdout() {
        let (mut reader, stdout) = io::pipe().unwrap();
        let (closed, stderr) = io::pipe().unwrap();
        drop(closed);
        let (sender, pieces) = mpsc::channel(4);
        for piece in [
            (Stream::Stderr, b"lost".to_vec()),
            (Stream::Stdout, b"kept".to_vec()),
        ] {
            sender.try_send(piece).unwrap();
        }
        drop(sender);
        let to_file = |pipe: io::PipeWriter| File::from(std::os::fd::OwnedFd::from(pipe));
        write_pieces(pieces, to_file(stdout), Some(to_file(stderr))).unwrap();
        let mut read = String::new();
        reader.read_to_string(&mut read).unwrap();
        assert_eq!(read, "kept");
    }
}
