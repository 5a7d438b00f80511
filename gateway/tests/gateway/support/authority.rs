//! A CA, and what it signs.

use cloche_identity::{Credentials, Identity};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// A CA.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new one.
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "test CA");
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its certificate.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    fn issue(&self, common_name: &str, names: Vec<SanType>) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.subject_alt_names = names;
        params.extended_key_usages = usages();
        (params.signed_by(&key, &self.0).unwrap(), key)
    }

    /// A client of the name.
    pub(crate) fn client(
        &self,
        common_name: &str,
    ) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let (certificate, key) = self.issue(common_name, Vec::new());
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        (certificate.der().clone(), key.into())
    }

    /// A part of Cloche.
    pub(crate) fn credentials(&self, identity: &Identity) -> Credentials {
        let names = vec![
            SanType::URI(identity.to_string().try_into().unwrap()),
            SanType::DnsName(identity.server_name().try_into().unwrap()),
        ];
        let (certificate, key) = self.issue("x", names);
        Credentials::new(
            identity.clone(),
            certificate.pem().as_bytes(),
            PrivatePkcs8KeyDer::from(key.serialize_der()),
            self.pem().as_bytes(),
        )
        .unwrap()
    }

    /// As the operator signs a gateway's request: its names, and the role's.
    pub(crate) fn sign(&self, request: &[u8]) -> String {
        let request = std::str::from_utf8(request).unwrap();
        let mut request = CertificateSigningRequestParams::from_pem(request).unwrap();
        request.params.extended_key_usages = usages();
        request.params.subject_alt_names.push(SanType::DnsName(
            Identity::Gateway.server_name().try_into().unwrap(),
        ));
        request.signed_by(&self.0).unwrap().pem()
    }
}

fn usages() -> Vec<ExtendedKeyUsagePurpose> {
    vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ]
}
