//! A command that numbers its lines, so that a client which lost one, or saw one twice, shows.

use std::process::Output;

use anyhow::{Result, ensure};

/// For `sh -c`: prints numbers from 0 until there is a file [`STOP`], then ends with [`CODE`].
pub const COMMAND: &str =
    "n=0; while ! [ -e /stop ]; do echo $n; n=$((n+1)); sleep 0.02; done; exit 5";
/// Ends it.
pub const STOP: &str = "/stop";
/// Its exit code.
pub const CODE: i32 = 5;

/// Its client saw each line once and in order, to the end, and the command's own code.
pub fn whole(output: &Output) -> Result<()> {
    ensure!(
        output.status.code() == Some(CODE),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    in_order(&output.stdout)
}

/// Each line once and in order, the first ones at least.
pub fn in_order(printed: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(printed);
    for (number, line) in text.lines().enumerate() {
        ensure!(
            line == number.to_string(),
            "{line:?} where {number} is next"
        );
    }
    ensure!(
        text.ends_with('\n'),
        "it ends with {:?}",
        text.lines().last()
    );
    Ok(())
}
