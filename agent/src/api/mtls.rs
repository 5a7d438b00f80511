//! The same API over mTLS, for gateways: nobody else gets as far as a request.
//!
//! ```text
//!   socket ──► handshake, in a task of its own ──► HTTP/2
//!                 ▲
//!            the newest certificate
//! ```
//!
//! While there is no certificate nothing is accepted: who comes waits in the kernel's queue. A certificate that takes the place of
//! another is used from the next handshake on.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use cloche_identity::{Credentials, Identity};
use cloche_proto::agent::v1alpha1::agent_server::AgentServer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use super::{ApiError, Service};
use crate::node::Node;

/// Handshakes at one time. Anybody can begin one.
const HANDSHAKES: usize = 256;
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted, as where the process has no descriptor left.
const RETRY: Duration = Duration::from_millis(200);
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
        () = accept(listener, credentials, connections) => Ok(()),
        ended = server => ended.map_err(ApiError::Serve),
    }
}

/// A connection of a gateway.
struct Peer(TlsStream<TcpStream>);

async fn accept(
    listener: TcpListener,
    mut credentials: watch::Receiver<Option<Credentials>>,
    connections: mpsc::Sender<io::Result<Peer>>,
) {
    let room = Arc::new(Semaphore::new(HANDSHAKES));
    let mut acceptor = None;
    loop {
        if acceptor.is_none() {
            // Nobody may be accepted yet.
            if credentials.wait_for(Option::is_some).await.is_err() {
                return std::future::pending().await;
            }
            acceptor = newest(&mut credentials);
            if acceptor.is_none() {
                // Of no use; the next one may be.
                if credentials.changed().await.is_err() {
                    return std::future::pending().await;
                }
                continue;
            }
        }
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        if credentials.has_changed().unwrap_or(false) {
            acceptor = newest(&mut credentials).or(acceptor);
        }
        let Some(acceptor) = acceptor.clone() else {
            continue;
        };
        let connections = connections.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE, shake(&acceptor, stream)).await {
                // Where nobody takes it, the agent stops.
                Ok(Ok(peer)) => drop(connections.send(Ok(peer)).await),
                Ok(Err(error)) => tracing::debug!(%from, %error, "refused a connection"),
                Err(_) => tracing::debug!(%from, "a handshake took too long"),
            }
            drop(permit);
        });
    }
}

async fn shake(acceptor: &TlsAcceptor, stream: TcpStream) -> io::Result<Peer> {
    // Keys of a terminal must not wait for more.
    stream.set_nodelay(true)?;
    acceptor.accept(stream).await.map(Peer)
}

/// By the certificate that is the newest now, where it can be used.
fn newest(credentials: &mut watch::Receiver<Option<Credentials>>) -> Option<TlsAcceptor> {
    let credentials = credentials.borrow_and_update();
    match credentials.as_ref()?.server(is_gateway) {
        Ok(config) => Some(TlsAcceptor::from(Arc::new(config))),
        Err(error) => {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "cannot serve by this certificate"
            );
            None
        }
    }
}

fn is_gateway(peer: &Identity) -> bool {
    match peer {
        Identity::Gateway => true,
        Identity::Agent { .. } => false,
    }
}

impl Connected for Peer {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Peer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Peer {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
