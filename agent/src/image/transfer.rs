//! A blob on its way into the staging directory: bounded, hashed and watched while it flows.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use tokio::time::{Instant, timeout_at};

use super::digest::{Digest, Meter};
use super::error::Failure;
use super::manifest::Blob;

/// A source that gives less than this in one idle time is as good as silent.
const PACE: u64 = 16 << 10;
/// Bytes that are collected before they are hashed and written.
const CHUNK: usize = 256 << 10;

/// What a blob has to be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expected {
    /// Exactly this.
    Blob(Blob),
    /// Anything up to so many bytes.
    AtMost(u64),
}

/// Writes a stream to the new file `path` and returns what it was. Hashing and writing happen off the runtime's threads.
///
/// Fails when it is longer or shorter than expected, when its digest is another, and when less than 16 KiB arrive within `idle`.
pub(super) async fn receive(
    mut stream: impl Stream<Item = Result<Bytes, Failure>> + Unpin,
    expected: Expected,
    path: &Path,
    idle: Duration,
    arrived: &(dyn Fn(u64) + Send + Sync),
) -> Result<Blob, Failure> {
    let limit = match expected {
        Expected::Blob(blob) => blob.size,
        Expected::AtMost(limit) => limit,
    };
    let path = path.to_owned();
    let mut sink = blocking(move || {
        File::create_new(&path)
            .map(|file| Sink {
                file,
                meter: Meter::default(),
            })
            .map_err(|error| Failure::io(format_args!("create {}", path.display()), &error))
    })
    .await?;
    let mut waiting: Vec<Bytes> = Vec::new();
    let mut waiting_bytes = 0;
    let mut total = 0;
    let mut window = (Instant::now() + idle, 0);
    loop {
        let Ok(next) = timeout_at(window.0, stream.next()).await else {
            return Err(Failure::Pull(format!(
                "its source stalls: {} bytes in {} s, {total} of {limit} in all",
                window.1,
                idle.as_secs_f32()
            )));
        };
        let Some(chunk) = next.transpose()? else {
            break;
        };
        let length = chunk.len() as u64;
        total += length;
        window.1 += length;
        if total > limit {
            return Err(match expected {
                Expected::Blob(blob) => Failure::mismatch(
                    "a blob",
                    &blob.digest,
                    &format!("longer than its {limit} bytes"),
                ),
                Expected::AtMost(_) => Failure::Invalid(format!("it has more than {limit} bytes")),
            });
        }
        waiting_bytes += chunk.len();
        waiting.push(chunk);
        if waiting_bytes >= CHUNK {
            sink = sink.take(std::mem::take(&mut waiting)).await?;
            waiting_bytes = 0;
        }
        if window.1 >= PACE {
            // Also after a slow disk: the source is measured, not the node.
            window = (Instant::now() + idle, 0);
        }
        arrived(total);
    }
    let sink = sink.take(waiting).await?;
    let found = Blob {
        digest: sink.meter.digest(),
        size: total,
    };
    match expected {
        Expected::Blob(blob) if found.size != blob.size => Err(Failure::mismatch(
            "a blob",
            &blob.digest,
            &format!("{} bytes long instead of {}", found.size, blob.size),
        )),
        Expected::Blob(blob) if found.digest != blob.digest => Err(Failure::mismatch(
            "a blob",
            &blob.digest,
            &found.digest.to_string(),
        )),
        _ => Ok(found),
    }
}

/// Collects a small document in memory. Fails when it is longer than `limit` or stalls.
pub(super) async fn collect(
    mut stream: impl Stream<Item = Result<Bytes, Failure>> + Unpin,
    limit: u64,
    idle: Duration,
) -> Result<Vec<u8>, Failure> {
    let deadline = Instant::now() + idle;
    let mut all = Vec::new();
    loop {
        let Ok(next) = timeout_at(deadline, stream.next()).await else {
            return Err(Failure::Pull(format!(
                "its source stalls: a document did not come whole in {} s",
                idle.as_secs_f32()
            )));
        };
        let Some(chunk) = next.transpose()? else {
            return Ok(all);
        };
        if (all.len() + chunk.len()) as u64 > limit {
            return Err(Failure::Invalid(format!(
                "a document is longer than {limit} bytes"
            )));
        }
        all.extend_from_slice(&chunk);
    }
}

/// Checks a document against what announced it.
pub(super) fn verify(document: &[u8], wanted: &Digest, what: &str) -> Result<(), Failure> {
    let found = Digest::of(document);
    if found == *wanted {
        Ok(())
    } else {
        Err(Failure::mismatch(what, wanted, &found.to_string()))
    }
}

struct Sink {
    file: File,
    meter: Meter,
}

impl Sink {
    async fn take(mut self, chunks: Vec<Bytes>) -> Result<Self, Failure> {
        blocking(move || {
            for chunk in &chunks {
                self.meter.update(chunk);
                self.file
                    .write_all(chunk)
                    .map_err(|error| Failure::io("write a blob", &error))?;
            }
            Ok(self)
        })
        .await
    }
}

/// Runs `work` on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Failure::Node(format!("a task of the image store: {error}")))?
}
