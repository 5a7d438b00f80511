//! A certificate from the cluster: key, `CertificateSigningRequest`, wait.

use std::time::Duration;

use cloche_crds::cluster::{CA_CONFIG_MAP, CA_KEY};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::wait::{self, await_condition};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rustls_pki_types::PrivatePkcs8KeyDer;

use crate::credentials::{Credentials, CredentialsError};
use crate::name::Identity;

/// How long all of it may take: most of that is waiting for the signer. An operator that comes later finds the request nevertheless, but
/// nobody waits for it then.
const PATIENCE: Duration = Duration::from_mins(1);
/// What is wished for a certificate's life; the signer decides.
const LIFE: Duration = Duration::from_hours(24);

/// Asks for certificates of one identity.
#[derive(Clone)]
pub struct Applicant {
    /// The apiserver, as the account that the signer expects for the identity.
    pub client: kube::Client,
    /// Who it is to be.
    pub identity: Identity,
    /// Where Cloche is installed: the CA's `ConfigMap` is there.
    pub namespace: String,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The key or the request could not be made.
    #[error("make a certificate request for {identity}")]
    Make {
        /// For whom.
        identity: Identity,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// The apiserver refused or could not be reached.
    #[error("{what}")]
    Api {
        /// What was asked of it.
        what: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// The request could not be followed.
    #[error("follow the certificate request {name}")]
    Wait {
        /// Its object's name.
        name: String,
        /// Why.
        #[source]
        source: Box<wait::Error>,
    },
    /// Nobody signed it in time.
    #[error("no certificate for {identity} within {} s: is the operator running? kubectl get csr shows what was asked for", PATIENCE.as_secs())]
    Unanswered {
        /// For whom.
        identity: Identity,
    },
    /// The signer said no.
    #[error("the certificate request {name} was refused: {why}")]
    Refused {
        /// Its object's name.
        name: String,
        /// The signer's words.
        why: String,
    },
    /// There is no CA to check others by.
    #[error(
        "the ConfigMap {namespace}/{CA_CONFIG_MAP} has no key {CA_KEY}: is the operator running?"
    )]
    NoCa {
        /// Of the `ConfigMap`.
        namespace: String,
    },
    /// What was signed is of no use.
    #[error("use the certificate of the request {name}")]
    Unusable {
        /// Its object's name.
        name: String,
        /// Why.
        #[source]
        source: CredentialsError,
    },
}

impl Applicant {
    /// One certificate, for a key made here. Takes a minute at most.
    pub async fn obtain(&self) -> Result<Credentials, RequestError> {
        let obtained = tokio::time::timeout(PATIENCE, self.ask()).await;
        obtained.unwrap_or_else(|_| Err(self.unanswered()))
    }

    fn unanswered(&self) -> RequestError {
        RequestError::Unanswered {
            identity: self.identity.clone(),
        }
    }

    async fn ask(&self) -> Result<Credentials, RequestError> {
        let (key, request) = self.make().map_err(|source| RequestError::Make {
            identity: self.identity.clone(),
            source,
        })?;
        let requests: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let made = requests
            .create(&PostParams::default(), &self.object(request))
            .await
            .map_err(|source| RequestError::Api {
                what: format!("create a certificate request for {}", self.identity),
                source: Box::new(source),
            })?;
        let name = made.metadata.name.unwrap_or_default();
        let decided = await_condition(requests, &name, is_decided).await;
        let decided = decided.map_err(|source| RequestError::Wait {
            name: name.clone(),
            source: Box::new(source),
        })?;
        let Some(decided) = decided else {
            let why = "it was deleted".to_owned();
            return Err(RequestError::Refused { name, why });
        };
        if let Some(why) = refusal(&decided) {
            return Err(RequestError::Refused { name, why });
        }
        let chain = decided.status.and_then(|status| status.certificate);
        let chain = chain.map(|bytes| bytes.0).unwrap_or_default();
        let ca = self.ca().await?;
        Credentials::new(self.identity.clone(), &chain, key, ca.as_bytes())
            .map_err(|source| RequestError::Unusable { name, source })
    }

    fn make(&self) -> Result<(PrivatePkcs8KeyDer<'static>, String), rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, self.identity.server_name());
        params.subject_alt_names = vec![SanType::URI(self.identity.to_string().try_into()?)];
        if let Some(host) = self.identity.host(&self.namespace) {
            params
                .subject_alt_names
                .push(SanType::DnsName(host.try_into()?));
        }
        let request = params.serialize_request(&key)?.pem()?;
        Ok((PrivatePkcs8KeyDer::from(key.serialize_der()), request))
    }

    fn object(&self, request: String) -> CertificateSigningRequest {
        CertificateSigningRequest {
            metadata: ObjectMeta {
                generate_name: Some("cloche-".to_owned()),
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                request: ByteString(request.into_bytes()),
                signer_name: self.identity.signer().to_owned(),
                expiration_seconds: i32::try_from(LIFE.as_secs()).ok(),
                usages: Some(
                    ["digital signature", "server auth", "client auth"]
                        .map(str::to_owned)
                        .to_vec(),
                ),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        }
    }

    /// What others are checked by at present. Takes a minute at most.
    pub(crate) async fn ca(&self) -> Result<String, RequestError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let map = tokio::time::timeout(PATIENCE, maps.get_opt(CA_CONFIG_MAP)).await;
        let map = map.map_err(|_| self.unanswered())?;
        let map = map.map_err(|source| RequestError::Api {
            what: format!("read the ConfigMap {}/{CA_CONFIG_MAP}", self.namespace),
            source: Box::new(source),
        })?;
        map.and_then(|map| map.data)
            .and_then(|mut data| data.remove(CA_KEY))
            .ok_or_else(|| RequestError::NoCa {
                namespace: self.namespace.clone(),
            })
    }
}

/// Whether it was signed or refused, or is gone.
fn is_decided(request: Option<&CertificateSigningRequest>) -> bool {
    request.is_none_or(|request| {
        let signed = request
            .status
            .as_ref()
            .is_some_and(|status| status.certificate.is_some());
        signed || refusal(request).is_some()
    })
}

/// Why it was refused, if it was.
fn refusal(request: &CertificateSigningRequest) -> Option<String> {
    let conditions = request.status.as_ref()?.conditions.as_ref()?;
    let refused = conditions
        .iter()
        .find(|condition| condition.type_ == "Denied" || condition.type_ == "Failed")?;
    Some(refused.message.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::certificates::v1::{
        CertificateSigningRequestCondition, CertificateSigningRequestStatus,
    };

    use super::*;

    fn request(conditions: &[&str], certificate: Option<&str>) -> CertificateSigningRequest {
        let conditions = conditions
            .iter()
            .map(|kind| CertificateSigningRequestCondition {
                type_: (*kind).to_owned(),
                message: Some("because".to_owned()),
                ..CertificateSigningRequestCondition::default()
            });
        CertificateSigningRequest {
            status: Some(CertificateSigningRequestStatus {
                conditions: Some(conditions.collect()),
                certificate: certificate.map(|text| ByteString(text.into())),
            }),
            ..CertificateSigningRequest::default()
        }
    }

    #[test]
    fn a_request_is_decided_when_signed_refused_or_gone() {
        assert!(!is_decided(Some(&CertificateSigningRequest::default())));
        assert!(!is_decided(Some(&request(&["Approved"], None))));
        assert!(is_decided(Some(&request(&["Approved"], Some("x")))));
        assert!(is_decided(Some(&request(&["Denied"], None))));
        assert!(is_decided(Some(&request(&["Approved", "Failed"], None))));
        assert!(is_decided(None));
        assert_eq!(
            refusal(&request(&["Denied"], None)).as_deref(),
            Some("because")
        );
    }
}
