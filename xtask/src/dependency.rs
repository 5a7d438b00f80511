//! `cargo xtask deps`: who may depend on whom (docs/ARCHITECTURE.md).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::command::Command;
use crate::workspace::Workspace;

const CRDS: &str = "cloche-crds";
const PROTO: &str = "cloche-proto";
const IDENTITY: &str = "cloche-identity";
const GUEST: &str = "cloche-init";
const AGENT: &str = "cloche-agent";
const BINARIES: &[&str] = &[
    AGENT,
    "cloche-cli",
    "cloche-gateway",
    "cloche-netd",
    "cloche-operator",
];
const END_TO_END: &str = "cloche-e2e";
const BENCH: &str = "cloche-bench";
const XTASK: &str = "xtask";

/// What a crate, built alone, must not bring along, and why.
const BANNED: &[(&str, &[&str], &str)] = &[
    (
        CRDS,
        &["tokio", "hyper", "kube-client", "kube-runtime", "tonic"],
        "the API types are used where there is neither a client nor a runtime",
    ),
    (
        PROTO,
        &["tokio", "tonic", "kube-core"],
        "the guest frames are compiled into cloche-init",
    ),
    (
        GUEST,
        &["tokio", "tonic", "hyper", "kube-core", "serde"],
        "cloche-init is small and static",
    ),
];

/// A crate of the workspace and the crates of the workspace that it names, for builds, tests and build scripts alike.
type Members = BTreeMap<String, BTreeSet<String>>;

/// Checks every rule; the error lists all that are broken.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let text = Command::cargo()
        .args(["metadata", "--format-version=1", "--no-deps"])
        .directory(workspace.root())
        .text()?;
    let members = read(&text)?;
    let mut broken = broken_edges(&members);
    for (name, banned, reason) in BANNED {
        let tree = Command::cargo()
            .args(["tree", "--quiet", "--package", name])
            .args(["--edges=normal", "--prefix=none", "--format={p}"])
            .directory(workspace.root())
            .text()?;
        broken.extend(broken_bans(name, &tree, banned, reason));
    }
    if broken.is_empty() {
        return Ok(());
    }
    bail!("{}", broken.join("; "))
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// Set for those of the workspace.
    path: Option<String>,
}

fn read(metadata: &str) -> Result<Members> {
    let metadata: Metadata = serde_json::from_str(metadata).context("read cargo metadata")?;
    Ok(metadata
        .packages
        .into_iter()
        .map(|package| {
            let ours = package
                .dependencies
                .into_iter()
                .filter(|dependency| dependency.path.is_some())
                .map(|dependency| dependency.name)
                .collect();
            (package.name, ours)
        })
        .collect())
}

/// What `name` may depend on; `None` for a crate that has no rule yet.
fn allowed(name: &str) -> Option<Vec<&'static str>> {
    match name {
        CRDS | PROTO => Some(Vec::new()),
        // Names that the parts of a cluster share; for xtask, the files that are made of the types.
        IDENTITY | XTASK => Some(vec![CRDS]),
        GUEST => Some(vec![PROTO]),
        BENCH => Some(vec![CRDS, PROTO, AGENT, END_TO_END]),
        END_TO_END => Some([&[CRDS, PROTO, GUEST, IDENTITY], BINARIES].concat()),
        _ if BINARIES.contains(&name) => Some(vec![CRDS, PROTO, IDENTITY]),
        _ => None,
    }
}

fn broken_edges(members: &Members) -> Vec<String> {
    let mut broken = Vec::new();
    for (name, dependencies) in members {
        let Some(allowed) = allowed(name) else {
            broken.push(format!("{name}: has no rule; give it one in xtask"));
            continue;
        };
        for dependency in dependencies {
            if !allowed.contains(&dependency.as_str()) {
                broken.push(format!("{name}: must not depend on {dependency}"));
            }
        }
    }
    broken
}

/// `tree` is cargo tree's list, one `name version ...` per line.
fn broken_bans(name: &str, tree: &str, banned: &[&str], reason: &str) -> Vec<String> {
    let present: BTreeSet<&str> = tree
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    banned
        .iter()
        .filter(|banned| present.contains(**banned))
        .map(|banned| format!("{name}: must not bring in {banned}: {reason}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_allowed_or_refused() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            (CRDS, &[], &[]),
            (
                CRDS,
                &[PROTO],
                &["cloche-crds: must not depend on cloche-proto"],
            ),
            (
                PROTO,
                &[CRDS],
                &["cloche-proto: must not depend on cloche-crds"],
            ),
            (GUEST, &[PROTO], &[]),
            (
                GUEST,
                &[CRDS],
                &["cloche-init: must not depend on cloche-crds"],
            ),
            ("cloche-agent", &[CRDS, PROTO, IDENTITY], &[]),
            (
                IDENTITY,
                &[CRDS, PROTO],
                &["cloche-identity: must not depend on cloche-proto"],
            ),
            (
                "cloche-agent",
                &[GUEST],
                &["cloche-agent: must not depend on cloche-init"],
            ),
            (
                "cloche-cli",
                &["cloche-agent"],
                &["cloche-cli: must not depend on cloche-agent"],
            ),
            (
                "cloche-operator",
                &["cloche-gateway", END_TO_END],
                &[
                    "cloche-operator: must not depend on cloche-e2e",
                    "cloche-operator: must not depend on cloche-gateway",
                ],
            ),
            (
                END_TO_END,
                &[CRDS, PROTO, "cloche-agent", "cloche-cli", GUEST],
                &[],
            ),
            (
                END_TO_END,
                &[XTASK],
                &["cloche-e2e: must not depend on xtask"],
            ),
            (BENCH, &[PROTO, AGENT, END_TO_END], &[]),
            (
                BENCH,
                &["cloche-cli"],
                &["cloche-bench: must not depend on cloche-cli"],
            ),
            (
                END_TO_END,
                &[BENCH],
                &["cloche-e2e: must not depend on cloche-bench"],
            ),
            (XTASK, &[CRDS], &[]),
            (XTASK, &[PROTO], &["xtask: must not depend on cloche-proto"]),
            (
                "cloche-new",
                &[],
                &["cloche-new: has no rule; give it one in xtask"],
            ),
        ];
        for (name, dependencies, expected) in cases {
            let dependencies = dependencies.iter().map(ToString::to_string).collect();
            let members = Members::from([((*name).to_owned(), dependencies)]);
            assert_eq!(&broken_edges(&members), expected, "{name}");
        }
    }

    #[test]
    fn dependencies_of_the_workspace_are_those_with_a_path() {
        let text = r#"{"packages":[
            {"name":"a","dependencies":[
                {"name":"b","path":"/w/b","kind":null},
                {"name":"c","path":"/w/c","kind":"dev"},
                {"name":"serde","kind":null}]},
            {"name":"b","dependencies":[]}]}"#;
        let members = read(text).unwrap();
        let names = |name: &str| members[name].iter().cloned().collect::<Vec<_>>();
        assert_eq!(names("a"), ["b", "c"]);
        assert_eq!(names("b"), [""; 0]);
    }

    #[test]
    fn bans_are_of_whole_names() {
        let tree = "cloche-crds v0.1.0 (/w/crds)\ntokio-util v0.7.0\nkube-core v5.0.0\ntonic v0.14.0 (*)\n";
        assert_eq!(
            broken_bans("x", tree, &["tokio", "kube", "tonic"], "because"),
            ["x: must not bring in tonic: because"]
        );
    }
}
