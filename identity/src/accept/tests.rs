use std::net::SocketAddr;

use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use super::*;
use crate::ca::Ca;

fn agent() -> Identity {
    Identity::agent("one").unwrap()
}

/// An agent that accepts.
struct Scene {
    address: SocketAddr,
    credentials: watch::Sender<Option<Credentials>>,
    accepted: mpsc::Receiver<io::Result<Peer>>,
}

impl Scene {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let credentials = watch::Sender::new(None);
        let (connections, accepted) = mpsc::channel(1);
        let taken = |peer: &Identity| *peer == Identity::Gateway;
        tokio::spawn(accept(
            listener,
            credentials.subscribe(),
            taken,
            connections,
        ));
        Self {
            address,
            credentials,
            accepted,
        }
    }

    /// Whether `client` comes through: it writes, and the agent reads.
    async fn comes_through(&mut self, client: &Credentials) -> bool {
        let config = client.client(agent()).unwrap();
        self.comes_through_as(config, Some(client.identity())).await
    }

    async fn comes_through_as(
        &mut self,
        config: rustls::ClientConfig,
        identity: Option<&Identity>,
    ) -> bool {
        let connector = TlsConnector::from(Arc::new(config));
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from(agent().server_name()).unwrap();
        let connect = async {
            let mut stream = connector.connect(name, stream).await?;
            stream.write_all(b"hello").await?;
            // In TLS 1.3 a client is through before the server has looked at its certificate.
            stream.read_u8().await
        };
        let serve = async {
            let mut peer = self.accepted.recv().await.unwrap().unwrap();
            assert_eq!(Some(&peer.connect_info()), identity);
            let mut said = [0; 5];
            peer.read_exact(&mut said).await.unwrap();
            peer.write_all(&said).await.unwrap();
            peer.flush().await.unwrap();
        };
        let both = async {
            tokio::select! {
                connected = connect => connected.is_ok(),
                never = async { serve.await; std::future::pending().await } => never,
            }
        };
        tokio::time::timeout(Duration::from_secs(20), both)
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn only_who_is_taken_comes_through_and_is_known() {
    let (ca, other) = (Ca::new(), Ca::new());
    let mut scene = Scene::new().await;
    scene
        .credentials
        .send_replace(Some(ca.credentials(&agent())));
    let gateway = ca.credentials(&Identity::Gateway);
    assert!(scene.comes_through(&gateway).await);
    assert!(!scene.comes_through(&ca.credentials(&agent())).await);
    assert!(
        !scene
            .comes_through(&ca.credentials(&Identity::Operator))
            .await
    );
    let strange = other.credentials(&Identity::Gateway);
    assert!(!scene.comes_through(&strange).await);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.0.der().clone()).unwrap();
    let bare = rustls::ClientConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ));
    let bare = bare.with_safe_default_protocol_versions().unwrap();
    let bare = bare.with_root_certificates(roots).with_no_client_auth();
    assert!(!scene.comes_through_as(bare, None).await);
    // Somebody who says nothing holds up nobody.
    let _silent = TcpStream::connect(scene.address).await.unwrap();
    assert!(scene.comes_through(&gateway).await);
}

#[tokio::test]
async fn who_comes_before_the_first_certificate_waits_for_it() {
    let ca = Ca::new();
    let mut scene = Scene::new().await;
    let credentials = scene.credentials.clone();
    let gateway = ca.credentials(&Identity::Gateway);
    let certificate = async {
        tokio::task::yield_now().await;
        credentials.send_replace(Some(ca.credentials(&agent())));
    };
    let (came, ()) = tokio::join!(scene.comes_through(&gateway), certificate);
    assert!(came);
}

#[tokio::test]
async fn a_new_certificate_is_used_for_the_next_connection() {
    let (old, new) = (Ca::new(), Ca::new());
    let mut scene = Scene::new().await;
    scene
        .credentials
        .send_replace(Some(old.credentials(&agent())));
    let before = old.credentials(&Identity::Gateway);
    assert!(scene.comes_through(&before).await);
    scene
        .credentials
        .send_replace(Some(new.credentials(&agent())));
    let after = new.credentials(&Identity::Gateway);
    assert!(scene.comes_through(&after).await);
    assert!(!scene.comes_through(&before).await);
}
