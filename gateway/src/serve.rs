//! Connections: TLS, then HTTP/1.1, each within bounds.
//!
//! ```text
//! accepted ──► stranger ──asks as the front proxy──► known: for as long as there is something to serve
//!                 └──► probes and refusals are answered, and the connection closed
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use cloche_identity::Credentials;
use http::{HeaderValue, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt};
use rustls_pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::front_proxy::GROUPS;
use crate::strangers::{Acquaintance, Strangers};
use crate::tls;

/// How long a request's head may take, and how long a connection may idle before it, once its client is known.
const HEAD: Duration = Duration::from_mins(1);
/// Most bytes of a request's head.
const HEAD_SIZE: usize = 128 << 10;
/// Most headers of a request: the front proxy sends one for each of the user's groups, and some more.
const HEADERS: usize = GROUPS + 128;
/// Connections of known clients beside those that carry streams.
const SPARE: usize = 512;
/// A connection on which nothing happens is looked after so often, and given up when three in a row are not answered.
const KEEPALIVE: u32 = 15;
/// Bytes that wait in the kernel for a client; it takes twice as much.
const UNSENT: usize = 128 << 10;
/// How long to wait after the system could not accept a connection: it is out of something.
const PAUSE: Duration = Duration::from_millis(100);

/// The client of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// What it showed in the handshake.
    chain: Arc<[CertificateDer<'static>]>,
    acquaintance: Acquaintance,
}

impl Peer {
    /// Its certificate first; empty where it showed none.
    pub(crate) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// It is who may ask; false where there is no room for one more connection.
    pub(crate) fn is_welcome(&self) -> bool {
        self.acquaintance.make()
    }
}

/// Accepts connections until `stop`; those that are open then are ended when they are idle. `streams`: how many of them may be streams.
pub(crate) async fn serve(
    listener: TcpListener,
    mut credentials: watch::Receiver<Option<Credentials>>,
    router: Router,
    streams: usize,
    stop: CancellationToken,
    tracker: TaskTracker,
) {
    let room = Arc::new(Semaphore::new(streams + SPARE));
    let strangers = Strangers::default();
    let mut acceptor = None;
    loop {
        let stream = tokio::select! {
            // Where both are ready the connection that was accepted is dropped: there is a stop.
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
            () = stop.cancelled() => return,
        };
        if credentials.has_changed().unwrap_or(false) || acceptor.is_none() {
            let current = credentials.borrow_and_update().clone();
            acceptor = current
                .and_then(|credentials| accept(&credentials))
                .or(acceptor);
        }
        // Without a certificate there is nothing to answer with: the connection is closed.
        let Some(acceptor) = acceptor.clone() else {
            continue;
        };
        let (router, stop) = (router.clone(), stop.clone());
        let (stranger, acquaintance) = (strangers.enter(), Acquaintance::new(&room));
        tracker.spawn(async move {
            let served = async {
                if let Some(stream) = shake_hands(stream, &acceptor).await {
                    connection(stream, router, acquaintance.clone(), &stop).await;
                }
            };
            tokio::select! {
                () = served => {}
                // Whatever is being said is cut off.
                () = stranger.over(&acquaintance) => {}
            }
        });
    }
}

fn accept(credentials: &Credentials) -> Option<TlsAcceptor> {
    match tls::server(credentials) {
        Ok(config) => Some(TlsAcceptor::from(Arc::new(config))),
        Err(error) => {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the certificate cannot be served with"
            );
            None
        }
    }
}

fn set_up(stream: &TcpStream) -> std::io::Result<()> {
    // Small messages go both ways all the time: each would wait for the acknowledgement of the one before.
    stream.set_nodelay(true)?;
    // A front proxy that is gone with its machine says nothing, and its streams would hold their places for ever. What it was sent and does not
    // acknowledge is given up by the kernel after some 15 minutes (tcp_retries2). Not sooner, by TCP_USER_TIMEOUT: that also ends who only does
    // not read (seen after 60 s), and an output in a pager is nothing wrong.
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &KEEPALIVE)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &KEEPALIVE)?;
    setsockopt(stream, sockopt::TcpKeepCount, &3)?;
    setsockopt(stream, sockopt::SndBuf, &UNSENT)?;
    Ok(())
}

async fn shake_hands(stream: TcpStream, acceptor: &TlsAcceptor) -> Option<TlsStream<TcpStream>> {
    if let Err(error) = set_up(&stream) {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "cannot set a connection up"
        );
        return None;
    }
    match acceptor.accept(stream).await {
        Ok(stream) => Some(stream),
        Err(error) => {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "a TLS handshake failed"
            );
            None
        }
    }
}

async fn connection(
    stream: TlsStream<TcpStream>,
    router: Router,
    acquaintance: Acquaintance,
    stop: &CancellationToken,
) {
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let chain: Vec<_> = chain
        .iter()
        .cloned()
        .map(CertificateDer::into_owned)
        .collect();
    let peer = Peer {
        chain: chain.into(),
        acquaintance: acquaintance.clone(),
    };
    let service = service_fn(move |request: http::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        let (router, acquaintance) = (router.clone(), acquaintance.clone());
        async move {
            let mut response = router
                .oneshot(request)
                .await
                .unwrap_or_else(|never| match never {});
            if !acquaintance.is_made() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_SIZE)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(
            error = &error as &dyn std::error::Error,
            "a connection broke"
        );
    }
}
