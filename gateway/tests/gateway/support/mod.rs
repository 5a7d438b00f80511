//! A gateway between a made-up apiserver and a made-up agent.

pub(crate) mod agent;
pub(crate) mod authority;
pub(crate) mod cluster;
pub(crate) mod reach;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use cloche_gateway::{Options, Stop};
use cloche_identity::Identity;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use agent::FakeAgent;
use authority::Authority;
use cluster::Cluster;
use reach::Reach;

/// The path of sandbox `demo`.
pub(crate) const DEMO: &str =
    "/apis/subresources.cloche.dev/v1alpha1/namespaces/team/sandboxes/demo";

/// Everything that a test needs.
pub(crate) struct Stage {
    pub(crate) agent: FakeAgent,
    pub(crate) cluster: Cluster,
    pub(crate) stop: Stop,
    pub(crate) gateway: tokio::task::JoinHandle<Result<(), cloche_gateway::Error>>,
    authority: Arc<Authority>,
    front: Authority,
    address: SocketAddr,
}

impl Stage {
    /// With a sandbox `demo` that runs.
    pub(crate) async fn set() -> Self {
        Self::with(&[], false).await
    }

    /// The same with more arguments; `lazy`: the agent keeps stdin in its memory.
    pub(crate) async fn with(arguments: &[&str], lazy: bool) -> Self {
        // Another test may have set it already.
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_env("CLOCHE_LOG"))
            .with_test_writer()
            .try_init()
            .ok();
        let (authority, front) = (Arc::new(Authority::new()), Authority::new());
        let one = Identity::agent("one").unwrap();
        let agent = FakeAgent::start(authority.credentials(&one), lazy).await;
        let cluster = Cluster::new(Arc::clone(&authority), front.pem());
        let running = json!({"phase": "Running", "nodeName": "one"});
        cluster.put_sandbox("team", "demo", &running);
        cluster.put_node("one", &agent.address.to_string());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let options = Options::parse_from([&["cloche-gateway"], arguments].concat());
        let stop = Stop::default();
        let gateway = tokio::spawn(cloche_gateway::run_with(
            options,
            listener,
            cluster.client(),
            stop.clone(),
        ));
        let stage = Self {
            agent,
            cluster,
            stop,
            gateway,
            authority,
            front,
            address,
        };
        stage.until_ready().await;
        stage
    }

    async fn until_ready(&self) {
        let anybody = self.as_nobody();
        let ready = async {
            loop {
                let stream = TcpStream::connect(self.address).await.unwrap();
                let name = anybody.name.clone().try_into().unwrap();
                let connector = tokio_rustls::TlsConnector::from(Arc::clone(&anybody.tls));
                if connector.connect(name, stream).await.is_ok()
                    && anybody.get("/readyz").await.0 == 200
                {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), ready)
            .await
            .expect("a gateway that is ready");
    }

    /// As the front proxy, for `alice`.
    pub(crate) fn as_front_proxy(&self) -> Reach {
        self.with_client(Some(&self.front), "front-proxy")
    }

    /// With a certificate of the front proxy's CA that is not its own.
    pub(crate) fn as_another(&self) -> Reach {
        self.with_client(Some(&self.front), "admin")
    }

    /// With a certificate of another CA.
    pub(crate) fn as_stranger(&self) -> Reach {
        self.with_client(Some(&Authority::new()), "front-proxy")
    }

    /// Without a certificate.
    pub(crate) fn as_nobody(&self) -> Reach {
        self.with_client(None, "")
    }

    fn with_client(&self, client: Option<&Authority>, name: &str) -> Reach {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(self.authority.pem().as_bytes()).unwrap();
        roots.add(ca).unwrap();
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let tls = match client {
            Some(client) => {
                let (certificate, key) = client.client(name);
                builder
                    .with_client_auth_cert(vec![certificate], key)
                    .unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        Reach {
            address: self.address,
            name: "cloche-gateway.cloche-system.svc".to_owned(),
            tls: Arc::new(tls),
            headers: vec![
                ("X-Remote-User".to_owned(), "alice".to_owned()),
                ("X-Remote-Group".to_owned(), "dev".to_owned()),
            ],
        }
    }
}

/// `test`, within a minute.
pub(crate) async fn in_time<T>(test: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(1), test)
        .await
        .expect("a test that ends in time")
}
