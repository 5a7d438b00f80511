//! The agent's API, as tests use it.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use cloche_proto::agent::v1alpha1::agent_client::AgentClient;
use cloche_proto::agent::v1alpha1::{ApplyRequest, DeleteRequest, ListRequest, SandboxKey};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// A connection. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    grpc: AgentClient<Channel>,
}

impl Client {
    /// Connects once.
    pub async fn connect(socket: &Path) -> Result<Self> {
        let socket = socket.to_owned();
        let shown = socket.display().to_string();
        let channel = Endpoint::from_static("http://agent.invalid")
            .connect_with_connector(tower::service_fn(move |_: Uri| {
                let socket = socket.clone();
                async move { UnixStream::connect(socket).await.map(TokioIo::new) }
            }))
            .await
            .with_context(|| format!("connect to the agent at {shown}"))?;
        let grpc = AgentClient::new(channel).max_decoding_message_size(64 << 20);
        Ok(Self { grpc })
    }

    /// All calls.
    pub fn grpc(&mut self) -> &mut AgentClient<Channel> {
        &mut self.grpc
    }

    /// Applies a manifest in YAML or JSON; the refusal as gRPC gives it.
    pub async fn try_apply(&mut self, manifest: &str) -> Result<SandboxKey, tonic::Status> {
        self.put(manifest, false).await
    }

    /// Applies a manifest in place of the one of this name.
    pub async fn replace(&mut self, manifest: &str) -> Result<()> {
        let put = self.put(manifest, true).await;
        put.map(drop)
            .with_context(|| format!("replace\n{manifest}"))
    }

    async fn put(&mut self, manifest: &str, replace: bool) -> Result<SandboxKey, tonic::Status> {
        let request = ApplyRequest {
            manifest: manifest.as_bytes().to_vec(),
            replace,
        };
        let response = self.grpc.apply(request).await?.into_inner();
        response
            .key
            .ok_or_else(|| tonic::Status::internal("apply answered without a key"))
    }

    /// Applies a manifest; the name.
    pub async fn apply(&mut self, manifest: &str) -> Result<String> {
        let key = self
            .try_apply(manifest)
            .await
            .with_context(|| format!("apply\n{manifest}"))?;
        Ok(key.name)
    }

    /// Asks for a deletion. One that is gone already is fine.
    pub async fn delete(&mut self, name: &str) -> Result<()> {
        match self
            .grpc
            .delete(DeleteRequest {
                key: Some(key(name)),
                ..DeleteRequest::default()
            })
            .await
        {
            Ok(_) => Ok(()),
            Err(status) if status.code() == tonic::Code::NotFound => Ok(()),
            Err(status) => Err(status).with_context(|| format!("delete {name}")),
        }
    }

    /// All objects.
    pub async fn list(&mut self) -> Result<Vec<Value>> {
        let response = self
            .grpc
            .list(ListRequest { key: None })
            .await
            .context("list sandboxes")?;
        response
            .into_inner()
            .objects
            .iter()
            .map(|object| serde_json::from_slice(object).context("read a listed object"))
            .collect()
    }

    /// One object; `None`: there is none.
    pub async fn get(&mut self, name: &str) -> Result<Option<Value>> {
        let request = ListRequest {
            key: Some(key(name)),
        };
        match self.grpc.list(request).await {
            Ok(response) => match &response.into_inner().objects[..] {
                [object] => serde_json::from_slice(object)
                    .map(Some)
                    .context("read an object"),
                objects => bail!("asked for {name}, got {} objects", objects.len()),
            },
            Err(status) if status.code() == tonic::Code::NotFound => Ok(None),
            Err(status) => Err(status).with_context(|| format!("get {name}")),
        }
    }
}

/// A sandbox in the only namespace.
pub fn key(name: &str) -> SandboxKey {
    SandboxKey {
        namespace: "default".to_owned(),
        name: name.to_owned(),
    }
}
