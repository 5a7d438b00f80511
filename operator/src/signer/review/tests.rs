use cloche_identity::Credentials;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use rcgen::{CertificateParams, IsCa, KeyPair};
use rustls_pki_types::PrivatePkcs8KeyDer;

use super::super::authority::{Authority, Kept};
use super::*;

const NAMESPACE: &str = "cloche-system";
const UID: &str = "3d0f8c86-8a9a-4a5e-9d55-3f4f4c5d0d11";

fn agent() -> Identity {
    Identity::agent("node-1").unwrap()
}

fn pem(key: &KeyPair, change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(agent().to_string().try_into().unwrap())];
    change(&mut params);
    let request = params.serialize_request(key).unwrap();
    request.pem().unwrap().into_bytes()
}

/// What the agent of node-1 asks for.
fn spec() -> CertificateSigningRequestSpec {
    let extra = [(NODE_NAME, "node-1"), (NODE_UID, UID)];
    CertificateSigningRequestSpec {
        username: Some(format!("system:serviceaccount:{NAMESPACE}:cloche-agent")),
        extra: Some(
            extra
                .map(|(name, value)| (name.to_owned(), vec![value.to_owned()]))
                .into(),
        ),
        signer_name: AGENT_SIGNER.to_owned(),
        usages: Some(USAGES.map(str::to_owned).to_vec()),
        request: ByteString(pem(&KeyPair::generate().unwrap(), |_| {})),
        ..CertificateSigningRequestSpec::default()
    }
}

fn decided(spec: &CertificateSigningRequestSpec, node: Option<&str>) -> Result<Grant, Refusal> {
    review(spec, applicant(spec, NAMESPACE)?, node)
}

fn refused(change: impl FnOnce(&mut CertificateSigningRequestSpec)) -> Refusal {
    let mut spec = spec();
    change(&mut spec);
    decided(&spec, Some(UID)).unwrap_err()
}

#[test]
fn an_agent_gets_a_certificate_of_its_node() {
    let key = KeyPair::generate().unwrap();
    let mut spec = spec();
    spec.request = ByteString(pem(&key, |_| {}));
    let grant = decided(&spec, Some(UID)).unwrap();
    assert_eq!(grant.identity, agent());
    assert_eq!(grant.life, LONGEST);
    let kept = Kept::make(Timestamp::now()).unwrap();
    let authority = Authority::read(kept).unwrap();
    let chain = authority.sign(&grant, Timestamp::now()).unwrap();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let ca = authority.certificate().as_bytes();
    let credentials = Credentials::new(agent(), chain.as_bytes(), key, ca).unwrap();
    assert_eq!(credentials.chain().len(), 2);
    let (_, certificate) = x509_parser::parse_x509_certificate(&credentials.chain()[0]).unwrap();
    assert!(!certificate.is_ca());
    let validity = certificate.validity();
    let life = validity.not_after.timestamp() - validity.not_before.timestamp();
    assert_eq!(life, 24 * 60 * 60);
    assert!(validity.is_valid());
    credentials.server(|_| true).unwrap();
}

#[test]
fn both_curves_and_ed25519_are_taken_and_nothing_else() {
    for algorithm in [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ED25519,
    ] {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let mut spec = spec();
        spec.request = ByteString(pem(&key, |_| {}));
        assert_eq!(
            *decided(&spec, Some(UID)).unwrap().key.algorithm(),
            *algorithm
        );
    }
    let rsa = x509_parser::oid_registry::OID_PKCS1_RSAENCRYPTION;
    assert!(signs_with(&rsa, None).is_none());
    let p521 = x509_parser::oid_registry::OID_NIST_EC_P521;
    assert!(signs_with(&OID_KEY_TYPE_EC_PUBLIC_KEY, Some(&p521)).is_none());
    assert!(signs_with(&OID_KEY_TYPE_EC_PUBLIC_KEY, None).is_none());
}

#[test]
fn a_wish_for_a_life_is_bounded() {
    for (wish, life) in [
        (None, LONGEST),
        (Some(-1), LONGEST),
        (Some(1), SHORTEST),
        (Some(3600), Duration::from_hours(1)),
        (Some(i32::MAX), LONGEST),
    ] {
        let mut spec = spec();
        spec.expiration_seconds = wish;
        assert_eq!(decided(&spec, Some(UID)).unwrap().life, life, "{wish:?}");
    }
}

#[test]
fn only_the_account_of_a_signer_may_ask_it() {
    for account in [
        "system:serviceaccount:cloche-system:cloche-gateway",
        "system:serviceaccount:other:cloche-agent",
        "system:serviceaccount:cloche-system:cloche-agent:x",
        "cloche-agent",
        "system:admin",
        "",
    ] {
        let refusal = refused(|spec| spec.username = Some(account.to_owned()));
        assert!(matches!(refusal, Refusal::Account { .. }), "{refusal}");
    }
    let refusal = refused(|spec| spec.signer_name = GATEWAY_SIGNER.to_owned());
    assert!(
        refusal.to_string().contains("cloche-gateway may"),
        "{refusal}"
    );
}

#[test]
fn the_token_says_which_node() {
    let change = |name: &str, values: &[&str]| {
        let (name, values) = (
            name.to_owned(),
            values.iter().map(ToString::to_string).collect(),
        );
        refused(|spec| {
            spec.extra.get_or_insert_default().insert(name, values);
        })
    };
    assert_eq!(refused(|spec| spec.extra = None), Refusal::NoNode);
    assert_eq!(change(NODE_NAME, &[]), Refusal::NoNode);
    assert_eq!(change(NODE_NAME, &["node-1", "node-2"]), Refusal::NoNode);
    assert_eq!(
        change(NODE_NAME, &["Node"]),
        Refusal::NodeName("Node".to_owned())
    );
    assert!(matches!(change(NODE_NAME, &["node-2"]), Refusal::Names(_)));
    let other = Refusal::OtherNode("node-1".to_owned());
    assert_eq!(change(NODE_UID, &["another"]), other);
    assert_eq!(decided(&spec(), None).unwrap_err(), other);
    let mut without = spec();
    without.extra.as_mut().unwrap().remove(NODE_UID);
    assert!(decided(&without, Some("whatever")).is_ok());
    assert_eq!(decided(&without, None).unwrap_err(), other);
}

#[test]
fn the_request_names_the_applicant_alone() {
    let uri = |text: &str| SanType::URI(text.try_into().unwrap());
    let own = agent().to_string();
    for names in [
        vec![],
        vec![uri("spiffe://cloche.dev/agent/node-2")],
        vec![uri("spiffe://cloche.dev/gateway")],
        vec![uri(&own), uri("spiffe://cloche.dev/gateway")],
        vec![
            uri(&own),
            SanType::DnsName("kubernetes".try_into().unwrap()),
        ],
        vec![SanType::DnsName(own.as_str().try_into().unwrap())],
    ] {
        let key = KeyPair::generate().unwrap();
        let request = pem(&key, |params| params.subject_alt_names = names.clone());
        let refusal = refused(|spec| spec.request = ByteString(request));
        assert_eq!(refusal, Refusal::Names(agent()), "{names:?}");
    }
}

#[test]
fn usages_are_ours_and_all_of_them() {
    for usages in [
        &["client auth"][..],
        &[
            "client auth",
            "digital signature",
            "server auth",
            "cert sign",
        ],
        &["any"],
        &[],
    ] {
        let usages = usages.iter().map(ToString::to_string).collect();
        assert_eq!(refused(|spec| spec.usages = Some(usages)), Refusal::Usages);
    }
}

#[test]
fn what_is_no_request_is_refused() {
    let key = KeyPair::generate().unwrap();
    let good = pem(&key, |_| {});
    let mut broken = good.clone();
    let at = broken.len() / 2;
    broken[at] = if broken[at] == b'A' { b'B' } else { b'A' };
    for request in [
        Vec::new(),
        b"hello".to_vec(),
        good[..good.len() / 2].to_vec(),
        broken,
        vec![b'-'; LARGEST + 1],
    ] {
        let refusal = refused(|spec| spec.request = ByteString(request));
        let is_told = matches!(refusal, Refusal::Malformed(_) | Refusal::Key);
        assert!(is_told, "{refusal}");
    }
    let authority = pem(&key, |params| {
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    });
    let refusal = refused(|spec| spec.request = ByteString(authority));
    assert_eq!(refusal, Refusal::Authority);
}

#[test]
fn a_gateway_gets_its_own_certificate() {
    let key = KeyPair::generate().unwrap();
    let mut spec = spec();
    spec.username = Some(format!("system:serviceaccount:{NAMESPACE}:cloche-gateway"));
    spec.signer_name = GATEWAY_SIGNER.to_owned();
    assert_eq!(
        decided(&spec, None).unwrap_err(),
        Refusal::Names(Identity::Gateway)
    );
    let uri = || SanType::URI(Identity::Gateway.to_string().try_into().unwrap());
    let host = |name: &str| SanType::DnsName(name.try_into().unwrap());
    let mut ask = |names: Vec<SanType>| {
        spec.request = ByteString(pem(&key, |params| params.subject_alt_names = names));
        decided(&spec, None)
    };
    let service = "cloche-gateway.cloche-system.svc";
    let grant = ask(vec![uri(), host(service)]).unwrap();
    assert_eq!(grant.identity, Identity::Gateway);
    assert_eq!(grant.host.as_deref(), Some(service));
    for names in [
        vec![uri()],
        vec![uri(), host("kubernetes.default.svc")],
        vec![uri(), host(service), host("kubernetes.default.svc")],
    ] {
        let refusal = ask(names).unwrap_err();
        assert_eq!(refusal, Refusal::Names(Identity::Gateway));
    }
    let kept = Kept::make(Timestamp::now()).unwrap();
    let signed = Authority::read(kept.clone()).unwrap();
    let signed = signed.sign(&grant, Timestamp::now()).unwrap();
    let (_, block) = x509_parser::pem::parse_x509_pem(signed.as_bytes()).unwrap();
    let text = format!(
        "{:?}",
        block.parse_x509().unwrap().subject_alternative_name()
    );
    assert!(text.contains(service), "{text}");
}

#[test]
fn an_operator_gets_its_own_certificate_and_nobody_else_that_one() {
    let key = KeyPair::generate().unwrap();
    let mut spec = spec();
    spec.signer_name = OPERATOR_SIGNER.to_owned();
    let uri = SanType::URI(Identity::Operator.to_string().try_into().unwrap());
    spec.request = ByteString(pem(&key, |params| params.subject_alt_names = vec![uri]));
    for account in ["cloche-agent", "cloche-gateway", "default"] {
        spec.username = Some(format!("system:serviceaccount:{NAMESPACE}:{account}"));
        let refusal = decided(&spec, Some(UID)).unwrap_err();
        assert!(matches!(refusal, Refusal::Account { .. }), "{refusal}");
    }
    spec.username = Some(format!("system:serviceaccount:{NAMESPACE}:cloche-operator"));
    let grant = decided(&spec, None).unwrap();
    assert_eq!((grant.identity, grant.host), (Identity::Operator, None));
    spec.request = ByteString(pem(&key, |_| {}));
    assert_eq!(
        decided(&spec, None).unwrap_err(),
        Refusal::Names(Identity::Operator)
    );
}

#[test]
fn a_ca_is_read_back_and_only_with_its_own_key() {
    let (one, other) = (
        Kept::make(Timestamp::now()).unwrap(),
        Kept::make(Timestamp::now()).unwrap(),
    );
    assert!(Authority::read(one.clone()).is_ok());
    let mixed = Kept {
        key: other.key,
        ..one.clone()
    };
    assert!(Authority::read(mixed).is_err());
    let broken = Kept {
        certificate: "x".to_owned(),
        ..one
    };
    assert!(Authority::read(broken).is_err());
}

#[test]
fn each_request_is_decided_once() {
    let request = |signer: &str, conditions: &[&str], certificate: bool| {
        let conditions = conditions
            .iter()
            .map(|kind| CertificateSigningRequestCondition {
                type_: (*kind).to_owned(),
                ..CertificateSigningRequestCondition::default()
            });
        CertificateSigningRequest {
            spec: CertificateSigningRequestSpec {
                signer_name: signer.to_owned(),
                ..spec()
            },
            status: Some(CertificateSigningRequestStatus {
                conditions: Some(conditions.collect()),
                certificate: certificate.then(|| ByteString(vec![1])),
            }),
            ..CertificateSigningRequest::default()
        }
    };
    for (signer, conditions, certificate, expected) in [
        (AGENT_SIGNER, &[][..], false, Stage::New),
        (GATEWAY_SIGNER, &[], false, Stage::New),
        (OPERATOR_SIGNER, &[], false, Stage::New),
        (AGENT_SIGNER, &["Approved"], false, Stage::Approved),
        (AGENT_SIGNER, &["Approved"], true, Stage::Done),
        (AGENT_SIGNER, &["Approved", "Failed"], false, Stage::Done),
        (AGENT_SIGNER, &["Denied"], false, Stage::Done),
        ("kubernetes.io/kubelet-serving", &[], false, Stage::Done),
    ] {
        let found = stage(&request(signer, conditions, certificate));
        assert_eq!(found, expected, "{signer} {conditions:?}");
    }
}
