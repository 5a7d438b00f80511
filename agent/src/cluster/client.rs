//! The way to the apiserver.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use cloche_crds::cluster::SILENCE;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);

/// A client: by `kubeconfig` where that is given, else as the pod's service account, else as kubectl would. Nothing is asked yet: the
/// apiserver may be away.
pub(super) async fn client(kubeconfig: Option<&Path>) -> Result<kube::Client> {
    let mut config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path)
                .with_context(|| format!("read the kubeconfig {}", path.display()))?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("use the kubeconfig {}", path.display()))?
        }
        None => match Config::incluster() {
            Ok(config) => config,
            Err(_) => Config::infer().await.context(
                "find an apiserver: this is no pod with a service account, and there is no kubeconfig",
            )?,
        },
    };
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(SILENCE);
    kube::Client::try_from(config).context("prepare for the apiserver")
}
