//! The library itself: images that others can read, a registry that serves them, an audit that finds what is left.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;

use cloche_e2e::audit::{Leak, Ledger, World, judge_stopped, world};
use cloche_e2e::image::{Config, Entry, Image, Layer, Packing, busybox};
use cloche_e2e::registry::Registry;
use cloche_e2e::{Agent, Options};
use oci_client::Reference;
use oci_client::client::{Client, ClientConfig, ClientProtocol};
use oci_client::secrets::RegistryAuth;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

fn hex(data: &[u8]) -> String {
    Sha256::digest(data)
        .iter()
        .fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
}

fn blob(layout: &Path, descriptor: &Value) -> Vec<u8> {
    let digest = descriptor["digest"]
        .as_str()
        .unwrap()
        .strip_prefix("sha256:")
        .unwrap();
    let data = std::fs::read(layout.join("blobs/sha256").join(digest)).unwrap();
    let found = hex(&data);
    assert_eq!(found, digest);
    assert_eq!(descriptor["size"], data.len());
    data
}

#[test]
fn a_layout_is_whole_and_its_digests_are_right() {
    let folder = tempfile::tempdir().unwrap();
    for packing in [Packing::Gzip, Packing::Plain] {
        let layout = folder.path().join(format!("{packing:?}"));
        let tree = folder.path().join(format!("tree-{packing:?}"));
        std::fs::create_dir_all(tree.join("sub")).unwrap();
        std::fs::write(tree.join("sub/file"), "content").unwrap();
        std::os::unix::fs::symlink("/nowhere", tree.join("link")).unwrap();
        let layers = vec![
            Layer::default().add_tree("", &tree).unwrap(),
            Layer::default()
                .add("a", Entry::File(b"b".to_vec()))
                .unwrap(),
        ];
        let config = Config {
            cmd: vec!["/a".to_owned()],
            ..Config::default()
        };
        let image = Image::packed(layers, &config, packing).unwrap();
        image.write(&layout, "one").unwrap();

        let index: Value =
            serde_json::from_slice(&std::fs::read(layout.join("index.json")).unwrap()).unwrap();
        let entry = &index["manifests"][0];
        assert_eq!(entry["digest"], image.digest());
        assert_eq!(
            entry["annotations"]["org.opencontainers.image.ref.name"],
            "one"
        );
        let manifest: Value = serde_json::from_slice(&blob(&layout, entry)).unwrap();
        let config: Value = serde_json::from_slice(&blob(&layout, &manifest["config"])).unwrap();
        assert_eq!(config["config"]["Cmd"][0], "/a");
        for (layer, diff_id) in manifest["layers"]
            .as_array()
            .unwrap()
            .iter()
            .zip(config["rootfs"]["diff_ids"].as_array().unwrap())
        {
            let mut tar = blob(&layout, layer);
            if packing == Packing::Gzip {
                let mut plain = Vec::new();
                flate2::read::GzDecoder::new(&tar[..])
                    .read_to_end(&mut plain)
                    .unwrap();
                tar = plain;
            }
            let found = hex(&tar);
            assert_eq!(diff_id.as_str().unwrap(), format!("sha256:{found}"));
        }
    }
}

#[test]
fn a_hostile_layer_holds_what_it_was_given() {
    let tar = Layer::default()
        .add("../escape", Entry::File(b"x".to_vec()))
        .unwrap()
        .add("/absolute", Entry::Link("/etc/passwd".to_owned()))
        .unwrap()
        .add("hard", Entry::Hard("../../etc/shadow".to_owned()))
        .unwrap()
        .add("dev", Entry::Block(8, 0))
        .unwrap()
        .add("", Entry::Pipe)
        .unwrap()
        .into_tar()
        .unwrap();
    let mut archive = tar::Archive::new(&tar[..]);
    let found: Vec<(String, String)> = archive
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let link = entry.link_name_bytes().unwrap_or_default().into_owned();
            (
                String::from_utf8(entry.path_bytes().into_owned()).unwrap(),
                String::from_utf8(link).unwrap(),
            )
        })
        .collect();
    let wanted = [
        ("../escape", ""),
        ("/absolute", "/etc/passwd"),
        ("hard", "../../etc/shadow"),
        ("dev", ""),
        ("", ""),
    ];
    assert_eq!(
        found,
        wanted.map(|(path, link)| (path.to_owned(), link.to_owned()))
    );
    assert!(
        Layer::default()
            .add(&"x".repeat(101), Entry::Folder)
            .is_err()
    );
}

#[tokio::test]
async fn a_registry_serves_what_was_pushed_and_ends() {
    let registry = Registry::start().await.unwrap();
    let image = busybox().unwrap();
    let text = registry.push(&image, "test/busybox", "one").await.unwrap();
    let reference: Reference = text.parse().unwrap();
    let client = Client::new(ClientConfig {
        protocol: ClientProtocol::Http,
        ..ClientConfig::default()
    });
    let (manifest, digest) = client
        .pull_image_manifest(&reference, &RegistryAuth::Anonymous)
        .await
        .unwrap();
    assert_eq!(digest, image.digest());
    let mut layer = Vec::new();
    client
        .pull_blob(&reference, &manifest.layers[0], &mut layer)
        .await
        .unwrap();
    assert!(layer == image.layers[0].data);
    assert!(std::fs::read(registry.blob(&image.layers[0].digest).unwrap()).unwrap() == layer);

    let (address, data) = (registry.address().to_owned(), registry.data());
    drop(registry);
    assert!(!data.exists());
    // SIGKILL is sent; the kernel closes the port when it has taken effect.
    cloche_e2e::deadline::until(
        std::time::Duration::from_secs(10),
        "the port is closed",
        async || {
            Ok(tokio::net::TcpStream::connect(&address)
                .await
                .is_err()
                .then_some(()))
        },
    )
    .await
    .unwrap();
}

/// Puts `pid` into a new group of every hierarchy.
fn put(agent: &Agent, name: &str, pid: u32) -> usize {
    let hierarchies = world::hierarchies().unwrap();
    let mut joined = 0;
    for hierarchy in &hierarchies {
        let group = hierarchy.join(agent.group()).join(name);
        std::fs::create_dir_all(&group).unwrap();
        // A v1 cpuset group takes nobody before it has CPUs; being in most is enough here.
        joined += usize::from(std::fs::write(group.join("cgroup.procs"), pid.to_string()).is_ok());
    }
    assert!(joined > 0, "no hierarchy took the process");
    hierarchies.len()
}

#[tokio::test]
async fn the_audit_finds_what_is_left_and_take_down_removes_it() {
    let agent = Agent::new(Options::default()).unwrap();
    assert_eq!(
        judge_stopped(
            &World::see(&agent).unwrap(),
            &Ledger::read(&agent.state()).unwrap()
        ),
        []
    );

    let mut child = sleep();
    let count = put(&agent, "i-1", child.id());
    let run = agent.run().join("i/i-1");
    std::fs::create_dir_all(&run).unwrap();
    let mount = agent.scratch().join("mnt");
    std::fs::create_dir(&mount).unwrap();
    nix::mount::mount(
        Some("none"),
        &mount,
        Some("tmpfs"),
        nix::mount::MsFlags::empty(),
        None::<&str>,
    )
    .unwrap();
    let record = agent.state().join("sandboxes/s-1");
    std::fs::create_dir_all(&record).unwrap();
    std::fs::write(record.join("record.json"), "{}").unwrap();
    std::fs::write(agent.manifests().join("demo.yaml"), "").unwrap();
    std::fs::write(agent.manifests().join("demo.status.yaml"), "").unwrap();

    let leaks = judge_stopped(
        &World::see(&agent).unwrap(),
        &Ledger::read(&agent.state()).unwrap(),
    );
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for leak in &leaks {
        *kinds
            .entry(match leak {
                Leak::Process(process) if process.pid == i32::try_from(child.id()).unwrap() => {
                    "process"
                }
                Leak::Mount(line) if line.contains("tmpfs") => "mount",
                Leak::Group(name, at) if name == "i-1" && *at == count => "group",
                Leak::File("run/i", name) if name == "i-1" => "run",
                Leak::File("state/sandboxes", name) if name == "s-1" => "folder",
                Leak::Record("sandbox", id) if id == "s-1" => "record",
                Leak::File("manifests", name) if name == "demo.status.yaml" => "status",
                other => panic!("unexpected: {other}"),
            })
            .or_default() += 1;
    }
    assert_eq!(kinds.len(), 7, "{leaks:?}");
    assert!(kinds.values().all(|count| *count == 1), "{leaks:?}");

    let (group, folder, run) = (
        agent.group().to_owned(),
        agent.scratch().to_owned(),
        agent.run().to_owned(),
    );
    // Ours to reap, as an agent's orphans are init's.
    let reaper = std::thread::spawn(move || child.wait().unwrap());
    agent.take_down().await.unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&reaper.join().unwrap()),
        Some(9)
    );
    assert!(!folder.exists() && !run.exists());
    assert!(
        world::hierarchies()
            .unwrap()
            .iter()
            .all(|hierarchy| !hierarchy.join(&group).exists())
    );
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(folder.to_str().unwrap()));
}

#[allow(
    clippy::disallowed_methods,
    reason = "stands for a process that somebody forgot"
)]
fn sleep() -> std::process::Child {
    std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap()
}
