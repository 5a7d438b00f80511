//! Debian packages that a step needs: installed when missing.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::command::Command;

const LIMIT: Duration = Duration::from_mins(15);

/// What the agent runs on a node.
pub(crate) const NODE: &[&str] = &["erofs-utils"];
/// What the images are made of.
pub(crate) const IMAGES: &[&str] = &["busybox-static", "debootstrap"];
/// What images are pushed to a registry with.
pub(crate) const PUSH: &[&str] = &["curl"];
/// What the images of Cloche's programs are made with, and of.
pub(crate) const PRODUCTS: &[&str] = &["binutils", "ca-certificates"];
/// The registry that the tests pull from.
pub(crate) const REGISTRY: &[&str] = &["docker-registry"];
/// What the rig's control plane is made with, beside its own programs.
pub(crate) const RIG: &[&str] = &["iproute2", "openssl"];
/// What its nodes need beside it.
pub(crate) const CLUSTER: &[&str] = &["curl", "libseccomp-dev", "nftables", "pkg-config"];
/// The machine with cgroup v2.
pub(crate) const MACHINE: &[&str] = &["busybox-static", "cpio", "e2fsprogs", "qemu-system-x86"];

/// Installs those of `packages` that dpkg does not have.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    let known = Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Abbrev} ${Package}\\n"])
        .text()?;
    let missing = missing(&known, packages);
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    if !nix::unistd::Uid::effective().is_root() {
        bail!("install {names}: not root; run this as root, or first: apt-get install {names}");
    }
    eprintln!("xtask: installing {names}");
    update()?;
    let line = format!("apt-get install {names}");
    let status = Command::new("apt-get")
        .args([
            "install",
            "--yes",
            "--quiet=2",
            "--no-install-recommends",
            "--option=Dpkg::Use-Pty=0",
        ])
        .args(&missing)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .limit(LIMIT)
        // Not on stdout, which a shell may be about to evaluate.
        .stream(&mut |bytes| {
            let _shown = std::io::stderr().write_all(bytes);
        })?;
    if !status.success() {
        bail!("{line}: {status}");
    }
    Ok(())
}

/// Asks for the present lists of packages.
pub(crate) fn update() -> Result<()> {
    Command::new("apt-get")
        .args(["update", "--quiet=2"])
        .limit(LIMIT)
        .run()
}

/// Those of `packages` that are not installed, by dpkg's list of states (`ii ` = wanted and installed) and names.
fn missing(known: &str, packages: &[&str]) -> Vec<String> {
    let installed: BTreeSet<&str> = known
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(state, _)| state.get(1..2) == Some("i"))
        .map(|(_, name)| name.trim())
        .collect();
    packages
        .iter()
        .filter(|name| !installed.contains(**name))
        .map(ToString::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wholly_installed_counts() {
        let known = "ii  cpio\nrc  kmod\nhi  e2fsprogs\niU  debootstrap\nun  erofs-utils\n";
        let cases: &[(&[&str], &[&str])] = &[
            (&["cpio"], &[]),
            (&["e2fsprogs"], &[]),
            (&["kmod", "cpio"], &["kmod"]),
            (
                &["debootstrap", "erofs-utils", "busybox-static"],
                &["debootstrap", "erofs-utils", "busybox-static"],
            ),
            (&[], &[]),
        ];
        for (packages, expected) in cases {
            assert_eq!(&missing(known, packages), expected, "{packages:?}");
        }
    }
}
