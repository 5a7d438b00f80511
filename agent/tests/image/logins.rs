//! Pulls by users of registries.

use std::collections::BTreeSet;

use cloche_agent::image::{Access, ImageError, Login, PullPolicy};
use cloche_crds::Reason;
use serde_json::json;

use super::fake::{Answer, Fake};
use super::support::{Made, Pack, Rig, Tar, made};

const BASIC: &str = "WWW-Authenticate: Basic realm=\"here\"\r\n";
/// `ann:right`, `bob:wrong` in base64.
const ANN: &str = "Basic YW5uOnJpZ2h0";
const BOB: &str = "Basic Ym9iOndyb25n";

fn login(user: &str, password: &str) -> Login {
    Login {
        secret: format!("of-{user}"),
        user: user.to_owned(),
        password: password.to_owned(),
    }
}

fn access(logins: &[Login]) -> Access {
    Access {
        secrets: vec!["of-bob".to_owned(), "of-ann".to_owned()],
        logins: logins.to_vec(),
    }
}

fn ann() -> Login {
    login("ann", "right")
}

fn bob() -> Login {
    login("bob", "wrong")
}

fn image() -> Made {
    let layers = [(Pack::Gzip, Tar::default().file("a", b"x").done())];
    made(&layers, json!({}))
}

/// Serves `made` as `/app:latest` to whoever has this authorization.
fn guard(fake: &Fake, made: &Made, authorization: &str, challenge: &str) {
    let guarded = |bytes: &Vec<u8>| {
        Answer::Guarded(
            authorization.to_owned(),
            challenge.to_owned(),
            bytes.clone(),
        )
    };
    for (digest, bytes) in &made.blobs {
        fake.set(&format!("/v2/app/blobs/{digest}"), guarded(bytes));
    }
    fake.set(
        "/v2/app/manifests/latest",
        guarded(&made.blobs[&made.manifest]),
    );
}

fn rig(fakes: &[&Fake]) -> Rig {
    Rig::with(|config| {
        let addresses = fakes.iter().map(|fake| fake.address.clone());
        config.registries.insecure.extend(addresses);
    })
}

async fn pull(rig: &Rig, fake: &Fake, access: &Access) -> Result<(), ImageError> {
    let reference = format!("{}/app", fake.address);
    let pulled = rig.ensure_as(&reference, PullPolicy::Always, access).await;
    pulled.map(drop)
}

#[tokio::test]
async fn users_are_tried_in_order_and_only_when_asked_for() {
    let fake = Fake::start().await;
    let rig = rig(&[&fake]);
    guard(&fake, &image(), ANN, BASIC);
    pull(&rig, &fake, &access(&[bob(), ann()])).await.unwrap();
    let tried = fake.authorizations("/manifests/");
    let of = |text: &str| Some(text.to_owned());
    assert_eq!(tried, [None, of(BOB), of(ANN)]);
    // Who was let in goes on being who asks.
    let used: BTreeSet<_> = fake.authorizations("/blobs/").into_iter().collect();
    assert_eq!(used, [of(ANN)].into());

    // Nobody is named to a registry that does not ask who it is.
    let open = Fake::start().await;
    open.serve(&image());
    let rig = self::rig(&[&open]);
    pull(&rig, &open, &access(&[ann()])).await.unwrap();
    assert!(open.authorizations("/").iter().all(Option::is_none));
}

#[tokio::test]
async fn a_refusal_names_the_secrets_and_shows_nothing_of_them() {
    let fake = Fake::start().await;
    let rig = rig(&[&fake]);
    guard(&fake, &image(), ANN, BASIC);
    for (access, says) in [
        (Access::default(), "without credentials ("),
        (
            access(&[]),
            "imagePullSecrets (of-bob, of-ann) has none for that registry",
        ),
        (
            access(&[bob(), login("eve", "wrong")]),
            "to the users in spec.imagePullSecrets (of-bob, of-eve)",
        ),
    ] {
        let error = pull(&rig, &fake, &access).await.unwrap_err();
        assert_eq!(error.reason(), Reason::ImageUnauthorized, "{error}");
        let text = format!("{error} {error:?} {access:?}");
        assert!(text.contains(says), "{text}");
        assert!(!text.contains("wrong"), "{text}");
    }
    // Another one's success is none of one's own, neither at the same time nor after it.
    let (good, bad) = (access(&[ann()]), access(&[bob()]));
    let (good, bad) = tokio::join!(pull(&rig, &fake, &good), pull(&rig, &fake, &bad));
    good.unwrap();
    assert_eq!(bad.unwrap_err().reason(), Reason::ImageUnauthorized);
    let error = pull(&rig, &fake, &access(&[bob()])).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ImageUnauthorized, "{error}");
    // But what is on the node is there for all who do not have it asked for.
    let reference = format!("{}/app", fake.address);
    rig.ensure(&reference).await.unwrap();
}

#[tokio::test]
async fn a_token_server_gets_the_user_and_storage_gets_nothing() {
    let (registry, tokens, storage) = (
        Fake::start().await,
        Fake::start().await,
        Fake::start().await,
    );
    let made = image();
    let challenge = format!(
        "WWW-Authenticate: Bearer realm=\"http://{}/token\",service=\"s\",scope=\"repository:app:pull\"\r\n",
        tokens.address
    );
    guard(&registry, &made, "Bearer t1", &challenge);
    tokens.set(
        "/token?scope=repository%3Aapp%3Apull&service=s",
        Answer::Guarded(
            ANN.to_owned(),
            BASIC.to_owned(),
            br#"{"token":"t1"}"#.to_vec(),
        ),
    );
    for (digest, bytes) in &made.blobs {
        let path = format!("/v2/app/blobs/{digest}");
        storage.set(&path, Answer::Whole(bytes.clone()));
        let elsewhere = format!("Location: http://{}{path}\r\n", storage.address);
        registry.set(&path, Answer::Status("307 Temporary Redirect", elsewhere));
    }
    let rig = rig(&[&registry, &tokens, &storage]);
    pull(&rig, &registry, &access(&[bob(), ann()]))
        .await
        .unwrap();
    let of = |text: &str| Some(text.to_owned());
    assert_eq!(tokens.authorizations("/token"), [of(BOB), of(ANN)]);
    let used: BTreeSet<_> = registry.authorizations("/blobs/").into_iter().collect();
    assert_eq!(used, [of("Bearer t1")].into());
    assert!(storage.asked("/blobs/") > 0);
    assert!(storage.authorizations("/").iter().all(Option::is_none));
    let error = pull(&rig, &registry, &access(&[bob()])).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ImageUnauthorized, "{error}");

    // A token server on plain HTTP that the node's owner did not list gets no user.
    let other = Fake::start().await;
    let challenge = format!(
        "WWW-Authenticate: Bearer realm=\"http://{}/token\"\r\n",
        other.address
    );
    guard(&registry, &made, "Bearer t1", &challenge);
    let error = pull(&rig, &registry, &access(&[ann()])).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ImagePullFailed, "{error}");
    assert_eq!(other.asked("/"), 0);
    // Nor does one behind a redirect.
    let challenge = format!(
        "WWW-Authenticate: Bearer realm=\"http://{}/moved\",service=\"s\"\r\n",
        tokens.address
    );
    guard(&registry, &made, "Bearer t1", &challenge);
    let moved = format!("Location: http://{}/token\r\n", storage.address);
    tokens.set(
        "/moved?service=s",
        Answer::Status("307 Temporary Redirect", moved),
    );
    storage.set("/token", Answer::Whole(br#"{"token":"t2"}"#.to_vec()));
    pull(&rig, &registry, &access(&[ann()])).await.unwrap_err();
    assert_eq!(tokens.authorizations("/moved"), [of(ANN)]);
    assert_eq!(storage.authorizations("/token"), [None]);
}

#[tokio::test]
async fn where_a_registry_redirects_to_nobody_is_named() {
    let (registry, other) = (Fake::start().await, Fake::start().await);
    let made = image();
    guard(&registry, &made, ANN, BASIC);
    let token = format!(
        "WWW-Authenticate: Bearer realm=\"http://{}/token\",service=\"s\"\r\n",
        other.address
    );
    let rig = rig(&[&registry, &other]);
    for challenge in [BASIC, token.as_str()] {
        guard(&other, &made, "Bearer t1", challenge);
        for digest in made.blobs.keys() {
            let path = format!("/v2/app/blobs/{digest}");
            let elsewhere = format!("Location: http://{}{path}\r\n", other.address);
            let redirect = Answer::Status("307 Temporary Redirect", elsewhere);
            registry.set(&path, redirect);
        }
        let error = pull(&rig, &registry, &access(&[ann()])).await.unwrap_err();
        assert_eq!(error.reason(), Reason::ImageUnauthorized, "{error}");
    }
    assert!(other.asked("/blobs/") > 0);
    assert_eq!(other.asked("/token"), 0);
    assert!(other.authorizations("/").iter().all(Option::is_none));
}

#[tokio::test]
async fn a_token_that_has_run_out_is_had_anew_by_the_same_user() {
    let fake = Fake::start().await;
    let rig = rig(&[&fake]);
    let made = image();
    let challenge = |realm: &str| {
        format!(
            "WWW-Authenticate: Bearer realm=\"http://{}/{realm}\",service=\"s\"\r\n",
            fake.address
        )
    };
    let token = |token: &str| {
        let reply = json!({"access_token": token}).to_string().into_bytes();
        Answer::Guarded(ANN.to_owned(), BASIC.to_owned(), reply)
    };
    guard(&fake, &made, "Bearer t2", &challenge("second"));
    fake.set(
        "/v2/app/manifests/latest",
        Answer::Guarded(
            "Bearer t1".to_owned(),
            challenge("first"),
            made.blobs[&made.manifest].clone(),
        ),
    );
    fake.set("/first?service=s", token("t1"));
    fake.set("/second?service=s", token("t2"));
    pull(&rig, &fake, &access(&[bob(), ann()])).await.unwrap();
    let of = |text: &str| Some(text.to_owned());
    assert_eq!(fake.authorizations("/first"), [of(BOB), of(ANN)]);
    assert_eq!(fake.authorizations("/second"), [of(ANN)]);
}

#[tokio::test]
async fn a_mirror_learns_of_no_user() {
    let (mirror, registry) = (Fake::start().await, Fake::start().await);
    guard(&mirror, &image(), ANN, BASIC);
    guard(&registry, &image(), ANN, BASIC);
    let rig = Rig::with(|config| {
        let addresses = [&mirror, &registry].map(|fake| fake.address.clone());
        config.registries.insecure.extend(addresses);
        let (of, mirrors) = (registry.address.clone(), vec![mirror.address.clone()]);
        config.registries.mirrors.insert(of, mirrors);
    });
    pull(&rig, &registry, &access(&[ann()])).await.unwrap();
    assert_eq!(mirror.authorizations("/manifests/"), [None]);
}
