//! The way to the agents: one connection per node, kept, over mTLS.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cloche_identity::{Credentials, Identity};
use cloche_proto::SESSION_MESSAGE;
use cloche_proto::agent::v1alpha1::agent_client::AgentClient;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use rustls_pki_types::CertificateDer;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::access::Apiserver;
use crate::place;
use crate::refusal::{Kind, Refusal};

/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(5);
/// How long an attempt that failed is everybody's answer: as long as it took, and no longer than this.
const REMEMBERED: Duration = Duration::from_secs(1);
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
    attempt: Attempt,
    /// The gateway's own certificate in it.
    own: CertificateDer<'static>,
    asked: Instant,
}

/// One attempt to connect, of all who ask meanwhile.
type Attempt = Shared<BoxFuture<'static, Result<Connection, Failed>>>;

/// An attempt that failed.
#[derive(Clone)]
struct Failed {
    refusal: Refusal,
    /// From then on another one makes sense.
    until: Instant,
}

/// A connection to an agent. It does not come back by itself once it broke.
#[derive(Clone)]
pub(crate) struct Connection {
    /// To call the agent by.
    pub(crate) client: AgentClient<Channel>,
    node: String,
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
        let attempt = self.attempt(node, credentials, own);
        attempt.await.map_err(|failed| failed.refusal)
    }

    /// A stream over `connection` ended by `status`. If that is because it broke, the next one who asks gets another; the other streams
    /// over it end by themselves.
    pub(crate) fn ended(&self, connection: &Connection, status: &Status) {
        if !is_of_transport(status) {
            return;
        }
        let is_it = |kept: &Connection| Arc::ptr_eq(&kept.mark, &connection.mark);
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Ok(kept)) = nodes.get(&connection.node).and_then(Node::outcome)
            && is_it(&kept)
        {
            nodes.remove(&connection.node);
        }
    }

    /// What a client is told of a request over `connection` that was answered by `status`. Where that is because it broke, the client may
    /// ask again, and gets another ([`Self::ended`]).
    pub(crate) fn refusal(&self, connection: &Connection, status: &Status) -> Refusal {
        self.ended(connection, status);
        if !is_broken(status) {
            return Refusal::of_agent(status);
        }
        let why = status.message();
        let message = format!("the connection to the agent broke ({why}); retry");
        Refusal::new(Kind::ServiceUnavailable, message)
    }

    /// The attempt that is under way, or stood; a new one where there is none, or none with the certificate `own`.
    fn attempt(
        &self,
        node: &str,
        credentials: Credentials,
        own: CertificateDer<'static>,
    ) -> Attempt {
        let now = Instant::now();
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = nodes.get_mut(node)
            && known.own == own
            && !matches!(known.outcome(), Some(Err(failed)) if failed.until <= now)
        {
            known.asked = now;
            return known.attempt.clone();
        }
        nodes.retain(|_, known| now.duration_since(known.asked) < IDLE);
        let connecting = connect(self.apiserver.clone(), node.to_owned(), credentials);
        // In a task of its own: that who asked first leaves must not make the others wait once more.
        let connecting = tokio::spawn(connecting);
        let attempt = async move {
            let made = connecting
                .await
                .unwrap_or_else(|_| Err(unavailable("the gateway stops; retry")));
            made.map_err(|refusal| {
                let until = Instant::now() + now.elapsed().min(REMEMBERED);
                Failed { refusal, until }
            })
        };
        let attempt = attempt.boxed().shared();
        let known = Node {
            attempt: attempt.clone(),
            own,
            asked: now,
        };
        nodes.insert(node.to_owned(), known);
        attempt
    }
}

impl Node {
    /// What came of the attempt, if it is over.
    fn outcome(&self) -> Option<Result<Connection, Failed>> {
        self.attempt.clone().now_or_never()
    }
}

async fn connect(
    apiserver: Apiserver,
    node: String,
    credentials: Credentials,
) -> Result<Connection, Refusal> {
    let endpoint = place::endpoint(&apiserver, &node).await?;
    let channel = tokio::time::timeout(CONNECT, reach(&credentials, &node, endpoint))
        .await
        .unwrap_or_else(|_| Err("it does not answer".to_owned()))
        .map_err(|why| {
            unavailable(&format!(
                "the agent of node {node:?} cannot be reached at {endpoint}: {why}"
            ))
        })?;
    Ok(Connection {
        client: AgentClient::new(channel)
            .max_decoding_message_size(SESSION_MESSAGE)
            .max_encoding_message_size(SESSION_MESSAGE + 1024),
        node,
        mark: Arc::default(),
    })
}

/// Connects once. The error is in words.
async fn reach(
    credentials: &Credentials,
    node: &str,
    endpoint: SocketAddr,
) -> Result<Channel, String> {
    let identity = Identity::agent(node).ok_or("that is no name of a node")?;
    cloche_identity::connect(credentials, identity, endpoint, |endpoint| {
        endpoint
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOWS)
            .http2_keep_alive_interval(ALIVE)
            .keep_alive_timeout(ALIVE)
            .keep_alive_while_idle(true)
    })
    .await
}

fn unavailable(message: &str) -> Refusal {
    Refusal::new(Kind::ServiceUnavailable, message)
}

/// Whether the stream broke, as it does when the agent restarts, or the agent says that it may work soon, so that trying again makes
/// sense. Everything else is the agent's answer.
pub(crate) fn is_broken(status: &Status) -> bool {
    match status.code() {
        // Also what tonic makes of a closed or reset connection, and of a handler that panicked.
        Code::Unavailable | Code::Cancelled | Code::Unknown => true,
        Code::Internal => is_of_transport(status),
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

/// Whether it was made of a failure on this side of the connection: what an agent answers has no source.
fn is_of_transport(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}
