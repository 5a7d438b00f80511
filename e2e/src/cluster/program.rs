//! A part of Cloche that a test starts, kills and starts again.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use tokio::process::Child;

use crate::process::{self, Built};

/// Lines of a log that a failure shows.
const TAIL: usize = 60;

/// Operator or gateway, running or not. Its log is kept over restarts.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    path: PathBuf,
    arguments: Vec<OsString>,
    log: PathBuf,
    child: Option<Child>,
}

impl Program {
    /// Nothing runs yet; `folder` gets its log.
    pub(super) fn new(
        name: &'static str,
        built: Built,
        arguments: Vec<OsString>,
        folder: &Path,
    ) -> Result<Self> {
        Ok(Self {
            name,
            path: built.path()?,
            arguments,
            log: folder.join(format!("{name}.log")),
            child: None,
        })
    }

    /// Starts it, and does not wait until it serves.
    pub fn start(&mut self) -> Result<()> {
        if self.child.is_some() {
            bail!("{} runs already", self.name);
        }
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .with_context(|| format!("open {}", self.log.display()))?;
        let child = process::command(&self.path)
            .args(&self.arguments)
            .env("NO_COLOR", "1")
            .stdout(log.try_clone().context("share a log")?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {}", self.path.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Starts it again if it has ended by itself, as a kubelet does. An operator ends when its Lease has run out.
    pub fn revive(&mut self) -> Result<()> {
        let Some(child) = &mut self.child else {
            bail!("{} does not run", self.name);
        };
        if child.try_wait().context("look at a program")?.is_some() {
            self.child = None;
            self.start()?;
        }
        Ok(())
    }

    /// SIGKILL, and waits until it is gone.
    pub async fn kill(&mut self) -> Result<()> {
        let mut child = self
            .child
            .take()
            .with_context(|| format!("{} does not run", self.name))?;
        child
            .kill()
            .await
            .with_context(|| format!("kill {}", self.name))
    }

    /// Whether it was started and not killed; an error with its log if it ended by itself.
    pub fn check(&mut self) -> Result<bool> {
        let Some(child) = &mut self.child else {
            return Ok(false);
        };
        match child.try_wait().context("look at a program")? {
            None => Ok(true),
            Some(status) => bail!("{} ended by itself ({status}):\n{}", self.name, self.tail()),
        }
    }

    /// The last lines of its log.
    pub fn tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log)
            .unwrap_or_else(|problem| format!("{}: {problem}", self.log.display()));
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }
}
