//! The way to the apiserver.

use anyhow::{Context as _, Result};
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::{Body, Client, ClientBuilder, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tower::{BoxError, ServiceBuilder};

/// A client as `KUBECONFIG` says, for sandboxes and pods alike. Without Nagle's algorithm, as kubectl and kubectl-sandbox: kube's own
/// client leaves it on, which costs 40 ms wherever two small writes follow each other.
pub(super) async fn client() -> Result<Client> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let kubeconfig = Kubeconfig::from_env()
        .context("read the kubeconfig")?
        .context("KUBECONFIG is not set: run this by cargo xtask bench")?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .context("use the kubeconfig")?;
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    let https = config
        .rustls_https_connector_with_connector(http)
        .context("prepare TLS")?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .map_err(BoxError::from)
        .service(Http::builder(TokioExecutor::new()).build::<_, Body>(https));
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}
