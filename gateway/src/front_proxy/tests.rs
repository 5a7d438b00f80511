use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};

use super::*;

struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        params.signed_by(&key, &self.0).unwrap().der().clone()
    }

    fn client(&self, name: &str) -> CertificateDer<'static> {
        self.issue(name, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn front_proxy(&self, names: &str) -> FrontProxy {
        FrontProxy::read(&BTreeMap::from([
            ("requestheader-client-ca-file".to_owned(), self.0.pem()),
            ("requestheader-allowed-names".to_owned(), names.to_owned()),
        ]))
        .unwrap()
    }
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| {
            (
                name.parse::<http::HeaderName>().unwrap(),
                value.parse::<http::HeaderValue>().unwrap(),
            )
        })
        .collect()
}

#[test]
fn only_the_front_proxy_is_believed() {
    let (ca, other) = (Ca::new(), Ca::new());
    let alice = headers(&[("x-remote-user", "alice")]);
    let one = ca.front_proxy(r#"["front-proxy"]"#);
    let any = ca.front_proxy("[]");
    let server = ca.issue("front-proxy", ExtendedKeyUsagePurpose::ServerAuth);
    for (front_proxy, chain, believed) in [
        (&one, vec![ca.client("front-proxy")], true),
        (&one, vec![ca.client("admin")], false),
        (&one, vec![other.client("front-proxy")], false),
        (&one, vec![server], false),
        (&one, vec![CertificateDer::from(vec![1, 2, 3])], false),
        (&one, vec![], false),
        (&any, vec![ca.client("admin")], true),
        (&any, vec![other.client("admin")], false),
    ] {
        let user = front_proxy.user(&chain, &alice, UnixTime::now());
        match user {
            Ok(user) => assert!(believed && user.name == "alice", "{user:?}"),
            Err(refusal) => {
                assert!(!believed, "{refusal:?}");
                assert_eq!(refusal.kind, Kind::Unauthorized);
            }
        }
    }
}

#[test]
fn the_user_is_who_the_headers_say() {
    let ca = Ca::new();
    let front_proxy = ca.front_proxy("[]");
    let chain = [ca.client("x")];
    let told = headers(&[
        ("X-Remote-User", "system:serviceaccount:a:b"),
        ("X-Remote-Uid", "17"),
        ("X-Remote-Group", "one"),
        ("X-Remote-Group", "two"),
        ("X-Remote-Extra-Scopes", "read"),
        ("X-Remote-Extra-Scopes", "write"),
        (
            "X-Remote-Extra-authentication.kubernetes.io%2Fnode-name",
            "n1",
        ),
        ("X-Other", "no"),
    ]);
    let user = front_proxy.user(&chain, &told, UnixTime::now()).unwrap();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let wanted = User {
        name: "system:serviceaccount:a:b".to_owned(),
        uid: Some("17".to_owned()),
        groups: words(&["one", "two"]),
        extra: BTreeMap::from([
            ("scopes".to_owned(), words(&["read", "write"])),
            (
                "authentication.kubernetes.io/node-name".to_owned(),
                words(&["n1"]),
            ),
        ]),
    };
    assert_eq!(user, wanted);
    assert!(
        front_proxy
            .user(&chain, &HeaderMap::new(), UnixTime::now())
            .is_err()
    );
}

#[test]
fn a_config_map_without_a_ca_is_no_front_proxy() {
    assert!(FrontProxy::read(&BTreeMap::new()).is_err());
    for ca in ["", "-----BEGIN CERTIFICATE-----", "x"] {
        let data = BTreeMap::from([("requestheader-client-ca-file".to_owned(), ca.to_owned())]);
        assert!(FrontProxy::read(&data).is_err(), "{ca}");
    }
    let mut data = BTreeMap::from([("requestheader-client-ca-file".to_owned(), Ca::new().0.pem())]);
    assert!(FrontProxy::read(&data).is_ok());
    data.insert("requestheader-allowed-names".to_owned(), "x".to_owned());
    assert!(FrontProxy::read(&data).is_err());
}
