//! Checks of the peer: rustls' own of chain, time and usage first, then ours of the identity.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::extensions::GeneralName;

use crate::name::Identity;

/// Who is at the other end, by the chain that it showed; why that is nobody of ours. Of a connection that was made with a
/// configuration of [`Credentials`](crate::Credentials) the chain has been checked already.
pub fn peer(chain: Option<&[CertificateDer<'_>]>) -> Result<Identity, String> {
    let own = chain.and_then(<[_]>::first);
    identity_of(own.ok_or("it showed no certificate")?)
}

/// Whom a certificate names: it must have exactly one URI, ours.
pub(crate) fn identity_of(certificate: &CertificateDer<'_>) -> Result<Identity, String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|error| format!("its certificate cannot be read: {error}"))?;
    let names = parsed
        .subject_alternative_name()
        .map_err(|error| format!("its names cannot be read: {error}"))?
        .ok_or("its certificate has no names")?;
    let mut uris = names
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
    match (uris.next(), uris.next()) {
        (Some(uri), None) => uri
            .parse()
            .map_err(|error: crate::NameError| error.to_string()),
        (None, _) => Err("its certificate has no URI".to_owned()),
        (Some(_), Some(_)) => Err("its certificate has more than one URI".to_owned()),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongPeer(String);

fn wrong(why: String) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(WrongPeer(
        why,
    )))))
}

/// A server that must be one certain part.
#[derive(Debug)]
pub(crate) struct ServerIs {
    chain: Arc<WebPkiServerVerifier>,
    wanted: Identity,
}

impl ServerIs {
    pub(crate) fn new(
        roots: Arc<RootCertStore>,
        wanted: Identity,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, VerifierBuilderError> {
        let chain =
            WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider)).build()?;
        Ok(Self { chain, wanted })
    }
}

impl ServerCertVerifier for ServerIs {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.chain.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )?;
        let found = identity_of(end_entity).map_err(wrong)?;
        if found == self.wanted {
            Ok(verified)
        } else {
            Err(wrong(format!("it is {found}, not {}", self.wanted)))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// A client that must be one of the parts that are taken.
#[derive(Debug)]
pub(crate) struct ClientIs {
    chain: Arc<dyn ClientCertVerifier>,
    accept: fn(&Identity) -> bool,
}

impl ClientIs {
    pub(crate) fn new(
        roots: Arc<RootCertStore>,
        accept: fn(&Identity) -> bool,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, VerifierBuilderError> {
        let chain =
            WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider)).build()?;
        Ok(Self { chain, accept })
    }
}

impl ClientCertVerifier for ClientIs {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self
            .chain
            .verify_client_cert(end_entity, intermediates, now)?;
        let found = identity_of(end_entity).map_err(wrong)?;
        if (self.accept)(&found) {
            Ok(verified)
        } else {
            Err(wrong(format!("{found} is not served here")))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests;
