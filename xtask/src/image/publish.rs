//! `cargo xtask images`: the images of a cluster as OCI layouts, and in a registry.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::layout::{Layout, MANIFEST, Manifest};
use super::product::{PRODUCTS, Product};
use crate::artifact::{self, Artifacts};
use crate::command::Command;
use crate::lane::FEATURES;
use crate::package;
use crate::workspace::{Profile, Workspace};

/// The packages of the release build: always the same, so that what they depend on is built once. Of cloche-bench nothing is in an image.
const RELEASED: [&str; 5] = [
    "cloche-agent",
    "cloche-bench",
    "cloche-cli",
    "cloche-gateway",
    "cloche-operator",
];

#[derive(Args)]
pub(crate) struct Options {
    /// Also pushes them to this registry, over plain HTTP.
    #[arg(long, value_name = "HOST:PORT")]
    push: Option<String>,
}

/// An image, and what a registry calls it.
pub(crate) struct Named {
    /// `library/python`.
    repository: String,
    tag: &'static str,
    layout: PathBuf,
}

/// Makes them, and says where they are.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let mut images = stand_ins(workspace)?;
    images.extend(own(workspace, Profile::Release)?);
    print!("{}", list(&images)?);
    match &options.push {
        Some(registry) => push(&images, registry),
        None => Ok(()),
    }
}

/// The same for tests, which push them to a registry of their own: a file with a line for each. Cargo has built the programs.
pub(crate) fn for_tests(workspace: &Workspace, artifacts: &Artifacts) -> Result<PathBuf> {
    package::install(package::PRODUCTS)?;
    let mut images = stand_ins(workspace)?;
    images.extend(products(workspace, Profile::Debug, artifacts)?);
    let file = folder(workspace)?.join("pushed");
    std::fs::write(&file, list(&images)?).with_context(|| format!("write {}", file.display()))?;
    Ok(file)
}

/// Lines of `REPOSITORY:TAG DIGEST LAYOUT`.
fn list(images: &[Named]) -> Result<String> {
    let line = |image: &Named| {
        let Manifest { digest, .. } = Manifest::read(&image.layout)?;
        let Named {
            repository,
            tag,
            layout,
        } = image;
        Ok(format!(
            "{repository}:{tag} {digest} {}\n",
            layout.display()
        ))
    };
    images.iter().map(line).collect()
}

/// Pushes images to the registry at `HOST:PORT`.
pub(crate) fn push(images: &[Named], registry: &str) -> Result<()> {
    for image in images {
        image
            .push(registry)
            .with_context(|| format!("push {}:{} to {registry}", image.repository, image.tag))?;
    }
    Ok(())
}

/// Where layouts are that are no local images of an agent.
fn folder(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.artifacts().join("registry");
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}

/// Images from Debian packages, by the names of those that they stand for.
pub(crate) fn stand_ins(workspace: &Workspace) -> Result<Vec<Named>> {
    package::install(package::IMAGES)?;
    package::install(package::PUSH)?;
    let images = super::build(workspace)?;
    let folder = folder(workspace)?;
    let derived = |name: &str, from: &Path, command: &[&str]| {
        let path = folder.join(name);
        Layout::replace(&path)?.derive(from, command)?;
        anyhow::Ok(path)
    };
    let python = images.join("python");
    let busybox = images.join("busybox");
    // The same files: a second Debian would take a minute to make, and nobody misses that it has no Python.
    let debian = derived("debian", &python, &["bash"])?;
    // What holds the namespaces of a pod has nothing to do but to stay.
    let pause = derived("pause", &busybox, &["sleep", "infinity"])?;
    let named = [
        ("library/python", "3.11-slim", python),
        ("library/debian", "12", debian),
        ("library/busybox", "latest", busybox),
        ("rig/pause", "1", pause),
    ];
    Ok(named
        .into_iter()
        .map(|(repository, tag, layout)| Named {
            repository: repository.to_owned(),
            tag,
            layout,
        })
        .collect())
}

/// Those of Cloche's own programs.
pub(crate) fn own(workspace: &Workspace, profile: Profile) -> Result<Vec<Named>> {
    for packages in [package::NODE, package::IMAGES, package::PRODUCTS] {
        package::install(packages)?;
    }
    let artifacts = artifact::build(workspace)?;
    build_programs(workspace, profile)?;
    products(workspace, profile, &artifacts)
}

fn products(workspace: &Workspace, profile: Profile, artifacts: &Artifacts) -> Result<Vec<Named>> {
    let folder = folder(workspace)?;
    let named = |product: &Product| {
        anyhow::Ok(Named {
            repository: format!("cloche/{}", product.name),
            tag: env!("CARGO_PKG_VERSION"),
            layout: product.build(workspace, profile, artifacts, &folder)?,
        })
    };
    PRODUCTS.iter().map(named).collect()
}

/// Cloche's own programs.
pub(crate) fn build_programs(workspace: &Workspace, profile: Profile) -> Result<()> {
    eprintln!("xtask: building what is missing of Cloche's programs (some minutes the first time)");
    let cargo = Command::cargo().args(["build", "--quiet", "--bins"]);
    match profile {
        Profile::Debug => cargo.args(["--workspace", FEATURES]),
        // Not the whole workspace: cloche-init is built in its own way.
        Profile::Release => cargo
            .arg("--release")
            .args(RELEASED.map(|name| format!("--package={name}"))),
    }
    .directory(workspace.root())
    .limit(std::time::Duration::from_hours(1))
    .run()
}

impl Named {
    /// By the distribution specification: each blob that is not there in one piece, then the manifest under the tag.
    fn push(&self, registry: &str) -> Result<()> {
        let manifest = Manifest::read(&self.layout)?;
        let base = format!("http://{registry}/v2/{}", self.repository);
        for file in manifest.layers().iter().chain([&manifest.config()]) {
            push_blob(&base, file)?;
        }
        let url = format!("{base}/manifests/{}", self.tag);
        let file = tempfile::NamedTempFile::new().context("make a file for a manifest")?;
        std::fs::write(file.path(), &manifest.bytes).context("write a manifest")?;
        upload(&url, file.path(), MANIFEST)
    }
}

fn push_blob(base: &str, file: &Path) -> Result<()> {
    let hex = file.file_name().context("a blob without a name")?;
    let digest = format!("sha256:{}", hex.to_string_lossy());
    let known = curl("%{http_code}")
        .args(["--head", "--output", "/dev/null"])
        .arg(format!("{base}/blobs/{digest}"))
        .text()?;
    if known == "200" {
        return Ok(());
    }
    let location = curl("%header{location}")
        .args(["--fail", "--output", "/dev/null", "--request", "POST"])
        .arg(format!("{base}/blobs/uploads/"))
        .text()?;
    if location.is_empty() {
        bail!("{base}/blobs/uploads/: the registry named no place to upload to");
    }
    let sign = if location.contains('?') { '&' } else { '?' };
    let url = format!("{location}{sign}digest={digest}");
    upload(&url, file, "application/octet-stream")
}

fn upload(url: &str, file: &Path, kind: &str) -> Result<()> {
    curl("")
        .args(["--fail-with-body", "--header"])
        .arg(format!("content-type: {kind}"))
        .arg("--upload-file")
        .args([file.as_os_str(), url.as_ref()])
        .text()
        .map(drop)
}

/// curl that says nothing but errors and `told`. Not through a proxy: the registry is a neighbour.
fn curl(told: &str) -> Command {
    Command::new("curl")
        .args(["--silent", "--show-error", "--noproxy", "*"])
        .args(["--max-time", "300", "--write-out", told])
}
