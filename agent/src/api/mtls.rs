//! The same API over mTLS, for gateways: nobody else gets as far as a request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cloche_identity::{Credentials, Identity};
use cloche_proto::agent::v1alpha1::agent_server::AgentServer;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use super::{ApiError, Service};
use crate::node::Node;

/// Requests and sessions of one connection at one time: more than there may be sessions, so that one too many is told so and does not
/// wait.
const STREAMS: u32 = 2048;
/// Bytes of a session's requests that may wait in HTTP/2.
const WINDOW: u32 = 256 << 10;
/// How often a connection that says nothing is asked whether it is there, and how long that may take.
const ALIVE: Duration = Duration::from_secs(30);
const ALIVE_ANSWER: Duration = Duration::from_secs(20);
/// After this a connection takes no new requests, so that its client proves itself anew. What is under way goes on.
const AGE: Duration = Duration::from_hours(12);

/// Listens at `address`.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, ApiError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|source| ApiError::ListenAt { address, source })
}

/// Serves until the node's `cancel`, by the newest of `credentials`.
pub async fn serve(
    listener: TcpListener,
    credentials: watch::Receiver<Option<Credentials>>,
    node: Arc<Node>,
) -> Result<(), ApiError> {
    let cancel = node.cancel.clone();
    let service = AgentServer::new(Service {
        node,
        manifests: None,
    });
    let (connections, accepted) = mpsc::channel(1);
    let server = tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(WINDOW)
        .max_connection_age(AGE)
        .http2_keepalive_interval(Some(ALIVE))
        .http2_keepalive_timeout(Some(ALIVE_ANSWER))
        .add_service(service)
        .serve_with_incoming_shutdown(
            ReceiverStream::new(accepted),
            cancel.clone().cancelled_owned(),
        );
    tokio::select! {
        // Accepts for ever, or until the server has ended.
        () = cloche_identity::accept(listener, credentials, is_gateway, connections) => Ok(()),
        ended = server => ended.map_err(ApiError::Serve),
    }
}

fn is_gateway(peer: &Identity) -> bool {
    match peer {
        Identity::Gateway => true,
        Identity::Agent { .. } | Identity::Operator => false,
    }
}
