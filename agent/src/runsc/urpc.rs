//! The protocol of the sentry's control socket, towards a server that may lie. Source: pkg/urpc/urpc.go.
//!
//! A call is one JSON value `{"method", "arg"}`, its files as `SCM_RIGHTS` with the first bytes; the reply is one JSON object
//! `{"success", "err", "result"}`. One call at a time per connection.
//!
//! The sentry is untrusted. So a reply is at most 1 MiB and must come before a deadline, its end is found in one pass (no
//! quadratic work for one that trickles), and files that come with it are never taken: reading without room for control data
//! makes the kernel drop them (unix(7)). A connection on which anything went wrong is used no more.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::sys::log::printable;

/// The longest reply that is read.
pub const MAX_REPLY: usize = 1 << 20;

/// The longest error text of the sentry that is kept.
const MAX_ERROR: usize = 4096;

/// A call that got no good answer. Only after [`UrpcError::Remote`] is the connection still usable.
#[derive(Debug, thiserror::Error)]
pub enum UrpcError {
    /// No connection.
    #[error("connect to the control socket {path}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The argument has no JSON form.
    #[error("encode {method}")]
    Encode {
        /// The call.
        method: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// The sentry went away, or the socket failed.
    #[error("{method} on the control socket")]
    Broken {
        /// The call.
        method: &'static str,
        /// Why. `UnexpectedEof`: the sentry closed it, most often because it died.
        source: io::Error,
    },
    /// No whole reply in time.
    #[error("no reply to {method} within {}", Millis(*deadline))]
    Deadline {
        /// The call.
        method: &'static str,
        /// How long was waited.
        deadline: Duration,
    },
    /// The reply is not one.
    #[error("the reply to {method} is {what}")]
    Reply {
        /// The call.
        method: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The sentry refused. Its words, untrusted, printable, at most 4 KiB.
    #[error("{method} was refused: {message}")]
    Remote {
        /// The call.
        method: &'static str,
        /// What it said.
        message: String,
    },
    /// An earlier call failed on this connection.
    #[error("{method} on a control connection whose last call failed")]
    Poisoned {
        /// The call.
        method: &'static str,
    },
}

struct Millis(Duration);

impl std::fmt::Display for Millis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ms", self.0.as_millis())
    }
}

#[derive(Serialize)]
struct Call<'a, A> {
    method: &'a str,
    arg: A,
}

#[derive(Deserialize)]
struct Reply<R> {
    success: bool,
    #[serde(default)]
    err: String,
    #[serde(default = "none")]
    result: Option<R>,
}

fn none<R>() -> Option<R> {
    None
}

/// A connection to one sentry's control socket.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    // Set while a call runs: a call that is dropped half-way leaves half a request or half a reply behind.
    poisoned: bool,
}

impl Connection {
    /// Connects.
    pub async fn open(path: &Path, deadline: Duration) -> Result<Self, UrpcError> {
        let connect = |source| UrpcError::Connect {
            path: path.to_owned(),
            source,
        };
        match timeout(deadline, UnixStream::connect(path)).await {
            Ok(Ok(stream)) => Ok(Self {
                stream,
                poisoned: false,
            }),
            Ok(Err(error)) => Err(connect(error)),
            Err(_) => Err(connect(io::ErrorKind::TimedOut.into())),
        }
    }

    /// Calls `method` and waits for its reply, all of it within `deadline`. Dropping it poisons the connection.
    ///
    /// The sentry gets duplicates of `files`; ours may be closed as soon as this returns.
    pub async fn call<R: DeserializeOwned>(
        &mut self,
        method: &'static str,
        arg: impl Serialize,
        files: &[BorrowedFd<'_>],
        deadline: Duration,
    ) -> Result<R, UrpcError> {
        self.call_up_to(MAX_REPLY, method, arg, files, deadline)
            .await
    }

    /// The same with a reply of up to `limit` bytes.
    pub async fn call_up_to<R: DeserializeOwned>(
        &mut self,
        limit: usize,
        method: &'static str,
        arg: impl Serialize,
        files: &[BorrowedFd<'_>],
        deadline: Duration,
    ) -> Result<R, UrpcError> {
        if std::mem::replace(&mut self.poisoned, true) {
            return Err(UrpcError::Poisoned { method });
        }
        let request = match serde_json::to_vec(&Call { method, arg }) {
            Ok(request) => request,
            Err(source) => {
                self.poisoned = false;
                return Err(UrpcError::Encode { method, source });
            }
        };
        let exchange = async {
            self.send(&request, files)
                .await
                .map_err(|source| UrpcError::Broken { method, source })?;
            self.receive(method, limit).await
        };
        let reply = timeout(deadline, exchange)
            .await
            .map_err(|_| UrpcError::Deadline { method, deadline })??;
        let result = decode(method, &reply);
        self.poisoned = !matches!(result, Ok(_) | Err(UrpcError::Remote { .. }));
        result
    }

    async fn send(&self, request: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let raw: Vec<_> = files.iter().map(AsRawFd::as_raw_fd).collect();
        let control = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[][..] } else { &control };
        let mut sent = self
            .stream
            .async_io(Interest::WRITABLE, || {
                sendmsg::<()>(
                    self.stream.as_raw_fd(),
                    &[IoSlice::new(request)],
                    control,
                    MsgFlags::MSG_NOSIGNAL,
                    None,
                )
                .map_err(io::Error::from)
            })
            .await?;
        while sent < request.len() {
            self.stream.writable().await?;
            match self.stream.try_write(&request[sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => sent += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn receive(&self, method: &'static str, limit: usize) -> Result<Vec<u8>, UrpcError> {
        let broken = |source| UrpcError::Broken { method, source };
        let mut reply = Vec::new();
        let mut extent = Extent::default();
        let mut piece = vec![0; 16 << 10];
        loop {
            self.stream.readable().await.map_err(broken)?;
            let read = match self.stream.try_read(&mut piece) {
                Ok(0) => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(broken(error)),
            };
            if reply.len() + read > limit {
                return Err(UrpcError::Reply {
                    method,
                    what: "longer than it may be",
                });
            }
            reply.extend_from_slice(&piece[..read]);
            match extent.feed(&piece[..read]) {
                Scan::More => {}
                Scan::Whole => return Ok(reply),
                Scan::Bad(what) => return Err(UrpcError::Reply { method, what }),
            }
        }
    }
}

fn decode<R: DeserializeOwned>(method: &'static str, reply: &[u8]) -> Result<R, UrpcError> {
    let not_json = |_| UrpcError::Reply {
        method,
        what: "not what it should be",
    };
    // The result of a refused call is null, so what it is matters only after success.
    let outcome: Reply<IgnoredAny> = serde_json::from_slice(reply).map_err(not_json)?;
    if !outcome.success {
        let bytes = outcome.err.as_bytes();
        return Err(UrpcError::Remote {
            method,
            message: printable(&bytes[..bytes.len().min(MAX_ERROR)]),
        });
    }
    let reply: Reply<R> = serde_json::from_slice(reply).map_err(not_json)?;
    reply.result.ok_or(UrpcError::Reply {
        method,
        what: "without a result",
    })
}

enum Scan {
    More,
    Whole,
    Bad(&'static str),
}

/// Finds where one JSON object ends, byte by byte, without parsing it.
#[derive(Default)]
struct Extent {
    depth: u32,
    in_text: bool,
    escaped: bool,
    ended: bool,
}

impl Extent {
    fn feed(&mut self, bytes: &[u8]) -> Scan {
        for byte in bytes {
            if self.in_text {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_text = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => {}
                _ if self.ended => return Scan::Bad("followed by more"),
                b'{' => self.depth += 1,
                _ if self.depth == 0 => return Scan::Bad("no JSON object"),
                b'}' => {
                    self.depth -= 1;
                    self.ended = self.depth == 0;
                }
                b'"' => self.in_text = true,
                _ => {}
            }
        }
        if self.ended { Scan::Whole } else { Scan::More }
    }
}

#[cfg(test)]
mod tests;
