//! The process that the agent is, and the one place where it starts helper programs (`runsc` itself is started by [`crate::runsc`],
//! through `sys`).

use std::ffi::OsStr;
use std::process::Stdio;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::process::Command;

/// Raises the soft limit of open files to the hard one: a sandbox takes some ten, and one that has used them up could not even be
/// watched any more. Shells and service managers give 1024 to programs that use `select`, which this one does not.
pub fn raise_open_files() -> std::io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// A command with an empty environment but PATH, no stdin, killed when dropped.
#[allow(clippy::disallowed_methods)]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .stdin(Stdio::null())
        // A Ctrl-C at a terminal is meant for the agent alone.
        .process_group(0)
        .kill_on_drop(true);
    command
}
