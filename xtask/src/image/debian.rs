//! The image `python`: a small Debian with its own Python, made by debootstrap.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::layer::Keep;
use super::layout::{Image, Layout};
use super::{PATH, layer};
use crate::artifact::{Digest, Stamp};
use crate::clock::Stopwatch;
use crate::command::Command;
use crate::workspace::Workspace;

const SUITE: &str = "bookworm";
const RECIPE: &str = "1";

/// What a sandbox has no use for: caches, documentation, translations, and the device nodes that an unprivileged unpack of a
/// layer could not make (the runtime brings its own).
const EMPTIED: &[&str] = &[
    "dev",
    "proc",
    "run",
    "sys",
    "tmp",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/cache/debconf",
    "var/lib/apt/lists",
    "var/log",
];

pub(super) fn build(workspace: &Workspace, images: &Path) -> Result<()> {
    let path = images.join("python");
    let digest = Digest::of([("recipe", RECIPE.as_bytes()), ("suite", SUITE.as_bytes())]);
    let stamp = Stamp::new(&workspace.artifacts(), "image-python", digest);
    if stamp.is_fresh(&path) {
        return Ok(());
    }
    if !nix::unistd::Uid::effective().is_root() {
        bail!("make the image python: debootstrap needs root");
    }
    eprintln!("xtask: making the image python from Debian packages (about a minute)");
    let watch = Stopwatch::start();
    let staging = tempfile::Builder::new()
        .prefix("python-")
        .tempdir_in(workspace.artifacts())
        .context("create a directory for debootstrap")?;
    let root = staging.path().join("root");
    let log = Command::new("debootstrap")
        .args(["--variant=minbase", "--include=python3", SUITE])
        .arg(&root)
        .limit(Duration::from_mins(15))
        .output()?;
    if !log.status.success() {
        bail!(
            "debootstrap: {}\n{}",
            log.status,
            String::from_utf8_lossy(&log.stdout)
        );
    }
    Layout::replace(&path)?.write(&Image {
        layer: &|out| layer::write(&root, &keep, out),
        env: &[PATH, "LANG=C.UTF-8"],
        entrypoint: &[],
        command: &["python3"],
    })?;
    eprintln!(
        "xtask: image python made in {} s",
        watch.elapsed().as_secs()
    );
    stamp.write()
}

fn keep(path: &Path) -> Keep {
    if EMPTIED.iter().any(|emptied| path == Path::new(emptied)) {
        Keep::Empty
    } else {
        Keep::Whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_names_are_emptied() {
        assert_eq!(keep(Path::new("usr/share/doc")), Keep::Empty);
        assert_eq!(keep(Path::new("dev")), Keep::Empty);
        for kept in [
            "",
            "usr/share",
            "usr/share/docbook",
            "var/lib/apt",
            "usr/dev",
        ] {
            assert_eq!(keep(Path::new(kept)), Keep::Whole, "{kept}");
        }
    }
}
