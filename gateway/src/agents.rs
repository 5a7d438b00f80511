//! The way to the agents: one connection per node, kept, over mTLS.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cloche_identity::{Credentials, Identity};
use cloche_proto::SESSION_MESSAGE;
use cloche_proto::agent::v1alpha1::agent_client::AgentClient;
use hyper_util::rt::TokioIo;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::service_fn;

use crate::access::Apiserver;
use crate::place;
use crate::refusal::{Kind, Refusal};

/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(5);
/// How often a connection is asked whether it still is one, and how long its answer may take.
const ALIVE: Duration = Duration::from_secs(15);
/// Bytes in flight per stream. HTTP/2's own 64 KiB would make every second chunk of output wait for an acknowledgement.
const WINDOW: u32 = 256 << 10;
/// Bytes in flight over all streams of a connection: no bound (the most that HTTP/2 knows), since streams whose clients do not read
/// would use up any and hold up all others of the node.
const WINDOWS: u32 = (1 << 31) - 1;
/// A connection that nobody asked for so long is not kept: its node may be gone for good.
const IDLE: Duration = Duration::from_mins(10);

/// All agents. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Agents {
    apiserver: Apiserver,
    credentials: watch::Receiver<Option<Credentials>>,
    nodes: Arc<Mutex<HashMap<String, Node>>>,
}

/// What is kept of one node.
struct Node {
    /// Locked while somebody connects: the others wait for the same connection.
    slot: Arc<tokio::sync::Mutex<Option<Connection>>>,
    asked: Instant,
}

/// A connection to an agent. It does not come back by itself once it broke.
#[derive(Clone)]
pub(crate) struct Connection {
    /// To call the agent by.
    pub(crate) client: AgentClient<Channel>,
    node: String,
    /// The gateway's own certificate in it.
    own: CertificateDer<'static>,
    /// Tells it from the ones before and after.
    mark: Arc<()>,
}

impl Agents {
    /// Nothing is connected yet.
    pub(crate) fn new(
        apiserver: Apiserver,
        credentials: watch::Receiver<Option<Credentials>>,
    ) -> Self {
        Self {
            apiserver,
            credentials,
            nodes: Arc::default(),
        }
    }

    /// The connection to the agent of `node`, made if there is none, or none with the gateway's newest certificate.
    pub(crate) async fn connect(&self, node: &str) -> Result<Connection, Refusal> {
        let current = self.credentials.borrow().clone();
        let (credentials, own) = current
            .and_then(|credentials| {
                let own = credentials.chain().first().cloned()?;
                Some((credentials, own))
            })
            .ok_or_else(|| unavailable("the gateway has no certificate yet; retry"))?;
        let slot = self.slot(node);
        let mut kept = slot.lock().await;
        if let Some(connection) = kept.as_ref().filter(|kept| kept.own == own) {
            return Ok(connection.clone());
        }
        let endpoint = place::endpoint(&self.apiserver, node).await?;
        let channel = tokio::time::timeout(CONNECT, reach(&credentials, node, &endpoint))
            .await
            .unwrap_or_else(|_| Err("it does not answer".to_owned()))
            .map_err(|why| {
                unavailable(&format!(
                    "the agent of node {node:?} cannot be reached at {endpoint}: {why}"
                ))
            })?;
        let connection = Connection {
            client: AgentClient::new(channel)
                .max_decoding_message_size(SESSION_MESSAGE)
                .max_encoding_message_size(SESSION_MESSAGE + 1024),
            node: node.to_owned(),
            own,
            mark: Arc::default(),
        };
        *kept = Some(connection.clone());
        Ok(connection)
    }

    /// `connection` broke: the next one who asks gets another. Streams over it end by themselves.
    pub(crate) async fn forget(&self, connection: &Connection) {
        let slot = self.slot(&connection.node);
        let mut kept = slot.lock().await;
        if kept
            .as_ref()
            .is_some_and(|kept| Arc::ptr_eq(&kept.mark, &connection.mark))
        {
            *kept = None;
        }
    }

    fn slot(&self, node: &str) -> Arc<tokio::sync::Mutex<Option<Connection>>> {
        let now = Instant::now();
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = nodes.get_mut(node) {
            known.asked = now;
            return Arc::clone(&known.slot);
        }
        nodes.retain(|_, known| now.duration_since(known.asked) < IDLE);
        let slot = Arc::default();
        let known = Node {
            slot: Arc::clone(&slot),
            asked: now,
        };
        nodes.insert(node.to_owned(), known);
        slot
    }
}

/// Connects once. The error is in words: of a failure that rustls or tonic wraps, the innermost is what matters.
async fn reach(credentials: &Credentials, node: &str, endpoint: &str) -> Result<Channel, String> {
    let identity = Identity::agent(node).ok_or("that is no name of a node")?;
    let name = ServerName::try_from(identity.server_name()).map_err(|error| error.to_string())?;
    let tls = credentials
        .client(identity)
        .map_err(|error| error.to_string())?;
    let stream = TcpStream::connect(endpoint)
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
    Endpoint::from_static("http://agent.cloche.internal")
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOWS)
        .http2_keep_alive_interval(ALIVE)
        .keep_alive_timeout(ALIVE)
        .keep_alive_while_idle(true)
        .connect_with_connector(service_fn(move |_| {
            let stream = stream.take();
            // Asked a second time: tonic would connect anew by itself, to where the agent may be no more.
            async move { stream.ok_or_else(|| io::Error::other("it closed the connection")) }
        }))
        .await
        .map_err(|error| error.to_string())
}

fn unavailable(message: &str) -> Refusal {
    Refusal::new(Kind::ServiceUnavailable, message)
}

/// Whether the connection broke, as it does when the agent restarts, so that trying again makes sense. Everything else is the agent's
/// answer.
pub(crate) fn is_broken(status: &Status) -> bool {
    match status.code() {
        // What tonic makes of a closed or reset connection; a handler's own panic also arrives as one of them.
        Code::Unavailable | Code::Cancelled | Code::Unknown => true,
        Code::Internal => std::error::Error::source(status).is_some(),
        Code::Ok
        | Code::InvalidArgument
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => false,
    }
}
