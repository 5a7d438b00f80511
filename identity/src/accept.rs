//! Connections that prove themselves, for a gRPC server.
//!
//! ```text
//!   socket ──► handshake, in a task of its own ──► a peer that is taken, and who it is
//!                 ▲
//!            the newest certificate
//! ```
//!
//! While there is no certificate nothing is accepted: who comes waits in the kernel's queue. A certificate that takes the place of
//! another is used from the next handshake on.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::credentials::Credentials;
use crate::name::Identity;
use crate::tls;

/// Handshakes at one time. Anybody can begin one.
const HANDSHAKES: usize = 256;
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted, as where the process has no descriptor left.
const RETRY: Duration = Duration::from_millis(200);

/// A connection of a part that was taken. A handler finds its [`Identity`] among the extensions of each request.
#[derive(Debug)]
pub struct Peer {
    stream: TlsStream<TcpStream>,
    identity: Identity,
}

/// Who is taken.
type Taken = fn(&Identity) -> bool;

/// Accepts for ever, by the newest of `credentials`, those parts that `taken` takes, and hands them to `connections`. Returns when nobody
/// can have them any more.
pub async fn accept(
    listener: TcpListener,
    mut credentials: watch::Receiver<Option<Credentials>>,
    taken: Taken,
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
            acceptor = newest(&mut credentials, taken);
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
            acceptor = newest(&mut credentials, taken).or(acceptor);
        }
        let Some(acceptor) = acceptor.clone() else {
            continue;
        };
        let connections = connections.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE, shake(&acceptor, stream)).await {
                // Where nobody takes it, the server stops.
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
    let stream = acceptor.accept(stream).await?;
    let identity = tls::peer(stream.get_ref().1.peer_certificates()).map_err(io::Error::other)?;
    Ok(Peer { stream, identity })
}

/// By the certificate that is the newest now, where it can be used.
fn newest(
    credentials: &mut watch::Receiver<Option<Credentials>>,
    taken: Taken,
) -> Option<TlsAcceptor> {
    let credentials = credentials.borrow_and_update();
    match credentials.as_ref()?.server(taken) {
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

impl Connected for Peer {
    type ConnectInfo = Identity;

    fn connect_info(&self) -> Identity {
        self.identity.clone()
    }
}

impl AsyncRead for Peer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Peer {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
