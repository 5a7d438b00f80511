//! Moves bytes between a client and an agent until the command ends, over as many connections to the agent as it takes.

use axum::extract::ws::Message;
use bytes::Bytes;
use cloche_proto::agent::v1alpha1::{SessionRequest, SessionResponse};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

use super::MESSAGE;
use super::translator::{Outcome, Translator};
use crate::agents::{self, Agents, is_broken};
use crate::client::{Client, Heard};
use crate::outage::Outage;
use crate::place::Place;
use crate::refusal::{Kind, Refusal};

/// Requests on their way to the agent.
const AHEAD: usize = 4;

/// One connection's two directions.
struct Attachment {
    connection: agents::Connection,
    requests: mpsc::Sender<SessionRequest>,
    replies: Streaming<SessionResponse>,
}

/// Why a session is over.
enum Over {
    /// The command ended; this is said last.
    Ended(Bytes),
    /// There is more to say, and it is a failure.
    Refused(Refusal),
    /// The client is gone: the command goes on without it.
    Left,
}

/// Why a connection is of no more use.
enum Broken {
    /// The session is over.
    Over(Over),
    /// It broke; the agent may come back. Why.
    Gone(String),
}

/// Serves one client to the end. `stop`: it cannot be waited for any longer.
pub(crate) async fn serve(
    client: Client,
    translator: Translator,
    agents: &Agents,
    place: &Place,
    stop: &CancellationToken,
) {
    let mut session = Session {
        client,
        translator,
        agents,
        place,
        stop,
    };
    let over = session.run().await;
    match over {
        Over::Ended(last) => session.client.finish([Message::Binary(last)], true).await,
        Over::Refused(refusal) => {
            tracing::info!(
                namespace = place.namespace,
                sandbox = place.name,
                command = session.translator.command_id(),
                why = refusal.message,
                "a client is told a failure"
            );
            let last = Message::Binary(Translator::refuse(&refusal));
            session.client.finish([last], false).await;
        }
        Over::Left => {}
    }
}

struct Session<'a> {
    client: Client,
    translator: Translator,
    agents: &'a Agents,
    place: &'a Place,
    stop: &'a CancellationToken,
}

impl Session<'_> {
    async fn run(&mut self) -> Over {
        let mut outage: Option<Outage> = None;
        loop {
            let begun = Instant::now();
            let why = match self.once().await {
                Broken::Over(over) => return over,
                Broken::Gone(why) => why,
            };
            if self.translator.detach(begun.elapsed()) {
                outage = None;
            }
            let outage = outage.get_or_insert_with(Outage::begin);
            if outage.is_too_long() {
                return Over::Refused(self.lost(outage.seconds(), &why));
            }
            tracing::debug!(
                node = self.place.node,
                why,
                "the agent is away; trying again"
            );
            let pause = tokio::time::sleep(outage.pause());
            if let Err(over) = self.meanwhile(pause).await {
                return over;
            }
        }
    }

    /// One connection.
    async fn once(&mut self) -> Broken {
        let open = self.translator.open();
        let attached = self.meanwhile(attach(self.agents, &self.place.node, open));
        match attached.await {
            Ok(Ok(mut attachment)) => self.pass(&mut attachment).await,
            Ok(Err(broken)) => broken,
            Err(over) => Broken::Over(over),
        }
    }

    /// Waits for `work` while the client is listened to.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Over> {
        let mut work = std::pin::pin!(work);
        loop {
            let listen = self.translator.room() >= MESSAGE;
            // `work` is polled again where it was left; the others are cancel safe as their documentation says.
            tokio::select! {
                done = &mut work => return Ok(done),
                heard = self.client.next(listen) => self.hear(heard)?,
                () = self.stop.cancelled() => return Err(self.stopped()),
            }
        }
    }

    /// Passes everything on over a connection, to the command's end or the connection's.
    async fn pass(&mut self, attachment: &mut Attachment) -> Broken {
        loop {
            let listen = self.translator.room() >= MESSAGE;
            // Every arm is cancel safe: tonic keeps a half received message in the stream, the client all of its state in itself, and a
            // permit that is not used is given back.
            tokio::select! {
                // While the client does not read no more is taken from the agent, which then waits too.
                reply = attachment.replies.message(), if self.client.has_room() => {
                    if let Err(status) = &reply {
                        self.agents.ended(&attachment.connection, status);
                    }
                    match self.reply(reply) {
                        Ok(()) => {}
                        Err(broken) => return broken,
                    }
                }
                heard = self.client.next(listen) => {
                    if let Err(over) = self.hear(heard) {
                        return Broken::Over(over);
                    }
                }
                permit = attachment.requests.clone().reserve_owned(), if self.translator.has_next() => {
                    let Ok(permit) = permit else {
                        return Broken::Gone("it closed the stream".to_owned());
                    };
                    if let Some(request) = self.translator.next_request() {
                        drop(permit.send(request));
                    }
                }
                () = self.stop.cancelled() => return Broken::Over(self.stopped()),
            }
        }
    }

    fn reply(
        &mut self,
        reply: Result<Option<SessionResponse>, tonic::Status>,
    ) -> Result<(), Broken> {
        let reply = match reply {
            Ok(Some(reply)) => reply,
            Ok(None) => return Err(Broken::Gone("it closed the stream".to_owned())),
            Err(status) => return Err(broken(&status)),
        };
        let outcome = self
            .translator
            .receive(reply)
            .map_err(|refusal| Broken::Over(Over::Refused(refusal)))?;
        match outcome {
            Outcome::Say(said) => {
                for message in said {
                    self.client.say(Message::Binary(message));
                }
                Ok(())
            }
            Outcome::Attached => Ok(()),
            Outcome::End(last) => Err(Broken::Over(Over::Ended(last))),
        }
    }

    fn hear(&mut self, heard: Heard) -> Result<(), Over> {
        match heard {
            Heard::Binary(message) => self.translator.hear(&message).map_err(Over::Refused),
            Heard::Text => Err(Over::Refused(Refusal::new(
                Kind::BadRequest,
                "this protocol has binary messages only",
            ))),
            Heard::Wrong(why) => Err(Over::Refused(Refusal::new(Kind::BadRequest, why))),
            Heard::Room => Ok(()),
            Heard::Left => Err(Over::Left),
        }
    }

    fn stopped(&self) -> Over {
        let left = self.what_is_left();
        let message = format!("the gateway stops; {left}");
        Over::Refused(Refusal::new(Kind::ServiceUnavailable, message))
    }

    fn lost(&self, seconds: u64, why: &str) -> Refusal {
        let (node, left) = (&self.place.node, self.what_is_left());
        let message = format!("the agent of node {node:?} is away for {seconds} s ({why}); {left}");
        Refusal::new(Kind::ServiceUnavailable, message)
    }

    fn what_is_left(&self) -> String {
        if self.translator.exists() {
            let id = self.translator.command_id();
            format!("the command may still run: attach with commandId={id}")
        } else {
            "whether the command was started is not known".to_owned()
        }
    }
}

async fn attach(agents: &Agents, node: &str, open: SessionRequest) -> Result<Attachment, Broken> {
    let mut connection = agents.connect(node).await.map_err(|refusal| {
        match refusal.kind {
            // The agent, or the apiserver that knows where it is, may come back.
            Kind::ServiceUnavailable | Kind::Timeout => Broken::Gone(refusal.message),
            Kind::BadRequest
            | Kind::Unauthorized
            | Kind::Forbidden
            | Kind::NotFound
            | Kind::MethodNotAllowed
            | Kind::Conflict
            | Kind::TooManyRequests
            | Kind::InternalError => Broken::Over(Over::Refused(refusal)),
        }
    })?;
    let (requests, receiver) = mpsc::channel(AHEAD);
    // Cannot fail: there is room and the receiver is held.
    drop(requests.send(open).await);
    match connection
        .client
        .session(ReceiverStream::new(receiver))
        .await
    {
        Ok(response) => Ok(Attachment {
            connection,
            requests,
            replies: response.into_inner(),
        }),
        Err(status) => {
            agents.ended(&connection, &status);
            Err(broken(&status))
        }
    }
}

fn broken(status: &tonic::Status) -> Broken {
    if is_broken(status) {
        Broken::Gone(cloche_crds::condition::bounded(status.message()))
    } else {
        Broken::Over(Over::Refused(Refusal::of_agent(status)))
    }
}
