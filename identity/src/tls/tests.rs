use jiff::Timestamp;
use rcgen::SanType;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::Credentials;
use crate::ca::Ca;

fn agent(node: &str) -> Identity {
    Identity::agent(node).unwrap()
}

/// Whether `client` gets through to `server`, which it takes for `wanted`; whom the server saw.
async fn meet(
    server: &Credentials,
    accept: fn(&Identity) -> bool,
    client: &Credentials,
    wanted: &Identity,
) -> Result<Identity, String> {
    let acceptor = TlsAcceptor::from(Arc::new(server.server(accept).unwrap()));
    let connector = TlsConnector::from(Arc::new(client.client(wanted.clone()).unwrap()));
    let (near, far) = tokio::io::duplex(64 * 1024);
    let name = ServerName::try_from(wanted.server_name()).unwrap();
    let (accepted, connected) = tokio::join!(acceptor.accept(far), connector.connect(name, near));
    let accepted = accepted.map_err(|error| error.to_string())?;
    connected.map_err(|error| error.to_string())?;
    peer(accepted.get_ref().1.peer_certificates())
}

fn gateways(identity: &Identity) -> bool {
    matches!(identity, Identity::Gateway)
}

#[tokio::test]
async fn only_the_right_parts_meet() {
    let (ca, other) = (Ca::new(), Ca::new());
    let one = ca.credentials(&agent("one"));
    let gateway = ca.credentials(&Identity::Gateway);
    let met = meet(&one, gateways, &gateway, &agent("one")).await;
    assert_eq!(met, Ok(Identity::Gateway));
    // A server of another node, a server of another role, a client of another role, a client and a server of another CA.
    let two = ca.credentials(&agent("two"));
    for (server, client, wanted) in [
        (&two, &gateway, agent("one")),
        (&gateway, &gateway, agent("one")),
        (&one, &two, agent("one")),
        (&one, &other.credentials(&Identity::Gateway), agent("one")),
        (&other.credentials(&agent("one")), &gateway, agent("one")),
    ] {
        let met = meet(server, gateways, client, &wanted).await;
        assert!(met.is_err(), "{server:?} {client:?} {met:?}");
    }
}

#[test]
fn a_certificate_is_of_exactly_one_part() {
    let ca = Ca::new();
    let uri = |text: &str| SanType::URI(text.try_into().unwrap());
    let gateway = || uri("spiffe://cloche.dev/gateway");
    for (names, named) in [
        (vec![gateway()], true),
        (vec![], false),
        (vec![uri("https://cloche.dev/gateway")], false),
        (vec![gateway(), uri("spiffe://cloche.dev/agent/a")], false),
        (
            vec![SanType::DnsName(
                "gateway.cloche.internal".try_into().unwrap(),
            )],
            false,
        ),
    ] {
        let (chain, key) = ca.issue(names);
        let made = Credentials::new(
            Identity::Gateway,
            chain.as_bytes(),
            key,
            ca.0.pem().as_bytes(),
        );
        assert_eq!(made.is_ok(), named, "{made:?}");
    }
    let (chain, key) = ca.issue(vec![uri("spiffe://cloche.dev/agent/a")]);
    let ca = ca.0.pem();
    assert!(
        Credentials::new(agent("b"), chain.as_bytes(), key.clone_key(), ca.as_bytes()).is_err()
    );
    for (chain, ca) in [
        ("", ca.as_str()),
        (&chain, ""),
        ("-----BEGIN CERTIFICATE-----", &ca),
    ] {
        let made = Credentials::new(agent("a"), chain.as_bytes(), key.clone_key(), ca.as_bytes());
        assert!(made.is_err());
    }
}

#[test]
fn it_is_renewed_before_it_ends() {
    let credentials = Ca::new().credentials(&Identity::Gateway);
    // rcgen's certificates begin in 1975 and end in 4096.
    let at = credentials.renew_at();
    assert!(
        at > "3300-01-01T00:00:00Z".parse::<Timestamp>().unwrap(),
        "{at}"
    );
    assert!(
        at < "3400-01-01T00:00:00Z".parse::<Timestamp>().unwrap(),
        "{at}"
    );
}
