//! Pulls from a real registry, and from one that misbehaves.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cloche_agent::image::{Digest, ImageError, PullPolicy};
use cloche_crds::Reason;
use serde_json::json;
use tempfile::TempDir;

use super::fake::{Answer, Fake};
use super::support::{Made, Mounted, Pack, Rig, Tar, made, one_layer};

/// Debian's docker-registry on a port of its own, ended when dropped.
struct Real {
    address: String,
    process: Child,
    storage: TempDir,
}

impl Real {
    async fn start(auth: bool) -> Self {
        let storage = tempfile::Builder::new()
            .prefix("cloche-registry-")
            .tempdir()
            .unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let root = storage.path().display();
        let mut config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {root}/data}}}}\nhttp: {{addr: \"{address}\"}}\n"
        );
        if auth {
            fs::write(storage.path().join("htpasswd"), "").unwrap();
            config += &format!("auth: {{htpasswd: {{realm: r, path: {root}/htpasswd}}}}\n");
        }
        let file = storage.path().join("config.yml");
        fs::write(&file, config).unwrap();
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("this test needs docker-registry");
        let real = Self {
            address,
            process,
            storage,
        };
        let start = Instant::now();
        while tokio::net::TcpStream::connect(&real.address).await.is_err() {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "docker-registry does not listen"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        real
    }

    async fn push(&self, name: &str, tag: &str, made: &Made) {
        let http = client();
        let base = format!("http://{}/v2/{name}", self.address);
        for (digest, bytes) in made
            .blobs
            .iter()
            .filter(|(digest, _)| **digest != made.manifest)
        {
            let begun = http
                .post(format!("{base}/blobs/uploads/"))
                .send()
                .await
                .unwrap();
            let location = begun.headers()["location"].to_str().unwrap().to_owned();
            let glue = if location.contains('?') { '&' } else { '?' };
            let put = http
                .put(format!("{location}{glue}digest={digest}"))
                .body(bytes.clone());
            let put = put.send().await.unwrap();
            assert!(put.status().is_success(), "{put:?}");
        }
        self.push_manifest(name, tag, &made.blobs[&made.manifest], "manifest")
            .await;
    }

    async fn push_manifest(&self, name: &str, tag: &str, body: &[u8], kind: &str) {
        let put = client()
            .put(format!("http://{}/v2/{name}/manifests/{tag}", self.address))
            .header(
                "Content-Type",
                format!("application/vnd.oci.image.{kind}.v1+json"),
            )
            .body(body.to_vec())
            .send()
            .await
            .unwrap();
        assert!(put.status().is_success(), "{put:?}");
    }

    fn blob(&self, digest: &Digest) -> PathBuf {
        let hex = digest.hex();
        self.storage.path().join(format!(
            "data/docker/registry/v2/blobs/sha256/{}/{hex}/data",
            &hex[..2]
        ))
    }

    /// With patience: a busy machine is no stalling registry.
    fn rig(&self) -> Rig {
        Rig::with(|config| {
            config.registries.insecure.insert(self.address.clone());
        })
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn client() -> reqwest::Client {
    drop(rustls::crypto::ring::default_provider().install_default());
    reqwest::Client::builder().no_proxy().build().unwrap()
}

fn rig_for(address: &str) -> Rig {
    Rig::with(|config| {
        config.registries.insecure.insert(address.to_owned());
        config.limits.idle = Duration::from_millis(1500);
    })
}

fn image(content: &[u8]) -> Made {
    let layers = [
        (
            Pack::Gzip,
            Tar::default()
                .file("lower", b"l")
                .file("both", b"old")
                .done(),
        ),
        (Pack::Zstd, Tar::default().file("both", content).done()),
    ];
    made(&layers, json!({"Cmd": ["/both"]}))
}

#[tokio::test]
async fn by_tag_and_by_digest() {
    let registry = Real::start(false).await;
    let rig = registry.rig();
    let (first, second) = (image(b"one"), image(b"two"));
    registry.push("team/app", "v1", &first).await;
    let reference = format!("{}/team/app:v1", registry.address);
    let got = rig.ensure(&reference).await.unwrap();
    assert_eq!(got.digest, first.manifest);
    assert_eq!(got.config.cmd, ["/both"]);
    assert_eq!(
        fs::read(Mounted::new(&got.erofs).path("both")).unwrap(),
        b"one"
    );

    registry.push("team/app", "v1", &second).await;
    let kept = rig.ensure(&reference).await.unwrap();
    assert_eq!(
        kept.digest, first.manifest,
        "IfNotPresent does not ask again"
    );
    let moved = rig.ensure_by(&reference, PullPolicy::Always).await.unwrap();
    assert_eq!(moved.digest, second.manifest, "Always does");
    let kept = rig.ensure_by(&reference, PullPolicy::Never).await.unwrap();
    assert_eq!(kept.digest, second.manifest);

    let by_digest = format!("{}/team/app@{}", registry.address, first.manifest);
    let got = rig.ensure_by(&by_digest, PullPolicy::Always).await.unwrap();
    assert_eq!(got.digest, first.manifest);

    let index = json!({"schemaVersion": 2, "manifests": [
        {"mediaType": "x", "digest": Digest::of(b"other"), "size": 7, "platform": {"os": "linux", "architecture": "s390x"}},
        {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": first.manifest,
         "size": first.blobs[&first.manifest].len(),
         "platform": {"os": "linux", "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }}},
    ]});
    let fake = Fake::start().await;
    fake.serve(&first);
    fake.set(
        "/v2/app/manifests/many",
        Answer::Whole(index.to_string().into_bytes()),
    );
    fake.set(
        &format!("/v2/app/manifests/{}", first.manifest),
        Answer::Whole(first.blobs[&first.manifest].clone()),
    );
    let rig = rig_for(&fake.address);
    let got = rig
        .ensure(&format!("{}/app:many", fake.address))
        .await
        .unwrap();
    assert_eq!(got.digest, first.manifest);
}

#[tokio::test]
async fn what_is_not_there() {
    let registry = Real::start(false).await;
    let rig = registry.rig();
    registry.push("app", "v1", &image(b"x")).await;
    for (name, policy) in [
        ("app:v2", PullPolicy::IfNotPresent),
        ("other:v1", PullPolicy::Always),
        ("app:v1", PullPolicy::Never),
    ] {
        let reference = format!("{}/{name}", registry.address);
        let error = rig.ensure_by(&reference, policy).await.unwrap_err();
        assert_eq!(error.reason(), Reason::ImageNotFound, "{error}");
        assert!(error.to_string().contains(&reference), "{error}");
    }
    let absent = format!("{}/app@{}", registry.address, Digest::of(b"absent"));
    assert_eq!(
        rig.ensure(&absent).await.unwrap_err().reason(),
        Reason::ImageNotFound
    );
    rig.assert_nothing_left().await;
}

#[tokio::test]
async fn tampered_and_cut_blobs() {
    let registry = Real::start(false).await;
    let rig = registry.rig();
    let made = image(b"x");
    let reference = format!("{}/app:v1", registry.address);
    for digest in made.blobs.keys() {
        registry.push("app", "v1", &made).await;
        let path = registry.blob(digest);
        let good = fs::read(&path).unwrap();
        let mut flipped = good.clone();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        for bad in [
            flipped,
            good[..good.len() - 1].to_vec(),
            [good.clone(), b"more".to_vec()].concat(),
        ] {
            fs::write(&path, bad).unwrap();
            let error = rig.ensure(&reference).await.unwrap_err();
            // The registry itself notices some damage of manifests.
            assert_eq!(error.reason(), Reason::ImagePullFailed, "{error}");
            rig.assert_nothing_left().await;
        }
        fs::write(&path, good).unwrap();
    }
    rig.ensure(&reference).await.unwrap();
}

#[tokio::test]
async fn refused_credentials() {
    let registry = Real::start(true).await;
    let rig = registry.rig();
    let error = rig
        .ensure(&format!("{}/app:v1", registry.address))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::ImageUnauthorized, "{error}");
    assert!(error.to_string().contains("credentials"), "{error}");
}

#[tokio::test]
async fn token_servers() {
    let fake = Fake::start().await;
    let rig = rig_for(&fake.address);
    fake.serve(&image(b"x"));
    let reference = format!("{}/app:latest", fake.address);
    let ask = |realm: &str| {
        let header = format!(
            "WWW-Authenticate: Bearer realm=\"{realm}\",service=\"s\",scope=\"repository:app:pull\"\r\n"
        );
        fake.set(
            "/v2/app/manifests/latest",
            Answer::Status("401 Unauthorized", header),
        );
    };
    // The token does not help: unauthorized, after one try.
    ask(&format!("http://{}/token", fake.address));
    fake.set(
        "/token?scope=repository%3Aapp%3Apull&service=s",
        Answer::Whole(br#"{"token":"t"}"#.to_vec()),
    );
    let error = rig.ensure(&reference).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ImageUnauthorized, "{error}");
    assert_eq!((fake.asked("/token"), fake.asked("/manifests/")), (1, 2));
    // It may not send us to plain HTTP elsewhere, give us a header of its choice, or more than we want.
    ask("http://169.254.169.254/latest");
    assert_eq!(
        rig.ensure(&reference).await.unwrap_err().reason(),
        Reason::ImagePullFailed
    );
    ask(&format!("http://{}/evil", fake.address));
    fake.set(
        "/evil?scope=repository%3Aapp%3Apull&service=s",
        Answer::Whole(br#"{"token":"a\r\nX: y"}"#.to_vec()),
    );
    assert_eq!(
        rig.ensure(&reference).await.unwrap_err().reason(),
        Reason::ImagePullFailed
    );
    fake.set(
        "/evil?scope=repository%3Aapp%3Apull&service=s",
        Answer::Flood,
    );
    rig.ensure(&reference).await.unwrap_err();
    // Nor by a redirect.
    fake.set(
        "/v2/app/manifests/latest",
        Answer::Status(
            "307 Temporary Redirect",
            "Location: http://169.254.169.254/x\r\n".to_owned(),
        ),
    );
    let error = rig.ensure(&reference).await.unwrap_err();
    assert!(error.to_string().contains("redirect"), "{error}");
}

#[tokio::test]
async fn registries_that_stall_or_flood() {
    let fake = Fake::start().await;
    let rig = rig_for(&fake.address);
    let made = image(b"x");
    let reference = format!("{}/app:latest", fake.address);
    let layer = made
        .blobs
        .keys()
        .find(|digest| **digest != made.manifest)
        .unwrap();
    let mut paths = vec!["/v2/app/manifests/latest".to_owned()];
    paths.extend(
        made.blobs
            .keys()
            .filter(|digest| **digest != made.manifest)
            .map(|digest| format!("/v2/app/blobs/{digest}")),
    );
    for path in &paths {
        for (answer, text) in [
            (Answer::Hang, "stalls"),
            (Answer::Trickle, ""),
            (Answer::Flood, ""),
            (Answer::Cut(b"{".to_vec()), "broke off"),
            (
                Answer::Status("500 Internal Server Error", String::new()),
                "500",
            ),
            (
                Answer::Status("429 Too Many Requests", String::new()),
                "too many requests",
            ),
        ] {
            fake.serve(&made);
            fake.set(path, answer);
            let start = Instant::now();
            let error = rig.ensure(&reference).await.unwrap_err();
            assert!(start.elapsed() < Duration::from_secs(15), "{path}: {error}");
            assert!(
                matches!(
                    error.reason(),
                    Reason::ImagePullFailed | Reason::ImageInvalid
                ),
                "{path}: {error:?}"
            );
            assert!(error.to_string().contains(text), "{path}: {error}");
            rig.assert_nothing_left().await;
        }
    }
    fake.serve(&made);
    fake.set(
        &format!("/v2/app/blobs/{layer}"),
        Answer::Status("404 Not Found", String::new()),
    );
    let error = rig.ensure(&reference).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ImagePullFailed, "{error}");
    for bad in [
        "{",
        "[]",
        r#"{"schemaVersion":1}"#,
        r#"{"schemaVersion":2,"layers":[]}"#,
    ] {
        fake.set(
            "/v2/app/manifests/latest",
            Answer::Whole(bad.as_bytes().to_vec()),
        );
        let error = rig.ensure(&reference).await.unwrap_err();
        assert_eq!(error.reason(), Reason::ImageInvalid, "{bad}: {error}");
    }
    fake.serve(&made);
    rig.ensure(&reference).await.unwrap();
}

#[tokio::test]
async fn trickles_over_the_pace_meet_the_deadline() {
    let fake = Fake::start().await;
    let rig = Rig::with(|config| {
        config.registries.insecure.insert(fake.address.clone());
        config.limits.deadline = Duration::from_secs(1);
        config.limits.idle = Duration::from_mins(1);
    });
    let made = one_layer(Tar::default().file("a", &[1; 100]));
    fake.serve(&made);
    for digest in made.blobs.keys() {
        fake.set(&format!("/v2/app/blobs/{digest}"), Answer::Trickle);
    }
    let error = rig
        .ensure(&format!("{}/app", fake.address))
        .await
        .unwrap_err();
    assert!(matches!(&error, ImageError::Pull { .. }), "{error:?}");
    rig.assert_nothing_left().await;
}

#[tokio::test]
async fn mirrors_come_first_and_may_fail() {
    let (broken, good) = (Fake::start().await, Fake::start().await);
    let made = image(b"x");
    for (digest, bytes) in &made.blobs {
        good.set(
            &format!("/v2/library/app/blobs/{digest}"),
            Answer::Whole(bytes.clone()),
        );
    }
    good.set(
        "/v2/library/app/manifests/latest",
        Answer::Whole(made.blobs[&made.manifest].clone()),
    );
    broken.set(
        "/v2/library/app/manifests/latest",
        Answer::Status("503 Service Unavailable", String::new()),
    );
    let rig = Rig::with(|config| {
        let addresses = vec![broken.address.clone(), good.address.clone()];
        config.registries.insecure.extend(addresses.clone());
        config
            .registries
            .mirrors
            .insert("docker.io".to_owned(), addresses);
    });
    assert_eq!(rig.ensure("app").await.unwrap().digest, made.manifest);
    assert_eq!(broken.asked("/manifests/"), 1);
    let error = rig
        .ensure_by(
            "app@sha256:0000000000000000000000000000000000000000000000000000000000000000",
            PullPolicy::Never,
        )
        .await;
    assert_eq!(error.unwrap_err().reason(), Reason::ImageNotFound);
}

#[tokio::test]
async fn a_pull_that_breaks_off_goes_on_at_the_next_place() {
    let (half, whole) = (Fake::start().await, Fake::start().await);
    let made = image(b"x");
    for fake in [&half, &whole] {
        for (digest, bytes) in &made.blobs {
            let path = format!("/v2/library/app/blobs/{digest}");
            fake.set(&path, Answer::Whole(bytes.clone()));
        }
        let manifest = made.blobs[&made.manifest].clone();
        fake.set("/v2/library/app/manifests/latest", Answer::Whole(manifest));
    }
    for digest in made.blobs.keys() {
        let path = format!("/v2/library/app/blobs/{digest}");
        half.set(&path, Answer::Status("404 Not Found", String::new()));
    }
    let with_retries = |retries| {
        Rig::with(|config| {
            let addresses = vec![half.address.clone(), whole.address.clone()];
            config.limits.retries = retries;
            config.registries.insecure.extend(addresses.clone());
            config
                .registries
                .mirrors
                .insert("docker.io".to_owned(), addresses);
        })
    };
    let error = with_retries(0).ensure("app").await.unwrap_err();
    assert_eq!(error.reason(), Reason::ImagePullFailed, "{error}");
    assert_eq!(whole.asked("/"), 0);
    let image = with_retries(1).ensure("app").await.unwrap();
    assert_eq!(image.digest, made.manifest);
}

#[tokio::test]
async fn nobody_listens() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let rig = rig_for(&address);
    let error = rig.ensure(&format!("{address}/app")).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ImagePullFailed, "{error}");
    assert!(error.to_string().contains(&address), "{error}");
    // A registry that is not listed as insecure is spoken to by TLS, which this one does not know.
    let fake = Fake::start().await;
    fake.serve(&image(b"x"));
    let reference = format!("{}/app", fake.address);
    let error = rig.ensure(&reference).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ImagePullFailed, "{error}");
    assert_eq!(fake.asked("/"), 0);
}
