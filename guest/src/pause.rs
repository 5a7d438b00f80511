//! PID 1 of the instance's root container: reaps what is left to it, and waits.

use nix::sys::signal::{SigSet, Signal};

use crate::sys::process;

/// Runs until the sandbox is killed.
pub fn run() -> nix::Result<()> {
    process::block_signals()?;
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    loop {
        while process::reap()?.is_some() {}
        children.wait()?;
    }
}
