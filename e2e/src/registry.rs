//! A real registry (Debian's docker-registry) on the loopback, with storage of its own.

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use oci_client::Reference;
use oci_client::client::{Client, ClientConfig, ClientProtocol};
use oci_client::secrets::RegistryAuth;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::Child;

use crate::deadline::until;
use crate::image::Image;
use crate::process;

/// How long it may take to listen.
const START: Duration = Duration::from_secs(20);

/// How often another port is tried: somebody may take it between the choice and the registry's start.
const PORTS: usize = 5;

/// A registry. Dropping it ends its process and deletes its storage.
#[derive(Debug)]
pub struct Registry {
    storage: TempDir,
    address: String,
    _child: Child,
}

impl Registry {
    /// Starts one that is open to everybody, and waits until it listens.
    pub async fn start() -> Result<Self> {
        Self::start_as(false).await
    }

    /// Starts one that answers nobody: it wants a password, and no user has one.
    pub async fn start_private() -> Result<Self> {
        Self::start_as(true).await
    }

    async fn start_as(private: bool) -> Result<Self> {
        let mut last = None;
        for _ in 0..PORTS {
            match Self::try_start(private).await {
                Ok(registry) => return Ok(registry),
                Err(problem) => last = Some(problem),
            }
        }
        Err(last.context("no port was tried")?)
    }

    async fn try_start(private: bool) -> Result<Self> {
        let storage = tempfile::Builder::new()
            .prefix("cloche-registry-")
            .tempdir()
            .context("make the registry's folder")?;
        let address = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .context("choose a port")?
            .to_string();
        let config = storage.path().join("config.yml");
        let users = storage.path().join("users");
        let auth = if private {
            std::fs::write(&users, "").context("write the registry's users")?;
            format!(
                "auth: {{htpasswd: {{realm: private, path: {}}}}}\n",
                users.display()
            )
        } else {
            String::new()
        };
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem: {{rootdirectory: {}}}\n  delete: {{enabled: true}}\n\
             http: {{addr: \"{address}\"}}\n{auth}",
            storage.path().join("data").display()
        );
        std::fs::write(&config, text).context("write the registry's configuration")?;
        let log =
            std::fs::File::create(storage.path().join("log")).context("make the registry's log")?;
        let mut child = process::command("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdout(log.try_clone().context("share the registry's log")?)
            .stderr(log)
            .spawn()
            .context("start docker-registry: install the package docker-registry")?;
        until(START, "the registry listens", async || {
            if let Some(status) = child.try_wait().context("look at the registry")? {
                let log = std::fs::read_to_string(storage.path().join("log")).unwrap_or_default();
                bail!("the registry ended at its start ({status}): {log}");
            }
            Ok(TcpStream::connect(&address).await.ok().map(drop))
        })
        .await?;
        Ok(Self {
            storage,
            address,
            _child: child,
        })
    }

    /// `127.0.0.1:PORT`, for `--insecure-registry` and in references.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Where it keeps what was pushed; tests may spoil it.
    pub fn data(&self) -> PathBuf {
        self.storage.path().join("data")
    }

    /// The file that holds a blob.
    pub fn blob(&self, digest: &str) -> Result<PathBuf> {
        let hex = digest.strip_prefix("sha256:").context("a sha256 digest")?;
        let start = hex.get(..2).context("a whole digest")?;
        Ok(self.data().join(format!(
            "docker/registry/v2/blobs/sha256/{start}/{hex}/data"
        )))
    }

    /// Pushes an image as `name:tag`; the reference for a spec.
    pub async fn push(&self, image: &Image, name: &str, tag: &str) -> Result<String> {
        push(&self.address, image, name, tag).await
    }
}

/// Pushes an image to the registry at `HOST:PORT`, which has no TLS, as `name:tag`; the reference for a spec.
pub async fn push(registry: &str, image: &Image, name: &str, tag: &str) -> Result<String> {
    let text = format!("{registry}/{name}:{tag}");
    let reference: Reference = text
        .parse()
        .with_context(|| format!("the reference {text}"))?;
    // Plain HTTP, and yet the library builds a TLS client; its provider may be set by another test already.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let client = Client::new(ClientConfig {
        protocol: ClientProtocol::Http,
        ..ClientConfig::default()
    });
    client
        .store_auth_if_needed(reference.resolve_registry(), &RegistryAuth::Anonymous)
        .await;
    for blob in image.layers.iter().chain([&image.config]) {
        client
            .push_blob(&reference, blob.data.clone(), &blob.digest)
            .await
            .with_context(|| format!("push {} of {text}", blob.digest))?;
    }
    let kind = image
        .manifest
        .media_type
        .parse()
        .context("the manifest's media type")?;
    client
        .push_manifest_raw(&reference, image.manifest.data.clone(), kind)
        .await
        .with_context(|| format!("push the manifest of {text}"))?;
    Ok(text)
}
