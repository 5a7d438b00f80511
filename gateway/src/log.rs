//! Output of commands as plain bytes, over any number of connections to the agent.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cloche_proto::agent::v1alpha1::{LogRequest, SandboxKey, SessionResponse};
use cloche_proto::session::{Received, State};
use futures::stream::try_unfold;
use http::header;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tonic::Streaming;

use crate::agents::{self, Agents, is_broken};
use crate::ask::AskLog;
use crate::outage::Outage;
use crate::place::Place;
use crate::refusal::{Kind, Refusal};
use crate::streams;

/// What a stream holds as long as it is open: its place among the streams, and the gateway's stop.
pub(crate) type Held = (streams::Stream, TaskTrackerToken);

/// Output on its way from an agent.
pub(crate) struct Reading {
    connection: agents::Connection,
    /// What the agent tells.
    pub(crate) replies: Streaming<SessionResponse>,
}

/// Asks for output, once.
pub(crate) async fn read(agents: &Agents, place: &Place, ask: &AskLog) -> Result<Reading, Refusal> {
    let mut connection = agents.connect(&place.node).await?;
    let request = LogRequest {
        key: Some(SandboxKey {
            namespace: place.namespace.clone(),
            name: place.name.clone(),
        }),
        command_id: ask.command_id.clone(),
        follow: ask.follow,
        tail_bytes: ask.tail_bytes,
        uid: place.uid.clone(),
        stdout_offset: ask.offsets[0],
        stderr_offset: ask.offsets[1],
    };
    match connection.client.log(request).await {
        Ok(replies) => Ok(Reading {
            connection,
            replies: replies.into_inner(),
        }),
        Err(status) => Err(agents.refusal(&connection, &status)),
    }
}

/// All that one reader has.
struct Log {
    reading: Option<Reading>,
    state: State,
    agents: Agents,
    place: Place,
    ask: AskLog,
    outage: Option<Outage>,
    stop: CancellationToken,
    _held: Held,
}

/// Why a body breaks off: there is no other way to say in it that it is not whole.
#[derive(Debug, thiserror::Error)]
enum Incomplete {
    #[error("the gateway stops")]
    Stopped,
    #[error("{0} bytes are lost: they are no longer kept")]
    Lost(u64),
    #[error("the agent is wrong: {0}")]
    Wrong(String),
    #[error(transparent)]
    Refused(Refusal),
}

/// The bytes of `reading`, to the output's end. After a break it goes on where it was.
pub(crate) fn body(
    reading: Reading,
    agents: Agents,
    place: Place,
    ask: AskLog,
    stop: CancellationToken,
    held: Held,
) -> Response {
    let log = Log {
        reading: Some(reading),
        // Where the head is no longer kept either, the log begins wherever it begins.
        state: State::reader(true),
        agents,
        place,
        ask,
        outage: None,
        stop,
        _held: held,
    };
    let pieces = try_unfold(log, |mut log| async move {
        let next = log.next().await.inspect_err(|incomplete| {
            tracing::info!(
                namespace = log.place.namespace,
                sandbox = log.place.name,
                why = %incomplete,
                "a log is broken off"
            );
        })?;
        Ok::<_, Incomplete>(next.map(|data| (data, log)))
    });
    let kind = (header::CONTENT_TYPE, "application/octet-stream");
    ([kind], Body::from_stream(pieces)).into_response()
}

impl Log {
    /// The next piece; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, Incomplete> {
        loop {
            let stop = self.stop.clone();
            let reply = tokio::select! {
                // What is given up here is given up for good.
                reply = self.reply() => reply?,
                () = stop.cancelled() => return Err(Incomplete::Stopped),
            };
            let Some(reply) = reply else { return Ok(None) };
            let received = self.state.receive(reply).map_err(Incomplete::Wrong)?;
            let Received::Output { stream, lost, data } = received else {
                continue;
            };
            if self.ask.stream.is_some_and(|wanted| wanted != stream) {
                continue;
            }
            if lost > 0 {
                return Err(Incomplete::Lost(lost));
            }
            if !data.is_empty() {
                return Ok(Some(data.into()));
            }
        }
    }

    /// The agent's next reply, of this connection or a later one.
    async fn reply(&mut self) -> Result<Option<SessionResponse>, Incomplete> {
        loop {
            let Some(reading) = &mut self.reading else {
                self.again().await?;
                continue;
            };
            match reading.replies.message().await {
                Ok(reply) => {
                    self.outage = None;
                    return Ok(reply);
                }
                Err(status) if is_broken(&status) => {
                    self.agents.ended(&reading.connection, &status);
                    self.reading = None;
                }
                Err(status) => return Err(Incomplete::Refused(Refusal::of_agent(&status))),
            }
        }
    }

    /// Tries once to come back, after a pause.
    async fn again(&mut self) -> Result<(), Incomplete> {
        let outage = self.outage.get_or_insert_with(Outage::begin);
        let is_too_long = outage.is_too_long();
        // What was not seen yet begins as it would have then.
        for (asked, seen) in self.ask.offsets.iter_mut().zip(self.state.offsets()) {
            *asked = seen.or(*asked);
        }
        tokio::time::sleep(outage.pause()).await;
        match read(&self.agents, &self.place, &self.ask).await {
            Ok(reading) => self.reading = Some(reading),
            Err(refusal) if refusal.kind == Kind::ServiceUnavailable && !is_too_long => {}
            Err(refusal) => return Err(Incomplete::Refused(refusal)),
        }
        Ok(())
    }
}
