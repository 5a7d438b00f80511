//! Where things are: the checkout, the target directory, and what xtask keeps in it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::command::Command;

/// Paths of one checkout.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

/// How cargo builds Cloche's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// With debug assertions, and with fault points in the agent: what tests use.
    Debug,
    /// As they are released.
    Release,
}

#[derive(Deserialize)]
struct Metadata {
    workspace_root: PathBuf,
    target_directory: PathBuf,
}

impl Workspace {
    /// Asks cargo, so that `CARGO_TARGET_DIR` and every configuration file count.
    pub(crate) fn find() -> Result<Self> {
        let text = Command::cargo()
            .args(["metadata", "--format-version=1", "--no-deps"])
            .limit(Duration::from_mins(1))
            .text()?;
        let metadata: Metadata = serde_json::from_str(&text).context("read cargo metadata")?;
        Ok(Self {
            root: metadata.workspace_root,
            target: metadata.target_directory,
        })
    }

    /// The checkout.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Cargo's target directory.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// What is built by other means than cargo, and images. Kept between runs.
    pub(crate) fn artifacts(&self) -> PathBuf {
        self.target.join("artifacts")
    }

    /// A program of the debug build.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.built(Profile::Debug, name)
    }

    /// A program that cargo has built.
    pub(crate) fn built(&self, profile: Profile, name: &str) -> PathBuf {
        self.programs(profile).join(name)
    }

    /// Where cargo puts programs.
    pub(crate) fn programs(&self, profile: Profile) -> PathBuf {
        self.target.join(match profile {
            Profile::Debug => "debug",
            Profile::Release => "release",
        })
    }
}
