//! The process that holds a rig.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::process::{self, Built};

/// What starts and ends rigs.
pub(super) const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/rig/rig");

/// What its nodes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Objects.
    ControlPlane,
    /// Kubelets.
    Cluster,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::Cluster => "cluster",
        }
    }
}

/// Owns the end of the pipe that keeps it up.
#[derive(Debug)]
pub(super) struct Hold {
    /// `None` once it was ended.
    child: Option<Child>,
    /// What the script says of its steps.
    told: File,
    variables: BTreeMap<String, String>,
}

impl Hold {
    /// Blocks until the control plane serves and the nodes are Ready.
    pub(super) fn start(mode: Mode, nodes: u8) -> Result<Self> {
        let programs = Built::Rig.path()?;
        let told = tempfile::tempfile().context("make a file for the rig's words")?;
        // In a group of its own: whoever kills the test's group leaves it the time to clear away.
        let mut child = process::in_own_group(SCRIPT)
            .args(["hold", mode.name(), &nodes.to_string()])
            .env("RIG_DIR", programs)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(told.try_clone().context("share the rig's words")?)
            .spawn()
            .with_context(|| format!("start {SCRIPT}"))?;
        let mut lines = String::new();
        let read = child
            .stdout
            .take()
            .context("the rig's output")?
            .read_to_string(&mut lines);
        let mut hold = Self {
            child: Some(child),
            told,
            variables: variables(&lines),
        };
        read.context("read what the rig prints")?;
        if hold.variables.is_empty() {
            let problem = hold.close().err();
            bail!(
                "the rig did not start: {}",
                problem.map_or_else(
                    || "it said nothing".to_owned(),
                    |problem| format!("{problem:#}")
                )
            );
        }
        Ok(hold)
    }

    pub(super) fn end(mut self) -> Result<()> {
        self.close()
    }

    /// Lets it end, and waits.
    fn close(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        drop(child.stdin.take());
        let status = child.wait().context("wait for the rig's end")?;
        if !status.success() {
            bail!("{SCRIPT}: {status}\n{}", self.told()?);
        }
        Ok(())
    }

    fn told(&mut self) -> Result<String> {
        let mut text = String::new();
        self.told.rewind().context("read the rig's words")?;
        self.told
            .read_to_string(&mut text)
            .context("read the rig's words")?;
        Ok(text)
    }

    /// What it set for programs that use it.
    pub(super) fn variables(&self) -> &BTreeMap<String, String> {
        &self.variables
    }

    pub(super) fn variable(&self, name: &str) -> Result<&str> {
        self.variables
            .get(name)
            .map(String::as_str)
            .with_context(|| format!("the rig did not tell {name}"))
    }

    /// The path of one of the rig's programs.
    pub(super) fn program(&self, name: &str) -> Result<PathBuf> {
        Ok(PathBuf::from(self.variable("RIG_BIN")?).join(name))
    }

    /// Name and content of each log.
    pub(super) fn logs(&self) -> Result<Vec<(String, String)>> {
        let folder = self.variable("RIG_LOG")?;
        let mut logs = Vec::new();
        for entry in std::fs::read_dir(folder).with_context(|| format!("read {folder}"))? {
            let entry = entry.with_context(|| format!("read {folder}"))?;
            let content = std::fs::read(entry.path())
                .with_context(|| format!("read {}", entry.path().display()))?;
            logs.push((
                entry.file_name().to_string_lossy().into_owned(),
                String::from_utf8_lossy(&content).into_owned(),
            ));
        }
        logs.sort();
        Ok(logs)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Err(problem) = self.close() {
            eprintln!("{problem:#}");
        }
    }
}

/// Of lines `export A=b C=d`; what a shell would have to expand is left out.
fn variables(lines: &str) -> BTreeMap<String, String> {
    lines
        .lines()
        .filter_map(|line| line.strip_prefix("export "))
        .flat_map(str::split_whitespace)
        .filter_map(|pair| pair.split_once('='))
        .filter(|(_, value)| !value.contains('$'))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_those_that_need_no_shell() {
        let lines = "export A=b C=/d/e\nnoise X=y\nexport PATH=$A:$PATH\n";
        let pairs = [("A", "b"), ("C", "/d/e")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(variables(lines), pairs.into());
    }
}
