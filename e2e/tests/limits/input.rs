//! Bad input: each is told by name and with what to do, and nothing of it is left.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::Reason;
use cloche_e2e::deadline::until;
use cloche_e2e::image::{Config, Entry, Image, Layer, busybox, busybox_layer};
use cloche_e2e::registry::Registry;
use cloche_e2e::{Agent, Options, trial};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tonic::Code;

use crate::scene::{self, BUSYBOX, LIMIT, add, images, manifest, options, output};
use crate::verdict::Verdict;

/// Flips a bit in the middle.
fn spoil(data: &mut [u8]) {
    let middle = data.len() / 2;
    data[middle] ^= 1;
}

/// An image of busybox and one more entry.
fn with(path: &str, entry: Entry) -> Result<Image> {
    let layer = Layer::default().add(path, entry)?;
    Image::new(vec![busybox_layer()?, layer], &Config::default())
}

fn file() -> Entry {
    Entry::File(b"planted".to_vec())
}

#[tokio::test]
async fn a_bad_image_is_told_and_nothing_of_it_is_left() {
    let folder = images().unwrap();
    let registry = Registry::start().await.unwrap();
    let dead = dead_address().await.unwrap();
    let options = Options {
        insecure_registries: vec![registry.address().to_owned(), dead.clone()],
        ..options(&folder)
    };
    trial::run(options, async |agent| {
        let outside = agent.scratch().join("outside");
        std::fs::create_dir(&outside).context("make a folder")?;
        let mut cases = hostile(folder.path(), &outside)?;
        cases.extend(local(folder.path())?);
        cases.extend(remote(&registry, &dead).await?);
        let mut client = agent.client().await?;
        for (name, image, _) in &cases {
            client.apply(&manifest(name, image, json!({}))).await?;
        }
        for (name, _, verdict) in &cases {
            verdict.wait(agent, name).await?;
        }
        let left: Vec<_> = std::fs::read_dir(&outside).context("list it")?.collect();
        ensure!(left.is_empty(), "written outside: {left:?}");

        // Links are the guest's own affair, and devices are left out.
        let linked = Layer::default()
            .add("link", Entry::Link("/etc/passwd".to_owned()))?
            .add("disk", Entry::Block(8, 0))?
            .add("etc/hostname", Entry::Link("/bin/sh".to_owned()))?;
        let linked = Image::new(vec![busybox_layer()?, linked], &Config::default())?;
        let linked = add(folder.path(), "linked", &linked)?;
        client
            .apply(&manifest("linked", &linked, json!({})))
            .await?;
        agent.wait_running("linked", LIMIT).await?;
        let passwd = output(agent, "linked", "/bin/head -n 1 /link").await?;
        ensure!(passwd == "root:x:0:0:root:/root:/bin/sh", "{passwd}");
        let disk = output(
            agent,
            "linked",
            "/bin/ls / | /bin/grep -c disk || /bin/true",
        )
        .await?;
        ensure!(disk == "0", "{disk}");
        Ok(())
    })
    .await
    .unwrap();
}

type Case = (String, String, Verdict);

/// Layers that want to write where they must not.
fn hostile(images: &Path, outside: &Path) -> Result<Vec<Case>> {
    let target = outside.display().to_string();
    let through = Layer::default()
        .add("out", Entry::Link(target))?
        .add("out/planted", file())?;
    let through = Image::new(vec![busybox_layer()?, through], &Config::default())?;
    let garbage = Layer::default().add_raw(&[0xff; 1024])?;
    let garbage = Image::new(vec![busybox_layer()?, garbage], &Config::default())?;
    let up = "../../../../../../../../../../planted";
    let mut cases = Vec::new();
    for (name, image, says) in [
        ("up", with(up, file())?, &["`..`", "../planted"][..]),
        ("up-inside", with("etc/../x", file())?, &["etc/../x"]),
        (
            "hard-up",
            with("hard", Entry::Hard("../../etc/shadow".to_owned()))?,
            &["../../etc/shadow"],
        ),
        (
            "hard-absent",
            with("hard", Entry::Hard("/absent".to_owned()))?,
            &["absent"],
        ),
        ("through-a-link", through, &["/out"]),
        ("own-file", with(".cloche", file())?, &["/.cloche"]),
        ("below-own", with(".cloche/init", file())?, &["/.cloche"]),
        (
            "own-link",
            with(".cloche", Entry::Link("/tmp".to_owned()))?,
            &["/.cloche"],
        ),
        ("proc-file", with("proc", file())?, &["/proc"]),
        ("garbage", garbage, &[]),
    ] {
        let reference = add(images, name, &image)?;
        let verdict = Verdict::new(Reason::ImageInvalid)
            .never_ran()
            .says(&reference)
            .says("built anew");
        let verdict = says
            .iter()
            .fold(verdict, |verdict, words| verdict.says(words));
        cases.push((name.to_owned(), reference, verdict));
    }
    Ok(cases)
}

/// Local images that are not there, or not whole.
fn local(images: &Path) -> Result<Vec<Case>> {
    let mut spoilt = busybox()?;
    spoil(&mut spoilt.layers[0].data);
    let reference = add(images, "spoilt", &spoilt)?;
    let broken = Verdict::new(Reason::ImagePullFailed)
        .never_ran()
        .says(&reference)
        .says(&spoilt.layers[0].digest);
    let absent = Verdict::new(Reason::ImageNotFound).never_ran();
    let mut cases = vec![("spoilt".to_owned(), reference, broken)];
    for (name, reference) in [
        ("no-layout", "oci:absent:latest"),
        ("no-tag", "oci:busybox:absent"),
    ] {
        cases.push((
            name.to_owned(),
            reference.to_owned(),
            absent.clone().says(reference).says("check its name"),
        ));
    }
    Ok(cases)
}

/// The same in a registry, and one that is not there.
async fn remote(registry: &Registry, dead: &str) -> Result<Vec<Case>> {
    let image = busybox()?;
    let layer = &image.layers[0].digest;
    registry.push(&image, "there", "one").await?;
    let path = registry.blob(layer)?;
    let mut data = std::fs::read(&path).context("read a blob")?;
    spoil(&mut data);
    std::fs::write(&path, data).context("spoil a blob")?;
    let partial = Image::new(vec![Layer::default().add("x", file())?], &Config::default())?;
    registry.push(&partial, "partial", "one").await?;
    std::fs::remove_file(registry.blob(&partial.layers[0].digest)?).context("remove a blob")?;

    let address = registry.address();
    let failed = Verdict::new(Reason::ImagePullFailed).never_ran();
    let absent = Verdict::new(Reason::ImageNotFound)
        .never_ran()
        .says("check its name");
    Ok([
        (
            "remote-spoilt",
            format!("{address}/there:one"),
            failed.clone().says(layer),
        ),
        (
            "remote-partial",
            format!("{address}/partial:one"),
            failed.clone().says("missing"),
        ),
        ("remote-tag", format!("{address}/there:two"), absent.clone()),
        ("remote-name", format!("{address}/absent:one"), absent),
        (
            "remote-dead",
            format!("{dead}/x:one"),
            failed.says("way from this node"),
        ),
    ]
    .into_iter()
    .map(|(name, reference, verdict)| {
        let verdict = verdict.says(&reference);
        (name.to_owned(), reference, verdict)
    })
    .collect())
}

/// An address where nobody listens.
async fn dead_address() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .context("choose a port")?;
    Ok(listener.local_addr().context("its port")?.to_string())
}

#[tokio::test]
async fn a_full_disk_fails_the_pull_and_is_clean_again() {
    let folder = images().unwrap();
    let mut state = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        // xorshift64: bytes that do not compress.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .flatten()
    .take(24 << 20)
    .collect();
    let large = with("noise", Entry::File(noise)).unwrap();
    let large = add(folder.path(), "large", &large).unwrap();
    trial::run(options(&folder), async |agent| {
        let disk = agent.state().join("images");
        agent.stop().await?;
        // Room for the layers, and not for the file system made of them.
        mount(
            Some("none"),
            &disk,
            Some("tmpfs"),
            MsFlags::empty(),
            Some("size=40m"),
        )
        .context("mount a small disk")?;
        agent.restart().await?;
        let mut client = agent.client().await?;
        client.apply(&manifest("large", &large, json!({}))).await?;
        Verdict::new(Reason::ImagePullFailed)
            .never_ran()
            .says(&large)
            .says("no space left")
            .wait(agent, "large")
            .await?;
        until(LIMIT, "the disk is as empty as before", async || {
            let used = nix::sys::statvfs::statvfs(&disk).context("look at the disk")?;
            Ok((used.blocks() - used.blocks_free() < used.blocks() / 8).then_some(()))
        })
        .await?;
        scene::run(agent, "small", json!({})).await?;
        for name in ["large", "small"] {
            client.delete(name).await?;
            agent.wait_gone(name, LIMIT).await?;
        }
        agent.stop().await?;
        umount2(&disk, MntFlags::empty()).context("unmount the small disk")?;
        agent.restart().await
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_bad_manifest_is_told_by_every_way_in() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        let good = |name: &str| manifest(name, BUSYBOX, json!({}));
        let spec = |spec: Value| manifest("bad", BUSYBOX, spec);
        let limits = |memory: &str| spec(json!({"resources": {"limits": {"memory": memory}}}));
        let cases = [
            ("not-yaml", "spec: {image: [".to_owned(), "not YAML"),
            ("binary", "\u{1}\u{2}\u{0}".to_owned(), ""),
            ("empty", String::new(), "the file is empty"),
            (
                "kind",
                good("bad").replace("\"Sandbox\"", "\"Pod\""),
                "kind",
            ),
            ("name", good("Bad_Name"), "metadata.name"),
            ("little", limits("31Mi"), "spec.resources.limits.memory"),
            ("quantity", limits("lots"), "spec.resources.limits.memory"),
            ("negative", limits("-1Gi"), "spec.resources.limits.memory"),
            (
                "unknown",
                spec(json!({"egres": {}})),
                "spec.egres: unknown field",
            ),
            (
                "zero",
                spec(json!({"lifecycle": {"ttlSeconds": 0}})),
                "spec.lifecycle.ttlSeconds",
            ),
            (
                "relative",
                spec(json!({"workingDir": "work"})),
                "spec.workingDir",
            ),
            (
                "more-than-limit",
                spec(json!({"resources": {"requests": {"memory": "1Gi"}}})),
                "spec.resources.requests.memory",
            ),
            ("image", manifest("bad", "Upper", json!({})), "spec.image"),
        ];
        let mut client = agent.client().await?;
        for (name, text, says) in &cases {
            let refused = client.try_apply(text).await.err();
            let refused = refused.with_context(|| format!("{name} was taken"))?;
            ensure!(
                refused.code() == Code::InvalidArgument && refused.message().contains(says),
                "{name}: {refused:?}"
            );
            let path = agent.manifests().join(format!("{name}.yaml"));
            std::fs::write(&path, text).context("write a manifest")?;
        }
        for (name, _, says) in &cases {
            told(agent, name, says).await?;
        }
        ensure!(client.list().await?.is_empty());

        let run = ["run", "--image", "Upper", "x", "--", "true"];
        let run = agent.kubectl(&run).await?;
        let errors = String::from_utf8_lossy(&run.stderr).into_owned();
        ensure!(
            run.status.code() == Some(125) && errors.contains("Upper"),
            "{run:?}"
        );

        // One that is made good is run; the others go, and their status with them.
        let path = agent.manifests().join("zero.yaml");
        std::fs::write(&path, good("zero")).context("write a manifest")?;
        agent.wait_running("zero", LIMIT).await?;
        for (name, ..) in cases.iter().filter(|(name, ..)| *name != "zero") {
            let path = agent.manifests().join(format!("{name}.yaml"));
            std::fs::remove_file(path).context("remove a manifest")?;
        }
        let left = || -> Result<Vec<String>> {
            let entries = std::fs::read_dir(agent.manifests()).context("list manifests")?;
            let names = entries.flatten().map(|entry| entry.file_name());
            let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
            names.sort();
            Ok(names)
        };
        until(LIMIT, "only one and its status are left", async || {
            Ok((left()? == ["zero.status.yaml", "zero.yaml"]).then_some(()))
        })
        .await
        .with_context(|| format!("left: {:?}", left()))
    })
    .await
    .unwrap();
}

/// Waits until the file beside a manifest tells why it is not taken.
async fn told(agent: &Agent, name: &str, says: &str) -> Result<()> {
    let path = agent.manifests().join(format!("{name}.status.yaml"));
    let mut last = String::new();
    until(LIMIT, "it is told", async || {
        last = std::fs::read_to_string(&path).unwrap_or_default();
        let file: Value = serde_saphyr::from_str(&last).unwrap_or_default();
        let condition = &file["status"]["conditions"][0];
        let message = condition["message"].as_str().unwrap_or_default();
        let is_told = condition["type"] == "Accepted"
            && condition["status"] == "False"
            && condition["reason"] == "Invalid"
            && message.contains(&format!("{name}.yaml"))
            && message.contains(says);
        Ok(is_told.then_some(()))
    })
    .await
    .with_context(|| format!("{name}: {last:?} does not say {says:?}"))
}
