//! The CA: its key, and the certificates that it makes.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _, SanType,
};

use super::review::Grant;

/// How long a CA holds.
const LIFE: Duration = Duration::from_hours(10 * 365 * 24);
/// How much earlier than now a certificate begins: clocks differ.
const EARLIER: Duration = Duration::from_mins(5);
/// What the CA is called in certificates.
const NAME: &str = "Cloche CA";

/// Signs.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// A CA as it is kept: both PEM.
#[derive(Clone)]
pub struct Kept {
    /// Its certificate.
    pub certificate: String,
    /// Its key, PKCS #8.
    pub key: String,
}

/// Why a CA is of no use, or did not sign.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// It could not be made.
    #[error("make a CA")]
    Make(#[source] rcgen::Error),
    /// It cannot be read.
    #[error("read the CA")]
    Read(#[source] rcgen::Error),
    /// Certificate and key do not belong together, or it is no CA.
    #[error("the CA's certificate is not one of a CA with this key")]
    Unfit,
    /// It did not sign.
    #[error("make a certificate of {0}")]
    Sign(String, #[source] rcgen::Error),
}

impl Kept {
    /// A new one.
    pub fn make(now: Timestamp) -> Result<Self, AuthorityError> {
        let make = || {
            let key = KeyPair::generate()?;
            let mut params = empty(now, LIFE);
            params.distinguished_name.push(DnType::CommonName, NAME);
            params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            let certificate = params.self_signed(&key)?.pem();
            let key = key.serialize_pem();
            Ok(Self { certificate, key })
        };
        make().map_err(AuthorityError::Make)
    }
}

impl Authority {
    /// From what is kept.
    pub fn read(kept: Kept) -> Result<Self, AuthorityError> {
        let Kept { certificate, key } = kept;
        let key = KeyPair::from_pem(&key).map_err(AuthorityError::Read)?;
        if !is_of(&certificate, key.der_bytes()) {
            return Err(AuthorityError::Unfit);
        }
        let issuer = Issuer::from_ca_cert_pem(&certificate, key).map_err(AuthorityError::Read)?;
        Ok(Self {
            issuer,
            certificate,
        })
    }

    /// What its certificates are checked by, PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate and what leads to the CA, PEM.
    pub fn sign(&self, grant: &Grant, now: Timestamp) -> Result<String, AuthorityError> {
        let Grant {
            identity,
            host,
            key,
            life,
        } = grant;
        let make = || {
            let mut params = empty(now, *life);
            params
                .distinguished_name
                .push(DnType::CommonName, identity.server_name());
            params.subject_alt_names = vec![
                SanType::URI(identity.to_string().try_into()?),
                SanType::DnsName(identity.server_name().try_into()?),
            ];
            if let Some(host) = host {
                let name = SanType::DnsName(host.as_str().try_into()?);
                params.subject_alt_names.push(name);
            }
            params.is_ca = IsCa::ExplicitNoCa;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ];
            params.use_authority_key_identifier_extension = true;
            let certificate = params.signed_by(key, &self.issuer)?.pem();
            Ok(format!("{certificate}{}", self.certificate))
        };
        make().map_err(|source| AuthorityError::Sign(identity.to_string(), source))
    }
}

/// Nothing but the times: by default a certificate holds to the year 4096 and has a name.
fn empty(now: Timestamp, life: Duration) -> CertificateParams {
    let now = Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0));
    let from = rcgen::date_time_ymd(1970, 1, 1) + now.saturating_sub(EARLIER);
    let mut params = CertificateParams::default();
    params.not_before = from;
    params.not_after = from + life;
    params.distinguished_name = DistinguishedName::new();
    params
}

/// Whether a certificate is of a CA with this key.
fn is_of(certificate: &str, key: &[u8]) -> bool {
    let Ok((_, block)) = x509_parser::pem::parse_x509_pem(certificate.as_bytes()) else {
        return false;
    };
    let Ok(parsed) = block.parse_x509() else {
        return false;
    };
    parsed.is_ca() && *parsed.public_key().subject_public_key.data == *key
}
