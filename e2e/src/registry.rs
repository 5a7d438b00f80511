//! A real registry (Debian's docker-registry) on the loopback, with storage of its own.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
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
    /// Its configuration and log; what was pushed, unless that is another's.
    folder: TempDir,
    data: PathBuf,
    address: String,
    _child: Child,
}

/// Whom a registry answers.
#[derive(Clone, Debug)]
pub enum Guard {
    /// Everybody.
    Open,
    /// The users of this text: `NAME:HASH` in lines, as `htpasswd -B` makes them.
    Users(String),
    /// Whoever has a token of a server.
    Tokens {
        /// URL of the server.
        realm: String,
        /// By which its tokens are checked, PEM. The issuer and the service are called `test`.
        certificate: String,
    },
}

impl Registry {
    /// Starts one that is open to everybody, and waits until it listens.
    pub async fn start() -> Result<Self> {
        Self::start_as(&Guard::Open, None).await
    }

    /// Starts one that answers nobody: it wants a password, and no user has one.
    pub async fn start_private() -> Result<Self> {
        Self::start_as(&Guard::Users(String::new()), None).await
    }

    /// Starts another one with the images of this one, which must outlive it.
    pub async fn beside(&self, guard: &Guard) -> Result<Self> {
        Self::start_as(guard, Some(&self.data)).await
    }

    async fn start_as(guard: &Guard, data: Option<&Path>) -> Result<Self> {
        let mut last = None;
        for _ in 0..PORTS {
            match Self::try_start(guard, data).await {
                Ok(registry) => return Ok(registry),
                Err(problem) => last = Some(problem),
            }
        }
        Err(last.context("no port was tried")?)
    }

    async fn try_start(guard: &Guard, data: Option<&Path>) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("cloche-registry-")
            .tempdir()
            .context("make the registry's folder")?;
        let address = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .context("choose a port")?
            .to_string();
        let config = folder.path().join("config.yml");
        let data = data.map_or_else(|| folder.path().join("data"), Path::to_owned);
        let auth = guard.section(folder.path())?;
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem: {{rootdirectory: {}}}\n  delete: {{enabled: true}}\n\
             http: {{addr: \"{address}\"}}\n{auth}",
            data.display()
        );
        std::fs::write(&config, text).context("write the registry's configuration")?;
        let log =
            std::fs::File::create(folder.path().join("log")).context("make the registry's log")?;
        let mut child = process::command("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdout(log.try_clone().context("share the registry's log")?)
            .stderr(log)
            .spawn()
            .context("start docker-registry: install the package docker-registry")?;
        until(START, "the registry listens", async || {
            if let Some(status) = child.try_wait().context("look at the registry")? {
                let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
                bail!("the registry ended at its start ({status}): {log}");
            }
            Ok(TcpStream::connect(&address).await.ok().map(drop))
        })
        .await?;
        Ok(Self {
            folder,
            data,
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
        self.folder.path().join("data")
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

impl Guard {
    /// What the configuration says of it, with files in `folder`.
    fn section(&self, folder: &Path) -> Result<String> {
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
            anyhow::Ok(path.display().to_string())
        };
        Ok(match self {
            Self::Open => String::new(),
            Self::Users(users) => {
                let path = write("users", users)?;
                format!("auth: {{htpasswd: {{realm: private, path: {path}}}}}\n")
            }
            Self::Tokens { realm, certificate } => {
                let path = write("tokens.pem", certificate)?;
                format!(
                    "auth: {{token: {{realm: \"{realm}\", service: test, issuer: test, rootcertbundle: {path}}}}}\n"
                )
            }
        })
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
