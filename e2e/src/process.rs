//! The one place where this crate starts programs, and where it looks for those that the build made.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use tokio::process::Command;

/// A program without stdin that is killed when its handle is dropped.
#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true);
    command
}

/// A program in a process group of its own, which is waited for without a runtime.
#[allow(clippy::disallowed_methods, reason = "the one place")]
pub(crate) fn in_own_group(program: impl AsRef<OsStr>) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    command.process_group(0);
    command
}

/// A file that the build made: its variable, its folder below cargo's target folder, its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Built {
    /// `cloche-agent`.
    Agent,
    /// `kubectl-sandbox`.
    Cli,
    /// `runsc`.
    Runsc,
    /// `cloche-init`, static.
    Init,
    /// The folder of local images.
    Images,
    /// `cloche-operator`.
    Operator,
    /// `cloche-gateway`.
    Gateway,
    /// The folder of the rig's programs.
    Rig,
    /// The list of the images for a rig's registry.
    Pushed,
}

impl Built {
    /// Where it is: by its variable, else where cargo and `cargo xtask artifacts` put it.
    pub fn path(self) -> Result<PathBuf> {
        let (variable, folder, name) = match self {
            Self::Agent => ("CLOCHE_AGENT", "debug", "cloche-agent"),
            Self::Cli => ("CLOCHE_CLI", "debug", "kubectl-sandbox"),
            // Not in debug: a cloche-init that cargo made there is not static.
            Self::Runsc => ("CLOCHE_RUNSC", "artifacts", "runsc"),
            Self::Init => ("CLOCHE_INIT", "artifacts", "cloche-init"),
            Self::Images => ("CLOCHE_IMAGES", "artifacts", "images"),
            Self::Operator => ("CLOCHE_OPERATOR", "debug", "cloche-operator"),
            Self::Gateway => ("CLOCHE_GATEWAY", "debug", "cloche-gateway"),
            Self::Rig => ("CLOCHE_RIG", "", "rig"),
            Self::Pushed => ("CLOCHE_PUSHED", "artifacts", "registry/pushed"),
        };
        let path = match std::env::var_os(variable) {
            Some(path) => PathBuf::from(path),
            None => target()?.join(folder).join(name),
        };
        if !path.exists() {
            bail!(
                "{} is missing: run the test by `cargo xtask test`, or set {variable}",
                path.display()
            );
        }
        Ok(path)
    }
}

/// Cargo's target folder: the test program is `TARGET/debug/deps/NAME`.
fn target() -> Result<PathBuf> {
    let program = std::env::current_exe().context("find the test program")?;
    program
        .ancestors()
        .nth(3)
        .map(Path::to_owned)
        .with_context(|| format!("{} is not in a target folder", program.display()))
}
