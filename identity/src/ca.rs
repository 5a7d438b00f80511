//! A CA for tests.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType,
};
use rustls_pki_types::PrivatePkcs8KeyDer;

use crate::credentials::Credentials;
use crate::name::Identity;

/// Signs what tests need.
pub(crate) struct Ca(pub(crate) CertifiedIssuer<'static, KeyPair>);

impl Ca {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn issue(&self, names: Vec<SanType>) -> (String, PrivatePkcs8KeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (
            certificate.pem(),
            PrivatePkcs8KeyDer::from(key.serialize_der()),
        )
    }

    pub(crate) fn credentials(&self, identity: &Identity) -> Credentials {
        let (chain, key) = self.issue(vec![
            SanType::URI(identity.to_string().try_into().unwrap()),
            SanType::DnsName(identity.server_name().try_into().unwrap()),
        ]);
        Credentials::new(
            identity.clone(),
            chain.as_bytes(),
            key,
            self.0.pem().as_bytes(),
        )
        .unwrap()
    }
}
