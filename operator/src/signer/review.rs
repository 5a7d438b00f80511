//! Whether a request is granted. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use cloche_crds::cluster::{
    AGENT_ACCOUNT, AGENT_SIGNER, GATEWAY_ACCOUNT, GATEWAY_SIGNER, OPERATOR_ACCOUNT, OPERATOR_SIGNER,
};
use cloche_identity::Identity;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use rcgen::{CertificateSigningRequestParams, PublicKey, SanType, SignatureAlgorithm};
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_SIG_ED25519, Oid,
};
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer as _, X509CertificationRequest};

/// Longest life of a certificate.
pub const LONGEST: Duration = Duration::from_hours(24);
/// Shortest, as Kubernetes has it for `expirationSeconds`.
pub const SHORTEST: Duration = Duration::from_mins(10);
/// Largest request, in bytes of PEM. One of ours has less than 600.
const LARGEST: usize = 8 * 1024;
/// What a certificate of ours may be used for, all of it.
const USAGES: [&str; 3] = ["client auth", "digital signature", "server auth"];
/// Where the apiserver writes to which node the token of the account is bound.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// The UID of that node, where the apiserver gives it.
const NODE_UID: &str = "authentication.kubernetes.io/node-uid";

/// Why a request is refused: for whoever asked, and for the condition's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The account may not ask this signer.
    #[error("{account} may not ask {signer}: {wanted} may")]
    Account {
        /// Who asked.
        account: String,
        /// Of whom.
        signer: String,
        /// Who may.
        wanted: String,
    },
    /// The token is bound to no node, so that nobody knows whose agent it is.
    #[error("the token is not bound to a node: an agent asks with the token of its pod")]
    NoNode,
    /// The node's name cannot stand in a certificate.
    #[error("{0:?} is not a node's name")]
    NodeName(String),
    /// There is no Node of that name, or another one.
    #[error("the token is bound to the node {0}, which is not there any more")]
    OtherNode(String),
    /// It asks for more or less than our certificates are for.
    #[error("the usages are not exactly {}", USAGES.join(", "))]
    Usages,
    /// It cannot be read, or its signature is wrong.
    #[error("the request cannot be read: {0}")]
    Malformed(String),
    /// It names somebody else, or more than one.
    #[error("the request does not name {0} alone")]
    Names(Identity),
    /// It asks for a CA.
    #[error("the request asks for a CA")]
    Authority,
    /// The key is of a kind that is not taken.
    #[error(
        "the key is not of ECDSA P-256, ECDSA P-384 or Ed25519, or does not sign with the hash of its size"
    )]
    Key,
}

/// A certificate that is to be made.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Whose.
    pub identity: Identity,
    /// The DNS name by which others connect to it, if they do.
    pub host: Option<String>,
    /// For which key.
    pub key: PublicKey,
    /// How long it holds.
    pub life: Duration,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Not ours, refused, or signed.
    Done,
    /// Nobody decided yet.
    New,
    /// It is approved, by us or by a person, and has no certificate.
    Approved,
}

/// Where a request stands.
pub fn stage(request: &CertificateSigningRequest) -> Stage {
    let signer = request.spec.signer_name.as_str();
    let status = request.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref());
    let has = |kind: &str| conditions.is_some_and(|all| all.iter().any(|one| one.type_ == kind));
    let is_signed = status.is_some_and(|status| status.certificate.is_some());
    let is_ours = [AGENT_SIGNER, GATEWAY_SIGNER, OPERATOR_SIGNER].contains(&signer);
    if !is_ours || is_signed || has("Denied") || has("Failed") {
        Stage::Done
    } else if has("Approved") {
        Stage::Approved
    } else {
        Stage::New
    }
}

/// Who asks, by what the apiserver says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applicant {
    /// Who they are.
    pub identity: Identity,
    /// The DNS name by which others connect to them, if they do.
    pub host: Option<String>,
    /// The UID of the node that an agent's token is bound to; `None` for others, and where the apiserver gives none.
    pub node_uid: Option<String>,
}

/// Who asks a signer of ours. `namespace` is where Cloche is installed.
pub fn applicant(
    spec: &CertificateSigningRequestSpec,
    namespace: &str,
) -> Result<Applicant, Refusal> {
    // All replicas are one; an agent is that of the node of its token.
    let (name, identity) = match spec.signer_name.as_str() {
        AGENT_SIGNER => (AGENT_ACCOUNT, None),
        OPERATOR_SIGNER => (OPERATOR_ACCOUNT, Some(Identity::Operator)),
        _ => (GATEWAY_ACCOUNT, Some(Identity::Gateway)),
    };
    let wanted = format!("system:serviceaccount:{namespace}:{name}");
    let account = spec.username.clone().unwrap_or_default();
    if account != wanted {
        let signer = spec.signer_name.clone();
        return Err(Refusal::Account {
            account,
            signer,
            wanted,
        });
    }
    if let Some(identity) = identity {
        return Ok(Applicant {
            host: identity.host(namespace),
            identity,
            node_uid: None,
        });
    }
    let extra = |name: &str| match spec.extra.as_ref()?.get(name)?.as_slice() {
        [value] => Some(value.clone()),
        _ => None,
    };
    let node = extra(NODE_NAME).ok_or(Refusal::NoNode)?;
    let identity = Identity::agent(&node).ok_or(Refusal::NodeName(node))?;
    Ok(Applicant {
        host: identity.host(namespace),
        identity,
        node_uid: extra(NODE_UID),
    })
}

/// What the request of an applicant gets. `node_uid` is that of the Node of the applicant's name, as it is now.
pub fn review(
    spec: &CertificateSigningRequestSpec,
    applicant: Applicant,
    node_uid: Option<&str>,
) -> Result<Grant, Refusal> {
    let Applicant {
        identity,
        host,
        node_uid: bound_to,
    } = applicant;
    if let Identity::Agent { node } = &identity {
        let is_it = node_uid.is_some_and(|now| bound_to.is_none_or(|bound| bound == now));
        if !is_it {
            return Err(Refusal::OtherNode(node.clone()));
        }
    }
    let usages: BTreeSet<_> = spec.usages.iter().flatten().map(String::as_str).collect();
    if usages != BTreeSet::from(USAGES) {
        return Err(Refusal::Usages);
    }
    let key = key_of(&spec.request.0, &identity, host.as_deref())?;
    let wish = spec.expiration_seconds;
    let wish = wish.and_then(|wish| u64::try_from(wish).ok());
    let life = wish
        .map_or(LONGEST, Duration::from_secs)
        .clamp(SHORTEST, LONGEST);
    Ok(Grant {
        identity,
        host,
        key,
        life,
    })
}

/// The key of a request that names this identity, the host that belongs to it, and nothing else, proved to be the applicant's by its signature.
fn key_of(pem: &[u8], identity: &Identity, host: Option<&str>) -> Result<PublicKey, Refusal> {
    if pem.len() > LARGEST {
        let why = format!("it is larger than {LARGEST} bytes");
        return Err(Refusal::Malformed(why));
    }
    let block = Pem::iter_from_buffer(pem).next();
    let block = block.ok_or_else(|| Refusal::Malformed("it is no PEM".to_owned()))?;
    let block = block.map_err(|error| Refusal::Malformed(error.to_string()))?;
    let (_, parsed) = X509CertificationRequest::from_der(&block.contents)
        .map_err(|error| Refusal::Malformed(error.to_string()))?;
    let kind = &parsed.certification_request_info.subject_pki.algorithm;
    let curve = kind.parameters.as_ref();
    let curve = curve.and_then(|curve| curve.as_oid().ok());
    let signs = signs_with(&kind.algorithm, curve.as_ref()).ok_or(Refusal::Key)?;
    let request = CertificateSigningRequestParams::from_der(&block.contents.as_slice().into())
        .map_err(|error| Refusal::Malformed(error.to_string()))?;
    if request.public_key.algorithm() != signs {
        return Err(Refusal::Key);
    }
    if matches!(request.params.is_ca, rcgen::IsCa::Ca(_)) {
        return Err(Refusal::Authority);
    }
    let is_uri = |uri: &str| uri == identity.to_string();
    let named = match (request.params.subject_alt_names.as_slice(), host) {
        ([SanType::URI(uri)], None) => is_uri(uri.as_str()),
        ([SanType::URI(uri), SanType::DnsName(name)], Some(host)) => {
            is_uri(uri.as_str()) && name.as_str() == host
        }
        _ => false,
    };
    if named {
        Ok(request.public_key)
    } else {
        Err(Refusal::Names(identity.clone()))
    }
}

/// With what a key of this kind signs. rcgen tells the key's kind by the request's signature, which could stand for another curve.
fn signs_with(key: &Oid<'_>, curve: Option<&Oid<'_>>) -> Option<&'static SignatureAlgorithm> {
    if *key == OID_SIG_ED25519 {
        return Some(&rcgen::PKCS_ED25519);
    }
    if *key != OID_KEY_TYPE_EC_PUBLIC_KEY {
        return None;
    }
    match curve {
        Some(curve) if *curve == OID_EC_P256 => Some(&rcgen::PKCS_ECDSA_P256_SHA256),
        Some(curve) if *curve == OID_NIST_EC_P384 => Some(&rcgen::PKCS_ECDSA_P384_SHA384),
        Some(_) | None => None,
    }
}

#[cfg(test)]
mod tests;
