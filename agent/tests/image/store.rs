//! The store as a whole: sharing, cancelling, pins, collection, crashes, a full disk.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use cloche_agent::image::{Access, ImageError, ImageStore, OpenError, Progress, PullPolicy};
use cloche_crds::Reason;
use serde_json::json;
use tokio::sync::watch;

use super::fake::{Answer, Fake};
use super::support::{Pack, Rig, Tar, made, one_layer, run};

const SLOW: Duration = Duration::from_millis(300);

async fn slow_fake(tags: &[&str]) -> (Fake, Rig) {
    let fake = Fake::start().await;
    let made = one_layer(Tar::default().file("a", &[5; 70_000]));
    fake.serve(&made);
    for (digest, bytes) in &made.blobs {
        fake.set(
            &format!("/v2/app/blobs/{digest}"),
            Answer::Slow(bytes.clone(), SLOW),
        );
    }
    for tag in tags {
        let manifest = made.blobs[&made.manifest].clone();
        fake.set(&format!("/v2/app/manifests/{tag}"), Answer::Whole(manifest));
    }
    let rig = Rig::with(|config| {
        config.registries.insecure.insert(fake.address.clone());
    });
    (fake, rig)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_are_one_pull() {
    let (fake, rig) = slow_fake(&["one", "two"]).await;
    let images: Vec<String> = (0..8)
        .map(|n| format!("{}/app:{}", fake.address, if n < 6 { "one" } else { "two" }))
        .collect();
    let pulls = images.iter().enumerate().map(|(n, image)| {
        let policy = if n % 3 == 0 {
            PullPolicy::Always
        } else {
            PullPolicy::IfNotPresent
        };
        rig.ensure_by(image, policy)
    });
    let got = futures::future::join_all(pulls).await;
    let first = got[0].as_ref().unwrap();
    assert!(
        got.iter()
            .all(|image| image.as_ref().unwrap().erofs == first.erofs)
    );
    assert_eq!(fake.asked("/blobs/"), 2, "configuration and layer, once");
    assert!(
        fake.asked("/manifests/") <= 4,
        "not more than one per tag and policy"
    );
    let asked = fake.asked("/manifests/");
    rig.ensure(&images[0]).await.unwrap();
    assert_eq!(
        fake.asked("/manifests/"),
        asked,
        "IfNotPresent does not ask"
    );
}

#[tokio::test]
async fn the_pull_outlives_one_caller_but_not_all() {
    let (fake, rig) = slow_fake(&[]).await;
    let image = format!("{}/app", fake.address);
    let (impatient, patient) = tokio::join!(
        tokio::time::timeout(SLOW / 2, rig.ensure(&image)),
        rig.ensure(&image)
    );
    assert!(impatient.is_err());
    patient.unwrap();
    assert_eq!(fake.asked("/blobs/"), 2);

    let (fake, rig) = slow_fake(&[]).await;
    let image = format!("{}/app", fake.address);
    let given_up = tokio::time::timeout(SLOW + SLOW / 2, rig.ensure(&image)).await;
    assert!(given_up.is_err());
    rig.assert_nothing_left().await;
    rig.ensure(&image).await.unwrap();
}

#[tokio::test]
async fn progress_is_told() {
    let (fake, rig) = slow_fake(&[]).await;
    let (sender, mut seen) = watch::channel(Progress::default());
    let image = format!("{}/app", fake.address).parse().unwrap();
    let watching = tokio::spawn(async move {
        let mut all = Vec::new();
        while seen.changed().await.is_ok() {
            all.push(*seen.borrow_and_update());
        }
        all
    });
    rig.store()
        .ensure(&image, PullPolicy::Always, &Access::default(), &sender)
        .await
        .unwrap();
    drop(sender);
    let all = watching.await.unwrap();
    assert!(all.iter().any(|progress| matches!(progress, Progress::Pulling { done, total } if done <= total && *total > 0)), "{all:?}");
    assert_eq!(all.last(), Some(&Progress::Unpacking), "{all:?}");
}

#[tokio::test]
async fn pins_and_the_budget() {
    let mut rig = Rig::new();
    let mut images = Vec::new();
    for name in ["a", "b", "c"] {
        one_layer(Tar::default().file(name, &[1; 9000])).write_layout(&rig.local(name));
        images.push(rig.ensure(&format!("oci:{name}")).await.unwrap());
    }
    let digests: Vec<_> = images.iter().map(|image| image.digest).collect();
    let size = images[0].size;
    assert_eq!(
        rig.store().collect(0).await.unwrap(),
        [],
        "all are in someone's hands"
    );
    drop(images);
    assert!(rig.store().pin(&digests[0], "sandbox-1"));
    assert!(rig.store().pin(&digests[0], "sandbox-2"));
    rig.store().unpin(&digests[0], "sandbox-2");
    rig.store().unpin(&digests[1], "nobody");
    assert_eq!(rig.store().pins(), [(digests[0], "sandbox-1".to_owned())]);
    assert_eq!(rig.store().collect(3 * size).await.unwrap(), []);
    rig.ensure("oci:b").await.unwrap();
    assert_eq!(
        rig.store().collect(2 * size).await.unwrap(),
        [digests[2]],
        "longest unused and free"
    );
    rig.reopen();
    assert_eq!(rig.store().pins(), [], "the caller pins again");
    assert!(rig.store().pin(&digests[0], "sandbox-1"));
    assert!(
        !rig.store().pin(&digests[2], "sandbox-1"),
        "not here any more"
    );
    assert_eq!(rig.store().collect(0).await.unwrap(), [digests[1]]);
    assert_eq!(rig.files("erofs").await.len(), 2);
    rig.store().unpin(&digests[0], "sandbox-1");
    assert_eq!(rig.store().collect(0).await.unwrap(), [digests[0]]);
    rig.assert_nothing_left().await;
    rig.ensure("oci:a").await.unwrap();
}

#[tokio::test]
async fn what_a_killed_agent_leaves_is_removed() {
    let mut rig = Rig::new();
    one_layer(Tar::default().file("a", b"x")).write_layout(&rig.local("a"));
    let image = rig.ensure("oci:a").await.unwrap();
    let directory = rig.config.directory.clone();
    assert!(matches!(
        ImageStore::open(rig.config.clone()),
        Err(OpenError::InUse(_))
    ));
    fs::create_dir_all(directory.join("tmp/7")).unwrap();
    fs::write(directory.join("tmp/7/layer-0"), b"half").unwrap();
    let stray = format!(
        "{}-v1.erofs",
        image.digest.hex().replace(char::is_numeric, "0")
    );
    fs::write(directory.join("erofs").join(stray), b"no record").unwrap();
    fs::write(directory.join("erofs/garbage.json"), b"{").unwrap();
    fs::write(directory.join("references.json"), b"damaged").unwrap();
    rig.reopen();
    assert_eq!(rig.files("tmp").await, [] as [String; 0]);
    assert_eq!(rig.files("erofs").await.len(), 2);
    let again = rig.ensure("oci:a").await.unwrap();
    assert_eq!((again.digest, &again.config), (image.digest, &image.config));
    let mode = fs::metadata(&directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    // One whose file was cut or taken away is made again.
    fs::remove_file(&again.erofs).unwrap();
    rig.ensure("oci:a").await.unwrap();
    assert!(again.erofs.exists());
}

#[tokio::test]
async fn references_survive_a_restart() {
    let (fake, mut rig) = slow_fake(&[]).await;
    let image = format!("{}/app", fake.address);
    let got = rig.ensure(&image).await.unwrap();
    drop(fake);
    rig.reopen();
    assert_eq!(rig.ensure(&image).await.unwrap().digest, got.digest);
    let error = rig.ensure_by(&image, PullPolicy::Always).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ImagePullFailed);
}

/// A file system of a few megabytes, unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(size: &str) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("cloche-image-disk-")
            .tempdir()
            .unwrap();
        let options = format!("size={size}");
        run(
            "mount",
            &[
                "-t".as_ref(),
                "tmpfs".as_ref(),
                "-o".as_ref(),
                options.as_ref(),
                "cloche-test".as_ref(),
                folder.path().as_os_str(),
            ],
        );
        Self(folder)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run("umount", &["-l".as_ref(), self.0.path().as_os_str()]);
    }
}

#[tokio::test]
async fn a_full_disk_is_told_and_cleaned() {
    // Too small for the blob; for the contents beside the blob; for the EROFS beside both.
    for (size, content) in [("1m", 3 << 20), ("4m", 3 << 20), ("8m", 3 << 20)] {
        let disk = SmallDisk::new(size);
        let rig = Rig::with(|config| config.directory = disk.0.path().join("images"));
        let random: Vec<u8> = (0..content / 32)
            .flat_map(|n: u32| {
                let digest = cloche_agent::image::Digest::of(&n.to_le_bytes());
                digest.hex().into_bytes().into_iter().take(32)
            })
            .collect();
        let large = made(
            &[(Pack::Plain, Tar::default().file("a", &random).done())],
            json!({}),
        );
        let error = rig.take(&large).await.unwrap_err();
        assert!(
            matches!(error, ImageError::NoSpace { .. }),
            "{size}: {error:?}"
        );
        assert_eq!(error.reason(), Reason::ImagePullFailed);
        assert!(
            error
                .to_string()
                .contains("no space left on the node's image disk"),
            "{error}"
        );
        rig.assert_nothing_left().await;
        // What fits goes on working.
        rig.take(&one_layer(Tar::default().file("small", b"x")))
            .await
            .unwrap();
        drop(rig);
    }
}

/// Not a test of its own: a whole store in a process that [`killed_in_the_middle`] kills.
#[tokio::test]
async fn killed_in_the_middle() {
    const ENTRY: &str = "CLOCHE_TEST_STORE";
    if let Ok(at) = std::env::var(ENTRY) {
        let (directory, image) = at.split_once(' ').unwrap();
        let rig = Rig::with(|config| {
            config.directory = directory.into();
            config
                .registries
                .insecure
                .insert(image.split('/').next().unwrap().to_owned());
        });
        rig.ensure(image).await.unwrap();
        return;
    }
    let (fake, mut rig) = slow_fake(&[]).await;
    let image = format!("{}/app", fake.address);
    rig.store = None;
    let mut agent = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::killed_in_the_middle"])
        .env(ENTRY, format!("{} {image}", rig.config.directory.display()))
        // What it makes and cannot remove any more goes away with ours.
        .env("TMPDIR", rig.temp.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while fake.asked("/blobs/") == 0 {
        assert!(start.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert_eq!(
        fs::read_dir(rig.config.directory.join("tmp"))
            .unwrap()
            .count(),
        1,
        "killed while pulling"
    );
    rig.reopen();
    rig.assert_nothing_left().await;
    rig.ensure(&image).await.unwrap();
}
