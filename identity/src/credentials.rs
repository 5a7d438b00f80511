//! A key, its certificate, and what the certificates of others are checked by.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::name::Identity;
use crate::tls::{ClientIs, ServerIs, identity_of};

/// What a part proves itself with, and checks others by. Cheap to clone.
#[derive(Clone)]
pub struct Credentials {
    identity: Identity,
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivatePkcs8KeyDer<'static>>,
    roots: Arc<RootCertStore>,
    ca: Arc<[u8]>,
    not_before: Timestamp,
    not_after: Timestamp,
}

/// The key is not shown.
impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Credentials")
            .field("identity", &self.identity)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// Why a certificate is of no use.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The bytes are no PEM.
    #[error("read the {what} as PEM")]
    Pem {
        /// Certificate or CA.
        what: &'static str,
        /// Why.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// There is none.
    #[error("there is no certificate in the {0}")]
    Empty(&'static str),
    /// A certificate that cannot be understood.
    #[error("the certificate cannot be read: {0}")]
    Malformed(String),
    /// The certificate is somebody else's.
    #[error("the certificate is of {found}, not of {wanted}")]
    OfAnother {
        /// Whom it names; empty for nobody of ours.
        found: String,
        /// Whom it should name.
        wanted: Identity,
    },
    /// rustls refuses it.
    #[error("use the certificate for TLS")]
    Tls(#[from] rustls::Error),
    /// What peers are checked by cannot be used.
    #[error("use the CA for TLS")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

impl Credentials {
    /// From what the signer published: `chain`, the part's certificate first, and `ca`, both PEM; `key` is PKCS #8.
    pub fn new(
        identity: Identity,
        chain: &[u8],
        key: PrivatePkcs8KeyDer<'static>,
        ca: &[u8],
    ) -> Result<Self, CredentialsError> {
        Self::of(identity, certificates("certificate", chain)?, key, ca)
    }

    /// The same, of certificates that are no PEM any more.
    pub(crate) fn of(
        identity: Identity,
        chain: Vec<CertificateDer<'static>>,
        key: PrivatePkcs8KeyDer<'static>,
        ca: &[u8],
    ) -> Result<Self, CredentialsError> {
        let own = chain
            .first()
            .ok_or(CredentialsError::Empty("certificate"))?;
        let named = identity_of(own);
        if named.as_ref() != Ok(&identity) {
            return Err(CredentialsError::OfAnother {
                found: named.map_or_else(|why| why, |found| found.to_string()),
                wanted: identity,
            });
        }
        let (_, parsed) = x509_parser::parse_x509_certificate(own)
            .map_err(|error| CredentialsError::Malformed(error.to_string()))?;
        let time = |time: x509_parser::time::ASN1Time| {
            Timestamp::from_second(time.timestamp())
                .map_err(|error| CredentialsError::Malformed(error.to_string()))
        };
        let not_before = time(parsed.validity().not_before)?;
        let not_after = time(parsed.validity().not_after)?;
        let mut roots = RootCertStore::empty();
        for root in certificates("CA", ca)? {
            roots.add(root)?;
        }
        if roots.is_empty() {
            return Err(CredentialsError::Empty("CA"));
        }
        Ok(Self {
            identity,
            chain,
            key: Arc::new(key),
            roots: Arc::new(roots),
            ca: ca.into(),
            not_before,
            not_after,
        })
    }

    /// Whose they are.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Until when the certificate holds.
    pub const fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// Whether this is what peers are checked by.
    pub fn checks_by(&self, ca: &[u8]) -> bool {
        *self.ca == *ca
    }

    /// What peers are checked by, PEM.
    pub(crate) fn ca(&self) -> &[u8] {
        &self.ca
    }

    /// When a new certificate should be asked for: after two thirds of this one's life.
    pub fn renew_at(&self) -> Timestamp {
        let (from, to) = (self.not_before.as_second(), self.not_after.as_second());
        let at = from + (to - from) / 3 * 2;
        Timestamp::from_second(at).unwrap_or(self.not_after)
    }

    /// To serve with over HTTP/2: only peers of ours that `accept` takes can connect.
    pub fn server(&self, accept: fn(&Identity) -> bool) -> Result<ServerConfig, CredentialsError> {
        let provider = provider();
        let verifier = ClientIs::new(Arc::clone(&self.roots), accept, &provider)?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_single_cert(self.chain.clone(), self.key())?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    /// To connect with over HTTP/2: only to `peer`, by its [`Identity::server_name`].
    pub fn client(&self, peer: Identity) -> Result<ClientConfig, CredentialsError> {
        let provider = provider();
        let verifier = ServerIs::new(Arc::clone(&self.roots), peer, &provider)?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(self.chain.clone(), self.key())?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    /// The certificate first, then what leads to the CA: for a server with rules of its own about its clients.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// The private key.
    pub fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.key.clone_key())
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(
    what: &'static str,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|source| CredentialsError::Pem { what, source })
}
