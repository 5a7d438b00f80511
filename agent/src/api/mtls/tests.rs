use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType,
};
use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use super::*;

struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn credentials(&self, identity: &Identity) -> Credentials {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![
            SanType::URI(identity.to_string().try_into().unwrap()),
            SanType::DnsName(identity.server_name().try_into().unwrap()),
        ];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let chain = params.signed_by(&key, &self.0).unwrap().pem();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let ca = self.0.pem();
        Credentials::new(identity.clone(), chain.as_bytes(), key, ca.as_bytes()).unwrap()
    }
}

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
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let credentials = watch::Sender::new(None);
        let (connections, accepted) = mpsc::channel(1);
        tokio::spawn(accept(listener, credentials.subscribe(), connections));
        Self {
            address,
            credentials,
            accepted,
        }
    }

    /// Whether `client` comes through: it writes, and the agent reads.
    async fn comes_through(&mut self, client: &Credentials) -> bool {
        let connector = TlsConnector::from(Arc::new(client.client(agent()).unwrap()));
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
async fn only_gateways_come_through() {
    let (ca, other) = (Ca::new(), Ca::new());
    let mut scene = Scene::new().await;
    scene
        .credentials
        .send_replace(Some(ca.credentials(&agent())));
    let gateway = ca.credentials(&Identity::Gateway);
    assert!(scene.comes_through(&gateway).await);
    assert!(!scene.comes_through(&ca.credentials(&agent())).await);
    let strange = other.credentials(&Identity::Gateway);
    assert!(!scene.comes_through(&strange).await);
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
