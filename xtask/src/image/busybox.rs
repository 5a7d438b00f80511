//! The image `busybox`: one static program and its names.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use anyhow::{Context, Result};

use super::layout::{Image, Layout};
use super::{PATH, layer};
use crate::artifact::{Digest, Stamp};
use crate::command::Command;
use crate::workspace::Workspace;

const PROGRAM: &str = "/bin/busybox";
const RECIPE: &str = "1";

pub(super) fn build(workspace: &Workspace, images: &Path) -> Result<()> {
    let path = images.join("busybox");
    let program = std::fs::read(PROGRAM).with_context(|| format!("read {PROGRAM}"))?;
    let digest = Digest::of([("recipe", RECIPE.as_bytes()), ("busybox", &program)]);
    let stamp = Stamp::new(&workspace.artifacts(), "image-busybox", digest);
    if stamp.is_fresh(&path) {
        return Ok(());
    }
    let staging = tempfile::Builder::new()
        .prefix("busybox-")
        .tempdir_in(workspace.artifacts())
        .context("create a directory for busybox")?;
    let root = staging.path();
    std::fs::set_permissions(root, Permissions::from_mode(0o755))?;
    for directory in ["bin", "etc", "root", "tmp"] {
        std::fs::create_dir(root.join(directory))?;
    }
    std::fs::set_permissions(root.join("tmp"), Permissions::from_mode(0o1777))?;
    std::fs::set_permissions(root.join("root"), Permissions::from_mode(0o700))?;
    std::fs::copy(PROGRAM, root.join("bin/busybox"))?;
    for name in Command::new(PROGRAM).arg("--list").text()?.lines() {
        if name != "busybox" {
            symlink("busybox", root.join("bin").join(name))?;
        }
    }
    std::fs::write(
        root.join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    )?;
    std::fs::write(root.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n")?;
    Layout::replace(&path)?.write(&Image {
        layer: &|out| layer::write(root, &|_| layer::Keep::Whole, out),
        env: &[PATH],
        entrypoint: &[],
        command: &["/bin/sh"],
    })?;
    stamp.write()
}
