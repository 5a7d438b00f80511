//! `cloche-init`: static and small, because it runs inside images that may hold nothing else.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::elf;
use crate::command::Command;
use crate::workspace::Workspace;

/// Builds it, in a target directory of its own: the flags would otherwise touch every other crate.
pub(super) fn build(workspace: &Workspace) -> Result<PathBuf> {
    let target = workspace.target().join("guest");
    Command::cargo()
        .args(["rustc", "--quiet", "--package", "cloche-init"])
        .args(["--bin", "cloche-init", "--profile", "guest"])
        .arg("--target-dir")
        .arg(&target)
        .args(["--", "-C", "target-feature=+crt-static"])
        .args(["-C", "relocation-model=static"])
        .directory(workspace.root())
        .limit(Duration::from_mins(15))
        .run()?;
    let built = target.join("guest/cloche-init");
    let program = std::fs::read(&built).with_context(|| format!("read {}", built.display()))?;
    if elf::is_static(&program) != Some(true) {
        bail!("{}: is not a static program", built.display());
    }
    let path = workspace.artifacts().join("cloche-init");
    if std::fs::read(&path).is_ok_and(|present| present == program) {
        return Ok(path);
    }
    // Renamed, so that an agent that runs it now keeps the old one.
    let fresh = path.with_extension("new");
    std::fs::copy(&built, &fresh).with_context(|| format!("write {}", fresh.display()))?;
    std::fs::rename(&fresh, &path).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}
