//! `cargo xtask generate`: files made from other files, committed, and compared by `cargo xtask test`.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;

/// A folder of generated files, and what makes them.
struct Output {
    folder: &'static str,
    make: fn(&Workspace, &Path) -> Result<()>,
}

const OUTPUTS: [Output; 2] = [
    Output {
        folder: "proto/src/generated",
        make: proto,
    },
    Output {
        folder: "charts/cloche-crds/templates",
        make: crds,
    },
];

const PROTO_SOURCES: &str = "proto/proto";
const PROTO_FILES: [&str; 2] = [
    "cloche/agent/v1alpha1/agent.proto",
    "cloche/operator/v1alpha1/operator.proto",
];

/// What carries secrets shows none: its `Debug` is written by hand.
const SECRET_MESSAGES: [&str; 2] = [
    "cloche.operator.v1alpha1.Variable",
    "cloche.operator.v1alpha1.Login",
];

/// Writes all generated files.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    for output in &OUTPUTS {
        let out = workspace.root().join(output.folder);
        std::fs::create_dir_all(&out).with_context(|| format!("create {}", out.display()))?;
        (output.make)(workspace, &out)?;
    }
    Ok(())
}

/// An error that names the files which generating again would change.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let mut changed = Vec::new();
    for output in &OUTPUTS {
        let fresh = tempfile::tempdir().context("create a directory for generated files")?;
        (output.make)(workspace, fresh.path())?;
        let names = differences(&workspace.root().join(output.folder), fresh.path())?;
        changed.extend(names.iter().map(|name| format!("{}/{name}", output.folder)));
    }
    if changed.is_empty() {
        return Ok(());
    }
    bail!(
        "{} out of date: run cargo xtask generate and commit",
        changed.join(", ")
    )
}

/// The CRDs, as the templates of their chart.
fn crds(_: &Workspace, out: &Path) -> Result<()> {
    for (file, crd) in [
        ("sandboxes.yaml", cloche_crds::schema::sandbox()),
        ("sandboxnodes.yaml", cloche_crds::schema::sandbox_node()),
    ] {
        let crd = crd.with_context(|| format!("make the CRD of {file}"))?;
        let mut crd = serde_json::to_value(crd)?;
        // The objects of users go with their CRD: an uninstall of the chart must not take them.
        crd["metadata"]["annotations"] = serde_json::json!({"helm.sh/resource-policy": "keep"});
        let yaml =
            serde_saphyr::to_string(&crd).with_context(|| format!("write {file} as YAML"))?;
        let text = format!("# Generated from the types by cargo xtask generate.\n{yaml}");
        let path = out.join(file);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// The gRPC code of the agent's API and of the operator's.
fn proto(workspace: &Workspace, out: &Path) -> Result<()> {
    let include = workspace.root().join(PROTO_SOURCES);
    let files = protox::compile(PROTO_FILES.map(|file| include.join(file)), [&include])
        .with_context(|| format!("compile {}", PROTO_FILES.join(", ")))?;
    tonic_prost_build::configure()
        .out_dir(out)
        .skip_debug(SECRET_MESSAGES)
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
