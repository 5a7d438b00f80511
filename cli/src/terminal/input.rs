//! Standard input, read by a thread of its own.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;

use rustix::event::PollFlags;
use tokio::sync::mpsc;

/// Most that is read at once, in bytes.
pub(crate) const CHUNK: usize = 32 << 10;

/// Reads stdin ahead by at most two chunks. A thread and not the runtime's pool, because a read of a terminal cannot be
/// called off: the thread is left behind when the process ends.
#[derive(Debug)]
pub(crate) struct Input {
    chunks: Option<mpsc::Receiver<io::Result<Vec<u8>>>>,
}

impl Input {
    /// Reads nothing, ever.
    pub(crate) fn none() -> Self {
        Self { chunks: None }
    }

    /// Starts to read.
    pub(crate) fn start() -> io::Result<Self> {
        let mut file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let (sender, chunks) = mpsc::channel(1);
        std::thread::Builder::new()
            .name("stdin".to_owned())
            .spawn(move || {
                loop {
                    let read = read(&mut file);
                    let last = !matches!(&read, Ok(data) if !data.is_empty());
                    if sender.blocking_send(read).is_err() || last {
                        return;
                    }
                }
            })?;
        Ok(Self {
            chunks: Some(chunks),
        })
    }

    /// The next bytes; empty once at the end, and then never anything. Cancel safe.
    pub(crate) async fn next(&mut self) -> io::Result<Vec<u8>> {
        let Some(chunks) = &mut self.chunks else {
            return std::future::pending().await;
        };
        let next = chunks.recv().await.unwrap_or_else(|| Ok(Vec::new()));
        if !matches!(&next, Ok(data) if !data.is_empty()) {
            self.chunks = None;
        }
        next
    }
}

fn read(file: &mut File) -> io::Result<Vec<u8>> {
    let mut data = vec![0; CHUNK];
    loop {
        match file.read(&mut data) {
            Ok(length) => {
                data.truncate(length);
                return Ok(data);
            }
            Err(problem) if problem.kind() == io::ErrorKind::Interrupted => {}
            Err(problem) if problem.kind() == io::ErrorKind::WouldBlock => {
                super::wait_for(&*file, PollFlags::IN)?;
            }
            // A terminal whose other side is gone.
            Err(problem)
                if problem.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) =>
            {
                return Ok(Vec::new());
            }
            Err(problem) => return Err(problem),
        }
    }
}
