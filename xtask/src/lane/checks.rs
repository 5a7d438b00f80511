//! The lane static: what can be told without running the product.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::report::Counts;
use super::{Deadline, FEATURES};
use crate::clock::Stopwatch;
use crate::command::Command;
use crate::workspace::Workspace;
use crate::{dependency, generate};

/// Compiled from source once per target directory.
const DENY_VERSION: &str = "0.20.2";

type Check = fn(&Workspace, Duration) -> Result<()>;

const CHECKS: &[(&str, Check)] = &[
    ("fmt", fmt),
    ("generated files", |workspace, _| generate::check(workspace)),
    ("dependency rules", |workspace, _| {
        dependency::check(workspace)
    }),
    ("clippy", clippy),
    ("released features", released_features),
    ("crates alone", crates_alone),
    ("cargo-deny", deny),
];

/// Runs them all; each counts as one.
pub(super) fn run(workspace: &Workspace, deadline: Deadline) -> Counts {
    let mut counts = Counts::default();
    for (name, check) in CHECKS {
        let watch = Stopwatch::start();
        let result = check(workspace, deadline.left());
        let seconds = watch.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                println!("check {name} ... ok ({seconds:.1} s)");
                counts += Counts::success();
            }
            Err(error) => {
                println!("check {name} ... FAILED ({seconds:.1} s): {error:#}");
                counts += Counts::failure();
            }
        }
    }
    counts
}

fn cargo(workspace: &Workspace, limit: Duration) -> Command {
    Command::cargo().directory(workspace.root()).limit(limit)
}

fn fmt(workspace: &Workspace, limit: Duration) -> Result<()> {
    cargo(workspace, limit)
        .args(["fmt", "--all", "--check", "--", "--files-with-diff"])
        .run()
}

fn clippy(workspace: &Workspace, limit: Duration) -> Result<()> {
    cargo(workspace, limit)
        .args(["clippy", "--quiet", "--workspace", "--all-targets"])
        .args([FEATURES, "--", "--deny=warnings"])
        .run()
}

/// Every other build has the fault points: what is released must compile too.
fn released_features(workspace: &Workspace, limit: Duration) -> Result<()> {
    cargo(workspace, limit)
        .args(["clippy", "--quiet", "--workspace", "--all-targets"])
        .args(["--", "--deny=warnings"])
        .run()
}

/// Built with the workspace, a crate gets the features that others ask for. These are also used without it.
fn crates_alone(workspace: &Workspace, limit: Duration) -> Result<()> {
    for name in ["cloche-init", "cloche-crds", "cloche-proto"] {
        cargo(workspace, limit)
            .args(["check", "--quiet", "--package", name])
            .run()?;
    }
    Ok(())
}

/// The advisory database is left out: it is not part of the repository, so the same commit would not always pass.
fn deny(workspace: &Workspace, limit: Duration) -> Result<()> {
    let program = install_deny(workspace, limit)?;
    Command::new(program)
        .args(["--workspace", "check", "bans", "licenses", "sources"])
        .directory(workspace.root())
        .limit(limit)
        .run()
}

fn install_deny(workspace: &Workspace, limit: Duration) -> Result<PathBuf> {
    let directory = workspace.target().join("tools");
    let program = directory.join("bin/cargo-deny");
    let present = program.exists()
        && Command::new(&program)
            .arg("--version")
            .text()
            .is_ok_and(|text| text.trim() == format!("cargo-deny {DENY_VERSION}"));
    if present {
        return Ok(program);
    }
    println!("xtask: building cargo-deny {DENY_VERSION} (1 to 2 minutes)");
    // Its release profile takes twice as long to build, and saves a second of each run.
    cargo(workspace, limit)
        .args(["install", "--quiet", "--locked", "--force", "--debug"])
        .args(["cargo-deny", "--version", DENY_VERSION, "--root"])
        .arg(&directory)
        .run()
        .context("install cargo-deny")?;
    Ok(program)
}
