//! `cargo xtask generate`: files made from other files, committed, and compared by `cargo xtask test`.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;

const PROTO_SOURCES: &str = "proto/proto";
const PROTO_FILE: &str = "cloche/agent/v1alpha1/agent.proto";
const PROTO_OUTPUT: &str = "proto/src/generated";

/// Writes all generated files.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    let out = workspace.root().join(PROTO_OUTPUT);
    std::fs::create_dir_all(&out).with_context(|| format!("create {}", out.display()))?;
    proto(workspace.root(), &out)
}

/// An error that names the files which generating again would change.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let fresh = tempfile::tempdir().context("create a directory for generated files")?;
    proto(workspace.root(), fresh.path())?;
    let changed = differences(&workspace.root().join(PROTO_OUTPUT), fresh.path())?;
    if changed.is_empty() {
        return Ok(());
    }
    bail!(
        "{PROTO_OUTPUT}: {} out of date: run cargo xtask generate and commit",
        changed.join(", ")
    )
}

/// The gRPC code of the agent's API.
fn proto(root: &Path, out: &Path) -> Result<()> {
    let include = root.join(PROTO_SOURCES);
    let files = protox::compile([include.join(PROTO_FILE)], [&include])
        .with_context(|| format!("compile {PROTO_FILE}"))?;
    tonic_prost_build::configure()
        .out_dir(out)
        .compile_fds(files)
        .with_context(|| format!("generate gRPC code in {}", out.display()))
}

/// The names of files that differ, or are in one of two directories alone.
fn differences(left: &Path, right: &Path) -> Result<Vec<String>> {
    let mut names = BTreeSet::new();
    for directory in [left, right] {
        let entries = std::fs::read_dir(directory)
            .with_context(|| format!("read {}", directory.display()))?;
        for entry in entries {
            names.insert(entry?.file_name());
        }
    }
    Ok(names
        .into_iter()
        .filter(|name| {
            let read = |directory: &Path| std::fs::read(directory.join(name)).ok();
            read(left) != read(right)
        })
        .map(|name| name.to_string_lossy().into_owned())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_missing_and_surplus_files_are_named() {
        let (left, right) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (directory, name, content) in [
            (&left, "same", "x"),
            (&right, "same", "x"),
            (&left, "changed", "x"),
            (&right, "changed", "y"),
            (&left, "surplus", ""),
            (&right, "missing", ""),
        ] {
            std::fs::write(directory.path().join(name), content).unwrap();
        }
        assert_eq!(
            differences(left.path(), right.path()).unwrap(),
            ["changed", "missing", "surplus"]
        );
        assert!(differences(left.path(), &right.path().join("none")).is_err());
    }
}
