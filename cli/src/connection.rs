//! The way to the agent: gRPC over its unix socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cloche_proto::agent::v1alpha1::agent_client::AgentClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::service_fn;

use crate::error::Error;

/// How long a broken connection is tried again.
const PATIENCE: Duration = Duration::from_mins(1);

/// How long a broken connection is not worth a word.
const SILENCE: Duration = Duration::from_secs(1);

/// Most that one reply may hold: a list of all objects of a node.
const REPLY_LIMIT: usize = 64 << 20;

/// Bytes in flight per stream. HTTP/2's own 64 KiB would make every second chunk of output wait for an acknowledgement.
const WINDOW: u32 = 1 << 20;

/// An agent, by its socket.
#[derive(Debug, Clone)]
pub(crate) struct Agent {
    socket: PathBuf,
}

impl Agent {
    /// Nothing is connected yet.
    pub(crate) fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
        }
    }

    /// Connects once.
    pub(crate) async fn connect(&self) -> Result<AgentClient<Channel>, Error> {
        // Connected before tonic gets it, so that the reason of a failure is the system's and not "transport error".
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|source| Error::Connect {
                socket: self.socket.clone(),
                hint: hint(&source),
                source,
            })?;
        let mut stream = Some(TokioIo::new(stream));
        let channel = Endpoint::from_static("http://agent.invalid")
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(2 * WINDOW)
            .connect_with_connector(service_fn(move |_| {
                let stream = stream.take();
                // Asked a second time: tonic would connect anew by itself, which is the callers' to decide.
                async move { stream.ok_or_else(|| io::Error::other("it closed the connection")) }
            }))
            .await
            .map_err(|problem| Error::Protocol {
                socket: self.socket.clone(),
                message: problem.to_string(),
            })?;
        Ok(AgentClient::new(channel).max_decoding_message_size(REPLY_LIMIT))
    }
}

/// What to do about a socket that cannot be connected to.
fn hint(problem: &io::Error) -> &'static str {
    match problem.kind() {
        io::ErrorKind::PermissionDenied => {
            "only the user that runs the agent may use it (usually root)"
        }
        _ => "is `cloche-agent standalone` running, with this --socket?",
    }
}

/// Whether the connection broke, as it does when the agent restarts, so that trying again makes sense. Everything else
/// is the agent's answer.
pub(crate) fn is_broken(status: &Status) -> bool {
    match status.code() {
        // What tonic makes of a closed or reset connection; a handler's own panic also arrives as one of them.
        Code::Unavailable | Code::Cancelled | Code::Unknown => true,
        Code::Internal => std::error::Error::source(status).is_some(),
        Code::Ok
        | Code::InvalidArgument
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => false,
    }
}

/// A connection that broke and is tried again.
#[derive(Debug)]
pub(crate) struct Outage {
    since: Instant,
    pause: Duration,
    told: bool,
}

impl Outage {
    /// It broke now.
    pub(crate) fn begin() -> Self {
        Self {
            since: Instant::now(),
            pause: Duration::ZERO,
            told: false,
        }
    }

    /// Whether to give up.
    pub(crate) fn is_too_long(&self) -> bool {
        self.since.elapsed() >= PATIENCE
    }

    /// Whether to tell the user, once: a restart of an agent takes less.
    pub(crate) fn is_worth_a_word(&mut self) -> bool {
        let now = !self.told && self.since.elapsed() >= SILENCE;
        self.told |= now;
        now
    }

    /// How long it lasts, in whole seconds.
    pub(crate) fn seconds(&self) -> u64 {
        self.since.elapsed().as_secs()
    }

    /// How long to wait before the next attempt: not at all (one stream may break where the agent is well), then 20 ms,
    /// doubled up to 1 s.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).clamp(Duration::from_millis(20), Duration::from_secs(1));
        pause
    }
}
