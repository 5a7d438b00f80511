//! Kubeconfigs of service accounts, as pods have them.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cloche_crds::cluster::NAMESPACE;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use crate::rig::ControlPlane;

/// Writes one for `account`; with `node` its token names that node.
pub(super) async fn write(
    plane: &ControlPlane,
    folder: &Path,
    account: &str,
    node: Option<&str>,
) -> Result<PathBuf> {
    let token = match node {
        Some(node) => plane.agent_token(node).await?,
        None => plane
            .kubectl_text(&["create", "token", account, "--namespace", NAMESPACE])
            .await?
            .trim()
            .to_owned(),
    };
    let admin = plane
        .kubectl_text(&["config", "view", "--raw", "--minify", "-o", "json"])
        .await?;
    let admin: Value = serde_json::from_str(&admin).context("read the kubeconfig")?;
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "rig", "cluster": admin["clusters"][0]["cluster"]}],
        "users": [{"name": account, "user": {"token": token}}],
        "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": account}}],
        "current-context": "rig",
    });
    let path = folder.join(format!("{account}{}.kubeconfig", node.unwrap_or_default()));
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("make {}", path.display()))?;
    std::io::Write::write_all(&mut file, config.to_string().as_bytes())
        .with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

/// A client as whoever a kubeconfig says.
pub(super) async fn client(path: &Path) -> Result<kube::Client> {
    kube::Client::try_from(read(path).await?).context("make a client")
}

/// The same, acting as somebody else.
pub(super) async fn impersonate(path: &Path, user: &str) -> Result<kube::Client> {
    let mut config = read(path).await?;
    config.auth_info.impersonate = Some(user.to_owned());
    kube::Client::try_from(config).context("make a client")
}

async fn read(path: &Path) -> Result<Config> {
    let kubeconfig = Kubeconfig::read_from(path).context("read a kubeconfig")?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .context("use a kubeconfig")
}
