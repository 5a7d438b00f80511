//! Reading a stream's output from the log, live or after its end.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use rustix::io::ReadWriteFlags;
use tokio::sync::watch;

use super::error::SessionError;
use super::identity::Stream;
use super::log::{LogError, Span, Tails};
use super::state::SessionState;

/// Most bytes in one [`Chunk::Output`].
pub const MAX_CHUNK: usize = 128 * 1024;

/// How far a reader goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// To the end of the command itself: all that it printed, whatever its background children do.
    Exit,
    /// To the stream's end: until every process that could write to it has closed it, or the sandbox has ended.
    Closed,
    /// To what is there now.
    Now,
}

/// What a reader yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// Output.
    Output {
        /// Offset of the first byte since the session's start.
        offset: u64,
        /// At least one byte, at most [`MAX_CHUNK`].
        bytes: Bytes,
    },
    /// Output that is no longer kept.
    Gap {
        /// The first byte lost.
        offset: u64,
        /// The first byte that is there again.
        end: u64,
    },
    /// Nothing more comes; the reader is at this offset.
    End {
        /// Where the reader stands.
        offset: u64,
    },
}

/// Follows one stream. Holds no more than one chunk; the log is its buffer.
#[derive(Debug)]
pub struct OutputReader {
    stream: Stream,
    tails: Arc<Tails>,
    span: watch::Receiver<Span>,
    state: watch::Receiver<SessionState>,
    until: Until,
    /// Where [`Until::Now`] ends.
    limit: u64,
    offset: u64,
    file: Option<Arc<File>>,
}

impl OutputReader {
    pub(super) fn new(
        tails: Arc<Tails>,
        state: watch::Receiver<SessionState>,
        stream: Stream,
        offset: u64,
        until: Until,
    ) -> Self {
        let span = tails.tail(stream).span.subscribe();
        let limit = span.borrow().length;
        Self {
            stream,
            tails,
            span,
            state,
            until,
            limit,
            offset,
            file: None,
        }
    }

    /// The next piece. After [`Chunk::End`] it yields the same again. Cancel safe: a piece that was not yielded is yielded by
    /// the next call.
    pub async fn next(&mut self) -> Result<Chunk, SessionError> {
        loop {
            let span = *self.span.borrow_and_update();
            let limit = self.end();
            if limit.is_some_and(|limit| self.offset >= limit) {
                return Ok(Chunk::End {
                    offset: self.offset,
                });
            }
            let stop = limit.map_or(span.length, |limit| limit.min(span.length));
            if self.offset < span.head.min(stop) {
                return Ok(self.gap(span.head.min(stop)));
            }
            if self.offset < stop {
                let length = usize::try_from(stop - self.offset)
                    .unwrap_or(MAX_CHUNK)
                    .min(MAX_CHUNK);
                let bytes = self.read(length).await?;
                // What was dropped meanwhile may have been read as a hole.
                let head = self.span.borrow().head;
                if head > self.offset {
                    return Ok(self.gap(head.min(stop)));
                }
                let offset = self.offset;
                self.offset += bytes.len() as u64;
                return Ok(Chunk::Output { offset, bytes });
            }
            // Both waits are cancel safe: what was seen is looked at above, whatever woke us.
            tokio::select! {
                changed = self.span.changed() => {
                    changed.map_err(|_| SessionError::ShuttingDown)?;
                }
                changed = self.state.changed() => {
                    changed.map_err(|_| SessionError::ShuttingDown)?;
                }
            }
        }
    }

    /// Where this reader ends, once that is known.
    fn end(&mut self) -> Option<u64> {
        let state = self.state.borrow_and_update();
        match self.until {
            Until::Exit => state.ended.as_ref().map(|ended| ended.offset(self.stream)),
            Until::Closed => state.closed[self.stream.index()],
            Until::Now => Some(self.limit),
        }
    }

    fn gap(&mut self, end: u64) -> Chunk {
        let offset = self.offset;
        self.offset = end;
        Chunk::Gap { offset, end }
    }

    async fn read(&mut self, length: usize) -> Result<Bytes, SessionError> {
        let path = &self.tails.tail(self.stream).path;
        let fail = |error: io::Error| SessionError::Log(LogError::new("read", path, error));
        let file = if let Some(file) = &self.file {
            Arc::clone(file)
        } else {
            let file = Arc::new(File::open(path).map_err(fail)?);
            self.file = Some(Arc::clone(&file));
            file
        };
        let offset = self.offset;
        let mut buffer = vec![0; length];
        // Live output is in the page cache: taken from there without a hop to another thread, and without waiting for a disk.
        let cached = rustix::io::preadv2(
            &*file,
            &mut [IoSliceMut::new(&mut buffer)],
            offset,
            ReadWriteFlags::NOWAIT,
        );
        let count = match cached {
            Ok(count) if count > 0 => count,
            // Not in the cache, or a file system that cannot tell.
            Ok(_) | Err(_) => {
                let (read, count) = tokio::task::spawn_blocking(move || {
                    let count = file.read_at(&mut buffer, offset);
                    (buffer, count)
                })
                .await
                .map_err(|_| SessionError::ShuttingDown)?;
                buffer = read;
                count.map_err(fail)?
            }
        };
        if count == 0 {
            return Err(fail(io::ErrorKind::UnexpectedEof.into()));
        }
        buffer.truncate(count);
        Ok(buffer.into())
    }
}
