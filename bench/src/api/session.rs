//! One command over the gateway's own protocol (`cloche_proto::SESSION_PROTOCOL`), through the apiserver.

use anyhow::{Context as _, Result, bail, ensure};
use cloche_crds::cluster::{SUBRESOURCES_GROUP, VERSION};
use cloche_e2e::session::command;
use cloche_proto::SESSION_PROTOCOL;
use cloche_proto::agent::v1alpha1::session_request::Kind as Ask;
use cloche_proto::agent::v1alpha1::session_response::Kind as Reply;
use cloche_proto::agent::v1alpha1::{Exit, Open, SessionRequest, SessionResponse};
use futures::{SinkExt as _, StreamExt as _};
use http::header::{
    CONNECTION, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use prost::Message as _;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::Role;

/// Runs it in a sandbox of the namespace `default`, to its end.
pub(super) async fn run(client: &Client, sandbox: &str, argv: &[&str]) -> Result<Exit> {
    let path =
        format!("/apis/{SUBRESOURCES_GROUP}/{VERSION}/namespaces/default/sandboxes/{sandbox}/exec");
    let request = Request::get(path)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_VERSION, "13")
        .header(SEC_WEBSOCKET_KEY, generate_key())
        .header(SEC_WEBSOCKET_PROTOCOL, SESSION_PROTOCOL)
        .body(Body::empty())
        .context("make a request")?;
    let response = client.send(request).await.context("ask for a session")?;
    ensure!(
        response.status() == StatusCode::SWITCHING_PROTOCOLS,
        "asked for a session, got {}",
        response.status()
    );
    let upgraded = hyper::upgrade::on(response)
        .await
        .context("upgrade to a session")?;
    let mut socket =
        WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await;
    let open = SessionRequest {
        kind: Some(Ask::Open(Open {
            command: Some(command(argv)),
            ..Open::default()
        })),
    };
    socket
        .send(Message::Binary(open.encode_to_vec().into()))
        .await
        .context("ask for the command")?;
    while let Some(message) = socket.next().await {
        match message.context("read the session")? {
            Message::Binary(data) => {
                let reply = SessionResponse::decode(data).context("read a reply")?;
                if let Some(Reply::Exit(exit)) = reply.kind {
                    return Ok(exit);
                }
            }
            Message::Text(text) => bail!("the gateway refuses: {text}"),
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            Message::Close(why) => bail!("the gateway closed the session: {why:?}"),
        }
    }
    bail!("the session ended without an exit")
}
