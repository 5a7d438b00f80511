//! A Go module with files of our own: those in Go's cache cannot be replaced by an overlay, so a copy takes the module's place.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::go::go;
use crate::command::Command;

/// A module that a `go.mod` pins, in Go's cache.
#[derive(Debug, Deserialize)]
pub(crate) struct Module {
    #[serde(rename = "Path")]
    path: String,
    #[serde(rename = "Version")]
    pub(crate) version: String,
    #[serde(rename = "Dir")]
    directory: PathBuf,
}

/// A copy of one that can be written to, for as long as its folder stays.
#[derive(Debug)]
pub(crate) struct Copy {
    pins: PathBuf,
    directory: PathBuf,
    modfile: PathBuf,
}

impl Module {
    /// Fetches the one that `pins/go.mod` names, if it is not in Go's cache; checked against go.sum.
    pub(crate) fn download(pins: &Path, path: &str) -> Result<Self> {
        let text = go(pins)
            .args(["mod", "download", "-json", path])
            .text()
            .with_context(|| format!("download the Go module {path}"))?;
        serde_json::from_str(&text).context("read the answer of go mod download")
    }

    /// Copies it into `staging`, for builds in `pins`.
    pub(crate) fn copy(&self, pins: &Path, staging: &Path) -> Result<Copy> {
        let directory = staging.join("module");
        Command::new("cp")
            .args(["--recursive", "--no-preserve=mode", "--"])
            .args([&self.directory, &directory])
            .run()?;
        let modfile = staging.join("go.mod");
        let pinned = std::fs::read_to_string(pins.join("go.mod")).context("read go.mod")?;
        let replaced = format!(
            "{pinned}\nreplace {} => {}\n",
            self.path,
            directory.display()
        );
        std::fs::write(&modfile, replaced).context("write go.mod")?;
        std::fs::copy(pins.join("go.sum"), staging.join("go.sum")).context("copy go.sum")?;
        Ok(Copy {
            pins: pins.to_owned(),
            directory,
            modfile,
        })
    }
}

impl Copy {
    /// A file of it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// `go COMMAND` where the copy is the module.
    pub(crate) fn go(&self, command: impl AsRef<OsStr>) -> Command {
        go(&self.pins)
            .arg(command)
            .arg(format!("-modfile={}", self.modfile.display()))
    }
}
