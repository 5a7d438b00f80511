//! One WebSocket to the gateway, through the apiserver: `cloche_proto::SESSION_PROTOCOL`.

use std::time::Duration;

use cloche_proto::agent::v1alpha1::{SessionRequest, SessionResponse};
use cloche_proto::{SESSION_MESSAGE, SESSION_PROTOCOL};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use super::answer::{self, Asked};
use crate::backend::{Connection, Failure, REQUESTS, Replies};
use crate::error::chain;

/// How long the answer to an upgrade may take: the gateway looks the sandbox up and asks whether the user may.
const UPGRADE_TIME: Duration = Duration::from_secs(30);
/// How long nothing at all may come. The gateway gives a sign of life every 30 s.
const SILENCE: Duration = Duration::from_secs(95);
/// Most that is read of a refusal.
const REFUSAL: usize = 64 << 10;

type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

/// Opens a session at `path`, and says `first`.
pub(super) async fn session(
    client: &Client,
    server: &str,
    path: &str,
    first: SessionRequest,
) -> Result<Connection, Failure> {
    let (sink, stream) = open(client, server, path).await?.split();
    let (requests, receiver) = mpsc::channel(REQUESTS);
    // Cannot fail: there is room and the receiver is held.
    drop(requests.send(first).await);
    tokio::spawn(write(sink, receiver));
    Ok(Connection {
        requests,
        replies: Replies::Cluster(Incoming { stream }),
    })
}

/// Opens a stream at `path` on which there is nothing to say.
pub(super) async fn read(client: &Client, server: &str, path: &str) -> Result<Replies, Failure> {
    let (_, stream) = open(client, server, path).await?.split();
    Ok(Replies::Cluster(Incoming { stream }))
}

async fn open(client: &Client, server: &str, path: &str) -> Result<Socket, Failure> {
    timeout(UPGRADE_TIME, upgrade(client, server, path))
        .await
        .unwrap_or_else(|_| Err(Failure::broken("the cluster does not answer")))
}

async fn upgrade(client: &Client, server: &str, path: &str) -> Result<Socket, Failure> {
    let key = generate_key();
    let request = Request::get(path)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_VERSION, "13")
        .header(SEC_WEBSOCKET_KEY, &key)
        .header(SEC_WEBSOCKET_PROTOCOL, SESSION_PROTOCOL)
        .body(Body::empty())
        .map_err(|problem| Failure::Wrong(problem.to_string()))?;
    let response = client
        .send(request)
        .await
        .map_err(|problem| answer::failure(problem, Asked::Gateway, server))?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refusal(response).await);
    }
    let is = |header, wanted: &str| {
        let found = response.headers().get(header);
        found.is_some_and(|found| found.as_bytes() == wanted.as_bytes())
    };
    if !is(SEC_WEBSOCKET_ACCEPT, &derive_accept_key(key.as_bytes())) {
        return Err(Failure::Wrong("it accepts another connection".to_owned()));
    }
    if !is(SEC_WEBSOCKET_PROTOCOL, SESSION_PROTOCOL) {
        return Err(Failure::Wrong(format!(
            "it does not speak {SESSION_PROTOCOL}: the gateway is of another version than this program"
        )));
    }
    let upgraded = hyper::upgrade::on(response)
        .await
        .map_err(|problem| Failure::broken(&chain(&problem)))?;
    let config = WebSocketConfig::default()
        .max_message_size(Some(SESSION_MESSAGE))
        .max_frame_size(Some(SESSION_MESSAGE));
    let stream = TokioIo::new(upgraded);
    Ok(WebSocketStream::from_raw_socket(stream, Role::Client, Some(config)).await)
}

/// What an answer that is no upgrade says.
async fn refusal(response: Response<Body>) -> Failure {
    let code = response.status().as_u16();
    let body = match Limited::new(response.into_body(), REFUSAL).collect().await {
        Ok(body) => body.to_bytes(),
        Err(problem) => return Failure::broken(&chain(&*problem)),
    };
    let mut status = serde_json::from_slice::<Status>(&body)
        .ok()
        .filter(|status| status.status.is_some());
    if let Some(status) = &mut status {
        status.code = code;
    }
    let text = String::from_utf8_lossy(&body);
    let status = status.unwrap_or_else(|| Status {
        message: text.trim().to_owned(),
        code,
        ..Status::default()
    });
    answer::status(&status, Asked::Gateway)
}

/// Writes requests until there will be none, and then closes. A socket that takes no more ends it, which whoever sends the requests
/// sees.
async fn write(mut sink: SplitSink<Socket, Message>, mut requests: mpsc::Receiver<SessionRequest>) {
    while let Some(request) = requests.recv().await {
        let message = Message::Binary(request.encode_to_vec().into());
        if sink.send(message).await.is_err() {
            return;
        }
    }
    // Broken or not: nobody listens any more.
    sink.close().await.ok();
}

/// What comes from the gateway.
#[derive(Debug)]
pub(crate) struct Incoming {
    stream: SplitStream<Socket>,
}

impl Incoming {
    /// The next reply; `None`: the gateway has said all. Cancel safe: a half received message stays in the socket.
    pub(crate) async fn next(&mut self) -> Result<Option<SessionResponse>, Failure> {
        loop {
            let Ok(message) = timeout(SILENCE, self.stream.next()).await else {
                return Err(Failure::broken("nothing comes any more"));
            };
            return match message {
                Some(Ok(Message::Binary(data))) => SessionResponse::decode(data)
                    .map(Some)
                    .map_err(|problem| Failure::Wrong(format!("a message is no reply: {problem}"))),
                Some(Ok(Message::Text(text))) => Err(told(text.as_str())),
                // Answered by the socket itself.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                Some(Ok(Message::Close(Some(frame)))) if frame.code == CloseCode::Normal => {
                    Ok(None)
                }
                Some(Ok(Message::Close(Some(frame)))) if !frame.reason.is_empty() => Err(
                    Failure::broken(&format!("it closed the stream: {}", frame.reason)),
                ),
                Some(Ok(Message::Close(_))) | None => Err(Failure::broken("it closed the stream")),
                Some(Err(problem)) => Err(fault(&problem)),
            };
        }
    }
}

/// Why the gateway ends a stream before its end, as it says.
fn told(text: &str) -> Failure {
    match serde_json::from_str::<Status>(text) {
        Ok(status) if status.status.is_some() => answer::status(&status, Asked::Gateway),
        Ok(_) | Err(_) => Failure::Wrong("a text that is no Status".to_owned()),
    }
}

/// Whether the connection broke or the gateway broke the protocol.
fn fault(problem: &SocketError) -> Failure {
    match problem {
        SocketError::Capacity(_) => {
            Failure::Wrong(format!("a message of more than {SESSION_MESSAGE} bytes"))
        }
        SocketError::Utf8(_) => Failure::Wrong("a text that is not UTF-8".to_owned()),
        // Tungstenite's own list, which may grow: the connection, or what a broken one leaves of a frame.
        problem => Failure::broken(&chain(problem)),
    }
}
