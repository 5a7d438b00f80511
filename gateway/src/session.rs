//! Sessions as the agent speaks of them (`cloche_proto::SESSION_PROTOCOL`): messages are handed on as they are, but for the first, in
//! which the gateway says of which sandbox it is. The client keeps offsets itself, and comes back by itself when the agent does.

use std::time::Duration;

use axum::extract::ws::Message;
use cloche_proto::agent::v1alpha1::session_request::Kind as Request;
use cloche_proto::agent::v1alpha1::session_response::Kind as Reply;
use cloche_proto::agent::v1alpha1::{SandboxKey, SessionRequest, SessionResponse};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

use crate::agents::{self, Agents, is_broken};
use crate::ask::AskLog;
use crate::client::{Client, Heard};
use crate::place::Place;
use crate::refusal::{Kind, Refusal};

/// How long a client may take to say what it wants.
const FIRST: Duration = Duration::from_secs(10);
/// Requests on their way to the agent.
const AHEAD: usize = 1;
/// How long an agent gets to act on the last requests of a client that leaves.
const FAREWELL: Duration = Duration::from_secs(1);

/// Why it is over.
enum Over {
    /// The command's end was told.
    Ended,
    /// A failure is to be told.
    Refused(Refusal),
    /// The client is gone.
    Left,
}

/// Serves one client to the end; it `runs` a command, or joins one. `stop`: the client should come back to another gateway.
pub(crate) async fn serve(
    mut client: Client,
    runs: bool,
    agents: &Agents,
    place: &Place,
    stop: &CancellationToken,
) {
    let over = tokio::select! {
        // Nothing that it holds outlives it.
        over = run(&mut client, runs, agents, place) => over,
        () = stop.cancelled() => Over::Refused(stopped()),
    };
    finish(client, over).await;
}

/// Tells `replies` to the end: a log. `stop` as in [`serve`].
pub(crate) async fn tell(
    mut client: Client,
    mut replies: Streaming<SessionResponse>,
    ask: &AskLog,
    stop: &CancellationToken,
) {
    let over = loop {
        // Cancel safe: tonic keeps a half received message in the stream, the client all of its state in itself.
        tokio::select! {
            reply = replies.message(), if client.has_room() => match reply {
                Ok(Some(reply)) if is_wanted(&reply, ask) => say(&mut client, &reply),
                Ok(Some(_)) => {}
                Ok(None) => break Over::Ended,
                Err(status) => break Over::Refused(refusal(&status)),
            },
            heard = client.next(true) => match heard {
                Heard::Room => {}
                Heard::Left => break Over::Left,
                Heard::Wrong(why) => break Over::Refused(bad(&why)),
                Heard::Binary(_) | Heard::Text => break Over::Refused(bad("a reader of a log has nothing to say")),
            },
            () = stop.cancelled() => break Over::Refused(stopped()),
        }
    };
    finish(client, over).await;
}

async fn finish(client: Client, over: Over) {
    match over {
        Over::Ended => client.finish([], true).await,
        Over::Refused(refusal) => {
            let last = Message::Text(refusal.json().into());
            client.finish([last], false).await;
        }
        Over::Left => {}
    }
}

async fn run(client: &mut Client, runs: bool, agents: &Agents, place: &Place) -> Over {
    let open = match first(client, runs, place).await {
        Ok(open) => open,
        Err(over) => return over,
    };
    let (requests, receiver) = mpsc::channel(AHEAD);
    // Cannot fail: there is room and the receiver is held.
    drop(requests.send(open).await);
    let attached = attach(agents, &place.node, receiver);
    let mut attached = std::pin::pin!(attached);
    let (connection, replies) = loop {
        tokio::select! {
            // Polled again where it was left.
            attached = &mut attached => match attached {
                Ok(attached) => break attached,
                Err(refusal) => return Over::Refused(refusal),
            },
            // Nothing is read meanwhile: a client that goes is seen below.
            heard = client.next(false) => if let Heard::Left = heard { return Over::Left },
        }
    };
    match pass(client, requests, replies).await {
        Ok(over) => over,
        Err(status) => {
            agents.ended(&connection, &status);
            Over::Refused(refusal(&status))
        }
    }
}

/// The client's first message, made whole.
async fn first(client: &mut Client, runs: bool, place: &Place) -> Result<SessionRequest, Over> {
    let heard = async {
        loop {
            let heard = client.next(true).await;
            if !matches!(heard, Heard::Room) {
                return heard;
            }
        }
    };
    let heard = tokio::time::timeout(FIRST, heard).await;
    let message = match heard {
        Ok(Heard::Binary(message)) => message,
        Ok(Heard::Left) => return Err(Over::Left),
        Ok(Heard::Wrong(why)) => return Err(Over::Refused(bad(&why))),
        Ok(Heard::Text | Heard::Room) => return Err(Over::Refused(bad(BINARY))),
        Err(_) => {
            let refusal = Refusal::new(Kind::Timeout, "the client did not say what it wants");
            return Err(Over::Refused(refusal));
        }
    };
    let request = SessionRequest::decode(message).map_err(|error| Over::Refused(unread(&error)))?;
    complete(request, runs, place).map_err(Over::Refused)
}

const BINARY: &str = "this protocol has binary messages only";

/// The first request, with what only the gateway can say. Who may join a command may not therefore run one.
fn complete(request: SessionRequest, runs: bool, place: &Place) -> Result<SessionRequest, Refusal> {
    let Some(Request::Open(mut open)) = request.kind else {
        return Err(bad("the first message must be `open`"));
    };
    match (runs, &open.command) {
        (true, None) => return Err(bad("exec needs a command; to join one, use attach")),
        (false, Some(_)) => return Err(bad("attach runs no command; use exec")),
        (true, Some(_)) | (false, None) => {}
    }
    open.key = Some(SandboxKey {
        namespace: place.namespace.clone(),
        name: place.name.clone(),
    });
    open.uid.clone_from(&place.uid);
    Ok(SessionRequest {
        kind: Some(Request::Open(open)),
    })
}

async fn attach(
    agents: &Agents,
    node: &str,
    receiver: mpsc::Receiver<SessionRequest>,
) -> Result<(agents::Connection, Streaming<SessionResponse>), Refusal> {
    let mut connection = agents.connect(node).await?;
    match connection
        .client
        .session(ReceiverStream::new(receiver))
        .await
    {
        Ok(replies) => Ok((connection, replies.into_inner())),
        Err(status) => {
            agents.ended(&connection, &status);
            Err(refusal(&status))
        }
    }
}

/// Hands on in both directions; the error is the agent's, or the connection's.
async fn pass(
    client: &mut Client,
    requests: mpsc::Sender<SessionRequest>,
    mut replies: Streaming<SessionResponse>,
) -> Result<Over, tonic::Status> {
    let mut waiting: Option<SessionRequest> = None;
    let mut ended = false;
    loop {
        // Every arm is cancel safe: tonic keeps a half received message in the stream, the client all of its state in itself, and a
        // permit that is not used is given back.
        tokio::select! {
            reply = replies.message(), if client.has_room() => match reply? {
                Some(reply) => {
                    ended = is_end(&reply);
                    say(client, &reply);
                }
                None if ended => return Ok(Over::Ended),
                None => return Err(tonic::Status::unavailable("the agent closed the stream")),
            },
            heard = client.next(waiting.is_none()) => match heard {
                Heard::Binary(message) => match SessionRequest::decode(message) {
                    Ok(request) => waiting = Some(request),
                    Err(error) => return Ok(Over::Refused(unread(&error))),
                },
                Heard::Room => {}
                Heard::Text => return Ok(Over::Refused(bad(BINARY))),
                Heard::Wrong(why) => return Ok(Over::Refused(bad(&why))),
                Heard::Left => {
                    farewell(requests, replies).await;
                    return Ok(Over::Left);
                }
            },
            permit = requests.clone().reserve_owned(), if waiting.is_some() => {
                let Ok(permit) = permit else {
                    return Err(tonic::Status::unavailable("the agent closed the stream"));
                };
                if let Some(request) = waiting.take() {
                    drop(permit.send(request));
                }
            }
        }
    }
}

/// What the client asked last, a kill perhaps, must still reach the agent: dropped at once the stream is reset before.
async fn farewell(requests: mpsc::Sender<SessionRequest>, mut replies: Streaming<SessionResponse>) {
    drop(requests);
    let last = async { while let Ok(Some(_)) = replies.message().await {} };
    // Late or not: the client has gone.
    drop(tokio::time::timeout(FAREWELL, last).await);
}

/// Whether a reader wants it: all but the output of the other stream.
fn is_wanted(reply: &SessionResponse, ask: &AskLog) -> bool {
    let stream = match &reply.kind {
        Some(Reply::Output(output)) => output.stream,
        Some(Reply::Gap(gap)) => gap.stream,
        Some(Reply::Opened(_) | Reply::StdinTaken(_) | Reply::Exit(_)) | None => return true,
    };
    ask.stream.is_none_or(|wanted| wanted as i32 == stream)
}

fn is_end(reply: &SessionResponse) -> bool {
    matches!(reply.kind, Some(Reply::Exit(_)))
}

fn say(client: &mut Client, reply: &SessionResponse) {
    client.say(Message::Binary(reply.encode_to_vec().into()));
}

/// An agent's refusal; a connection that broke is told as what it is to the client, which then comes back.
fn refusal(status: &tonic::Status) -> Refusal {
    if is_broken(status) {
        let why = status.message();
        Refusal::new(
            Kind::ServiceUnavailable,
            format!("the connection to the agent broke ({why}); attach again"),
        )
    } else {
        Refusal::of_agent(status)
    }
}

fn stopped() -> Refusal {
    Refusal::new(
        Kind::ServiceUnavailable,
        "this gateway stops; attach again, to another one",
    )
}

fn unread(error: &prost::DecodeError) -> Refusal {
    bad(&format!("a message is no SessionRequest: {error}"))
}

fn bad(message: &str) -> Refusal {
    Refusal::new(Kind::BadRequest, message)
}

#[cfg(test)]
mod tests {
    use cloche_proto::agent::v1alpha1::{Command, Kill, Open};

    use super::*;

    fn place() -> Place {
        Place {
            namespace: "team".into(),
            name: "demo".into(),
            uid: "u".into(),
            node: "one".into(),
        }
    }

    fn open(command: Option<Command>) -> SessionRequest {
        SessionRequest {
            kind: Some(Request::Open(Open {
                command,
                // Another's, which must not be believed.
                key: Some(SandboxKey {
                    namespace: "other".into(),
                    name: "other".into(),
                }),
                uid: "other".into(),
                ..Open::default()
            })),
        }
    }

    #[test]
    fn the_gateway_says_of_which_sandbox_a_session_is() {
        let request = complete(open(Some(Command::default())), true, &place()).unwrap();
        let Some(Request::Open(open)) = request.kind else {
            panic!("open expected");
        };
        let key = open.key.unwrap();
        assert_eq!(
            (&*key.namespace, &*key.name, &*open.uid),
            ("team", "demo", "u")
        );
    }

    #[test]
    fn each_subresource_does_its_own() {
        let command = || Some(Command::default());
        assert!(complete(open(None), true, &place()).is_err());
        assert!(complete(open(command()), false, &place()).is_err());
        assert!(complete(open(None), false, &place()).is_ok());
        let kill = SessionRequest {
            kind: Some(Request::Kill(Kill {})),
        };
        assert!(complete(kill, true, &place()).is_err());
        assert!(complete(SessionRequest::default(), true, &place()).is_err());
    }
}
