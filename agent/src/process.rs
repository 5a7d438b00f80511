//! The one place where this crate starts helper programs (`runsc` itself is started by [`crate::runsc`], through `sys`).

use std::ffi::OsStr;
use std::process::Stdio;

use tokio::process::Command;

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
        .kill_on_drop(true);
    command
}
