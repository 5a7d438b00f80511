//! The way to another part, for a gRPC client.

use std::io;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::credentials::Credentials;
use crate::name::Identity;

/// Connects once to `peer` at `address`, with what `set` sets; the channel does not come back by itself once it broke. Takes as long as it
/// takes. The error is in words: of a failure that rustls or tonic wraps, the innermost is what matters.
pub async fn connect(
    credentials: &Credentials,
    peer: Identity,
    address: impl ToSocketAddrs,
    set: impl FnOnce(Endpoint) -> Endpoint,
) -> Result<Channel, String> {
    let host = peer.server_name();
    let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
    let tls = credentials
        .client(peer)
        .map_err(|error| error.to_string())?;
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| error.to_string())?;
    // Small messages go both ways all the time: each would wait for the acknowledgement of the one before.
    stream
        .set_nodelay(true)
        .map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(Arc::new(tls))
        .connect(name, stream)
        .await
        .map_err(|error| error.to_string())?;
    let mut stream = Some(TokioIo::new(stream));
    let endpoint = Endpoint::from_shared(format!("http://{host}"));
    set(endpoint.map_err(|error| error.to_string())?)
        .connect_with_connector(service_fn(move |_| {
            let stream = stream.take();
            // Asked a second time: tonic would connect anew by itself, to where the part may be no more.
            async move { stream.ok_or_else(|| io::Error::other("it closed the connection")) }
        }))
        .await
        .map_err(|error| error.to_string())
}
