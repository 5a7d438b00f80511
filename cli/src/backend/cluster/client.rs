//! The way to the apiserver.

use std::time::Duration;

use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::Client;
use kube::Config;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use tower::{BoxError, ServiceBuilder};

use crate::error::{Error, chain};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// A connection on which nothing happens is looked after so often, and given up when three in a row are not answered.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// What was sent and is not acknowledged for so long breaks the connection.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// A client of the cluster. Kube's own leaves Nagle's algorithm on, which costs each exec, being a new connection, 40 ms.
pub(super) fn client(mut config: Config) -> Result<Client, Error> {
    let server = config.cluster_url.to_string();
    if let Some(proxy) = &config.proxy_url {
        return Err(Error::Proxy(proxy.to_string()));
    }
    let failed = |problem: kube::Error| Error::Credentials {
        server: server.clone(),
        message: chain(&problem),
    };
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT));
    http.set_keepalive(Some(KEEPALIVE));
    http.set_keepalive_interval(Some(KEEPALIVE));
    http.set_keepalive_retries(Some(3));
    http.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    let auth = config.auth_layer().map_err(failed)?;
    if auth.is_some() {
        // A credential plugin has given a token: not run once more to see whether it would give a certificate.
        config.auth_info.exec = None;
    }
    // One of the process: there is no other. A second client finds it there.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let https = config
        .rustls_https_connector_with_connector(http)
        .map_err(failed)?;
    let hyper = Http::builder(TokioExecutor::new()).build::<_, Body>(https);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(auth)
        .layer(config.extra_headers_layer().map_err(failed)?)
        .map_err(BoxError::from)
        .service(hyper);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}
