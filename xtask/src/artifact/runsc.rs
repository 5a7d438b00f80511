//! `runsc`: gVisor's program, from the Go module that `tools/runsc/go.mod` pins.
//!
//! Two things differ from a plain `go build` of the module: the version string is set (a restore compares it, and equal
//! strings pass, so an unset one protects nothing), and the seccomp programs of the systrap platform are compiled in (the
//! module ships their table empty).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::go;
use super::module::Module;
use super::{Digest, Stamp};
use crate::command::Command;
use crate::workspace::Workspace;

const MODULE: &str = "gvisor.dev/gvisor";
const PACKAGE: &str = "gvisor.dev/gvisor/runsc";
const VERSION_VARIABLE: &str = "gvisor.dev/gvisor/runsc/version.version";
/// The file, in the module, with the table of seccomp programs.
const TABLE: &str = "runsc/boot/filter/filter_precompiled.go";
/// A change of this file's recipe that changes the product.
const RECIPE: &str = "1";

/// Builds it, unless it is there and its inputs are the same.
pub(super) fn build(workspace: &Workspace) -> Result<PathBuf> {
    let tool = workspace.root().join("tools/runsc");
    let path = workspace.artifacts().join("runsc");
    let sources = Sources::read(&tool)?;
    let compiler = go::compiler(&tool)?;
    let stamp = Stamp::new(
        &workspace.artifacts(),
        "runsc",
        sources.digest([("go", compiler.as_bytes())]),
    );
    if stamp.is_fresh(&path) {
        return Ok(path);
    }
    eprintln!("xtask: building runsc (1 to 2 minutes)");
    let staging = tempfile::Builder::new()
        .prefix("runsc-")
        .tempdir_in(workspace.artifacts())
        .context("create a directory to build runsc in")?;
    let module = Module::download(&tool, MODULE)?;
    let version = version(&module.version, &sources.digest([]));
    let built = compile(&tool, &module, &version, staging.path())?;
    let told = Command::new(&built).arg("--version").text()?;
    if told.lines().next() != Some(&format!("runsc version {version}")) {
        bail!("{}: says {told:?}, not {version}", built.display());
    }
    std::fs::rename(&built, &path).with_context(|| format!("write {}", path.display()))?;
    stamp.write()?;
    Ok(path)
}

/// The files that decide the product.
struct Sources {
    files: Vec<(&'static str, Vec<u8>)>,
}

impl Sources {
    fn read(tool: &Path) -> Result<Self> {
        let files = ["go.mod", "go.sum", "precompile/main.go"]
            .into_iter()
            .map(|name| {
                let path = tool.join(name);
                let content =
                    std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
                Ok((name, content))
            })
            .collect::<Result<_>>()?;
        Ok(Self { files })
    }

    fn digest<'a>(&'a self, more: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Digest {
        Digest::of(
            [("recipe", RECIPE.as_bytes())]
                .into_iter()
                .chain(self.files.iter().map(|(name, data)| (*name, &**data)))
                .chain(more),
        )
    }
}

/// The date and commit of the module's pseudo-version, and which of our builds of it.
fn version(module: &str, sources: &Digest) -> String {
    let upstream = module.rsplit_once("-0.").map_or_else(
        || module.trim_start_matches("v0.0.0-"),
        |(_, commit)| commit,
    );
    let build: String = sources.as_str().chars().take(8).collect();
    format!("{upstream}-cloche-{build}")
}

fn compile(tool: &Path, module: &Module, version: &str, staging: &Path) -> Result<PathBuf> {
    let copy = module.copy(tool, staging)?;
    let table = copy.file(TABLE);
    let filled = copy
        .go("run")
        .arg("./precompile")
        .arg(&table)
        .text()
        .context("generate the seccomp programs")?;
    std::fs::write(&table, filled).with_context(|| format!("write {}", table.display()))?;

    let built = staging.join("runsc");
    copy.go("build")
        .arg("-ldflags")
        .arg(format!("-s -w -X {VERSION_VARIABLE}={version}"))
        .arg("-o")
        .args([built.as_os_str(), PACKAGE.as_ref()])
        .run()?;
    Ok(built)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_names_the_commit_and_the_build() {
        let sources = Digest::of([("x", b"y".as_slice())]);
        let build = &sources.as_str()[..8];
        for module in [
            "v0.0.0-20260905035102-160fafc42237",
            "v1.2.4-0.20260905035102-160fafc42237",
        ] {
            assert_eq!(
                version(module, &sources),
                format!("20260905035102-160fafc42237-cloche-{build}")
            );
        }
    }
}
