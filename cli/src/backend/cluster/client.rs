//! The way to the apiserver.

use std::net::IpAddr;
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, Write};
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioExecutor;
use kube::Client;
use kube::Config;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use tower::{BoxError, Service, ServiceBuilder};

use crate::error::{Error, chain};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// A connection on which nothing happens is looked after so often, and given up when three in a row are not answered.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// What was sent and is not acknowledged for so long breaks the connection.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// A client of the cluster. Kube's own leaves Nagle's algorithm on, which costs each exec, being a new connection, 40 ms.
pub(super) fn client(config: Config) -> Result<Client, Error> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT));
    http.set_keepalive(Some(KEEPALIVE));
    http.set_keepalive_interval(Some(KEEPALIVE));
    http.set_keepalive_retries(Some(3));
    http.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    let Some(proxy) = proxy(&config) else {
        return over(http, config);
    };
    if proxy.uri().scheme_str() != Some("http") {
        return Err(Error::Proxy(proxy.uri().to_string()));
    }
    let mut tunnel = Tunnel::new(proxy.uri().clone(), http);
    if let Some(auth) = proxy.basic_auth() {
        tunnel = tunnel.with_auth(auth.clone());
    }
    over(tunnel, config)
}

/// The proxy on the way: the kubeconfig's, else by `HTTPS_PROXY` and the like, unless `NO_PROXY` takes the cluster out.
fn proxy(config: &Config) -> Option<Intercept> {
    // Kube reads the first of these too, and does not tell from where it has it.
    let by_environment = |given: &str| {
        ["HTTPS_PROXY", "https_proxy"]
            .iter()
            .filter_map(|variable| std::env::var(variable).ok())
            .any(|value| value.parse::<Uri>().is_ok_and(|value| value == given))
    };
    let given = config.proxy_url.as_ref().map(Uri::to_string);
    match given {
        Some(given) if !by_environment(&given) => Matcher::builder()
            .all(given)
            .build()
            .intercept(&config.cluster_url),
        // As Go, and so kubectl, has it.
        Some(_) | None if is_loopback(&config.cluster_url) => None,
        Some(_) | None => Matcher::from_env().intercept(&config.cluster_url),
    }
}

fn is_loopback(server: &Uri) -> bool {
    server.host().is_some_and(|host| {
        let address = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost"
            || address
                .parse()
                .is_ok_and(|address: IpAddr| address.is_loopback())
    })
}

/// A client over connections that `connector` makes.
fn over<C>(connector: C, mut config: Config) -> Result<Client, Error>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let server = config.cluster_url.to_string();
    let failed = |problem: kube::Error| Error::Credentials {
        server: server.clone(),
        message: chain(&problem),
    };
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
        .rustls_https_connector_with_connector(connector)
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
