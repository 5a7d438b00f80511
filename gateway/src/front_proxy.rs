//! Whom the gateway believes: the front proxy of the cluster, which says for whom it asks. Pure.
//!
//! Kubernetes publishes how its front proxy is known in the `ConfigMap` [`NAME`] of [`NAMESPACE`]. A request from anybody else is refused,
//! whatever its headers say.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderMap;
use percent_encoding::percent_decode_str;
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::refusal::{Kind, Refusal};

/// Where the `ConfigMap` is.
pub(crate) const NAMESPACE: &str = "kube-system";
/// Its name.
pub(crate) const NAME: &str = "extension-apiserver-authentication";

/// Most groups that a user may have here.
pub(crate) const GROUPS: usize = 1024;

/// How the front proxy is known, and how it names the user.
#[derive(Clone, Debug)]
pub(crate) struct FrontProxy {
    clients: Arc<dyn ClientCertVerifier>,
    /// Common names of its certificate; empty: any.
    names: Vec<String>,
    user: Vec<String>,
    uid: Vec<String>,
    group: Vec<String>,
    extra: Vec<String>,
}

/// Why the `ConfigMap` cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrontProxyError {
    /// It lacks what it must have.
    #[error(
        "the ConfigMap {NAMESPACE}/{NAME} has no {0}: does the apiserver have an aggregation layer?"
    )]
    Missing(&'static str),
    /// A list in it is no list.
    #[error("read {key} of the ConfigMap {NAMESPACE}/{NAME}")]
    List {
        /// Its key.
        key: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Its CA is no PEM.
    #[error("read the CA in the ConfigMap {NAMESPACE}/{NAME}")]
    Pem(#[from] rustls_pki_types::pem::Error),
    /// Its CA is of no use.
    #[error("use the CA in the ConfigMap {NAMESPACE}/{NAME}")]
    Ca(#[from] rustls::Error),
    /// Nothing can be checked by its CA.
    #[error("check certificates by the CA in the ConfigMap {NAMESPACE}/{NAME}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// For whom the front proxy asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    /// Name.
    pub(crate) name: String,
    /// UID, where there is one.
    pub(crate) uid: Option<String>,
    /// Groups.
    pub(crate) groups: Vec<String>,
    /// All else that authentication found.
    pub(crate) extra: BTreeMap<String, Vec<String>>,
}

impl FrontProxy {
    /// As the `ConfigMap` says.
    pub(crate) fn read(data: &BTreeMap<String, String>) -> Result<Self, FrontProxyError> {
        let list = |key: &'static str, default: &[&str]| match data.get(key) {
            Some(text) => serde_json::from_str::<Vec<String>>(text)
                .map_err(|source| FrontProxyError::List { key, source }),
            None => Ok(default.iter().map(|name| (*name).to_owned()).collect()),
        };
        let ca = data
            .get("requestheader-client-ca-file")
            .ok_or(FrontProxyError::Missing("requestheader-client-ca-file"))?;
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(ca.as_bytes()) {
            roots.add(root?)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
        Ok(Self {
            clients,
            names: list("requestheader-allowed-names", &[])?,
            user: list("requestheader-username-headers", &["X-Remote-User"])?,
            uid: list("requestheader-uid-headers", &["X-Remote-Uid"])?,
            group: list("requestheader-group-headers", &["X-Remote-Group"])?,
            extra: list("requestheader-extra-headers-prefix", &["X-Remote-Extra-"])?,
        })
    }

    /// The user of a request whose sender showed `chain` in the TLS handshake.
    pub(crate) fn user(
        &self,
        chain: &[CertificateDer<'_>],
        headers: &HeaderMap,
        now: UnixTime,
    ) -> Result<User, Refusal> {
        self.admit(chain, now)?;
        let first = |names: &[String]| {
            let mut values = names.iter().flat_map(|name| headers.get_all(name));
            values
                .find(|value| !value.is_empty())
                .map(|value| text(value.as_bytes()))
                .transpose()
        };
        let name = first(&self.user)?
            .ok_or_else(|| unauthorized("the front proxy does not say for whom it asks"))?;
        let groups = self
            .group
            .iter()
            .flat_map(|name| headers.get_all(name))
            .map(|value| text(value.as_bytes()))
            .collect::<Result<Vec<_>, _>>()?;
        if groups.len() > GROUPS {
            return Err(unauthorized("the user is in too many groups"));
        }
        Ok(User {
            name,
            uid: first(&self.uid)?,
            groups,
            extra: self.extra(headers)?,
        })
    }

    /// Whether the chain is of the front proxy.
    fn admit(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<(), Refusal> {
        let Some((own, between)) = chain.split_first() else {
            return Err(unauthorized(
                "no client certificate: only the apiserver's front proxy is served here",
            ));
        };
        self.clients
            .verify_client_cert(own, between, now)
            .map_err(|error| {
                unauthorized(&format!("the client certificate is refused: {error}"))
            })?;
        if self.names.is_empty() {
            return Ok(());
        }
        let name = common_name(own)
            .ok_or_else(|| unauthorized("the client certificate has no common name"))?;
        if self.names.contains(&name) {
            Ok(())
        } else {
            Err(unauthorized(&format!(
                "the client certificate is of {name:?}, which is not the front proxy"
            )))
        }
    }

    fn extra(&self, headers: &HeaderMap) -> Result<BTreeMap<String, Vec<String>>, Refusal> {
        let mut extra = BTreeMap::<String, Vec<String>>::new();
        for prefix in &self.extra {
            let prefix = prefix.to_ascii_lowercase();
            for (name, value) in headers {
                let Some(key) = name.as_str().strip_prefix(&prefix) else {
                    continue;
                };
                // Names of headers have fewer characters than keys, so the apiserver escapes these.
                let key = percent_decode_str(key)
                    .decode_utf8()
                    .map_err(|_| unauthorized("a header of the front proxy is no UTF-8"))?;
                let values = extra.entry(key.to_lowercase()).or_default();
                values.push(text(value.as_bytes())?);
            }
        }
        Ok(extra)
    }
}

fn unauthorized(message: &str) -> Refusal {
    Refusal::new(Kind::Unauthorized, message)
}

fn text(value: &[u8]) -> Result<String, Refusal> {
    String::from_utf8(value.to_vec())
        .map_err(|_| unauthorized("a header of the front proxy is no UTF-8"))
}

fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?;
    name.as_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests;
