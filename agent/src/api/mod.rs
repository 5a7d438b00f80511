//! The gRPC API on the local socket, and in a cluster over [`mtls`].
//!
//! Requests are checked here and answered from the board, the manifest directory and the sessions; nothing is decided here. The
//! socket lies in a folder of mode 0700 and has mode 0600: who can reach it is root.

pub mod mtls;
mod objects;
mod pause;
mod requests;
mod session;
mod stream;
mod streams;
mod usage;

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cloche_proto::agent::v1alpha1 as pb;
use cloche_proto::agent::v1alpha1::agent_server::{Agent, AgentServer};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, Streaming};

use crate::board::Posting;
use crate::node::Node;
use crate::source::{self, ManifestDirectory, SandboxKey};

pub use streams::Streams;

/// The API could not be offered.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The socket could not be made.
    #[error("listen on the socket {path}")]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The address could not be taken.
    #[error("listen at {address}")]
    ListenAt {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The server failed.
    #[error("serve the API")]
    Serve(#[source] tonic::transport::Error),
}

/// Listens on the socket `path`, taking the place of one that an earlier agent left.
pub fn listen(path: &Path) -> Result<UnixListener, ApiError> {
    let failed = |source| ApiError::Listen {
        path: path.to_owned(),
        source,
    };
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        Err(_) | Ok(()) => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Serves until the node's `cancel`, with `manifests` where the node's sandboxes are some; streams that are open then are broken off, and their clients come back.
pub async fn serve(
    listener: UnixListener,
    node: Arc<Node>,
    manifests: Option<Arc<ManifestDirectory>>,
) -> Result<(), ApiError> {
    let cancel = node.cancel.clone();
    let service = AgentServer::new(Service { node, manifests });
    tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async move {
            cancel.cancelled().await;
        })
        .await
        .map_err(ApiError::Serve)
}

struct Service {
    node: Arc<Node>,
    manifests: Option<Arc<ManifestDirectory>>,
}

impl Service {
    fn manifests(&self) -> Result<&Arc<ManifestDirectory>, Status> {
        self.manifests.as_ref().ok_or_else(|| {
            Status::failed_precondition(
                "this agent's sandboxes are objects of a cluster: create and delete them there, as by kubectl apply and kubectl delete",
            )
        })
    }
}

#[tonic::async_trait]
impl Agent for Service {
    type WatchStream = stream::Receiving<pb::WatchEvent>;
    type SessionStream = stream::Receiving<pb::SessionResponse>;
    type LogStream = stream::Receiving<pb::SessionResponse>;

    async fn list(
        &self,
        request: Request<pb::ListRequest>,
    ) -> Result<Response<pb::ListResponse>, Status> {
        objects::list(&self.node, request.into_inner()).map(Response::new)
    }

    async fn watch(
        &self,
        request: Request<pb::ListRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        objects::watch(&self.node, request.into_inner()).map(Response::new)
    }

    async fn apply(
        &self,
        request: Request<pb::ApplyRequest>,
    ) -> Result<Response<pb::ApplyResponse>, Status> {
        objects::apply(self.manifests()?, request.into_inner())
            .await
            .map(Response::new)
    }

    async fn delete(
        &self,
        request: Request<pb::DeleteRequest>,
    ) -> Result<Response<pb::DeleteResponse>, Status> {
        objects::delete(&self.node, self.manifests()?, request.into_inner())
            .await
            .map(Response::new)
    }

    async fn session(
        &self,
        request: Request<Streaming<pb::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        session::open(&self.node, request.into_inner())
            .await
            .map(Response::new)
    }

    async fn log(
        &self,
        request: Request<pb::LogRequest>,
    ) -> Result<Response<Self::LogStream>, Status> {
        session::log(&self.node, request.into_inner())
            .await
            .map(Response::new)
    }

    async fn usage(
        &self,
        request: Request<pb::UsageRequest>,
    ) -> Result<Response<pb::UsageResponse>, Status> {
        usage::usage(&self.node, request.into_inner())
            .await
            .map(Response::new)
    }
}

/// The sandbox that a request names.
fn key(key: Option<pb::SandboxKey>) -> Result<SandboxKey, Status> {
    let key = key.filter(|key| !key.name.is_empty());
    let pb::SandboxKey { namespace, name } =
        key.ok_or_else(|| Status::invalid_argument("the request names no sandbox"))?;
    let namespace = if namespace.is_empty() {
        source::NAMESPACE.to_owned()
    } else {
        namespace
    };
    Ok(SandboxKey { namespace, name })
}

/// What is known of it; `uid` empty: whichever has the name.
fn posting(node: &Node, key: &SandboxKey, uid: &str) -> Result<Posting, Status> {
    let posting = node.board.get(key).ok_or_else(|| no_such(key))?;
    if !uid.is_empty() && uid != posting.record.uid {
        return Err(Status::not_found(format!(
            "the sandbox {:?} with uid {uid:?} is not on this node: it was deleted, and another one has its name",
            key.name
        )));
    }
    Ok(posting)
}

fn no_such(key: &SandboxKey) -> Status {
    Status::not_found(format!(
        "no sandbox {:?} in namespace {:?} on this node",
        key.name, key.namespace
    ))
}
