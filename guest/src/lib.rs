//! `cloche-init`: the init inside every sandbox. It owns every session (the sandbox's own command too), so that a snapshot
//! keeps them and a restart of the agent loses nothing of them.
//!
//! ```text
//!   agent ══ pipes (stdin, stdout; or two handed over by the bridge) ══► holder      PID 1 of the container `main`
//!                                                                          │ socket  orders, notices, file descriptors
//!   ┌─ pid and mount namespace of the sessions ─────────────────────────── │ ─────┐
//!   │                                                                   spawner   │  PID 1 in there
//!   │                                                             ┌────────┼──────┐
//!   │                                                          session  session  …    pipes or a terminal, to the holder
//!   └───────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! | process | owns | takes in | gives out |
//! |---|---|---|---|
//! | [`holder`] | records, buffers, the sessions' groups, the channel | frames, notices, output | frames, orders, input |
//! | [`spawner`] | the sessions' processes and mounts | orders | notices |
//! | [`bridge`] | nothing | two pipes from the agent | the same, to the holder |
//! | [`pause`] | nothing: PID 1 of the root container | orphans | nothing |
//!
//! [`core`] decides, [`holder`] does. One thread and one poll loop per process; every buffer has a bound; `unsafe` lives in
//! `sys` alone.
//!
//! **Restart contract.** The holder never restarts: it lives as long as the container, through captures and restores. The agent
//! may die at any instruction; what it acknowledged is gone here, everything else is sent again in its next epoch.

//!
//! **What the container must give.** `main` runs `/.cloche/init holder` as root, PID 1 of a pid namespace of its own, with the
//! init's image (`init`, and an empty directory `run`) mounted read-only at `/.cloche`; /proc, /dev and /dev/pts as the runtime
//! mounts them. Its bounding, permitted and effective sets hold the holder's own capabilities (`CHOWN`, `DAC_OVERRIDE`, `FOWNER`,
//! `KILL`, `SETGID`, `SETUID`, `SETPCAP`, `SYS_ADMIN`, `SYS_RESOURCE`) and every one that a session may be granted: a session gets no other,
//! and the holder keeps in force only its own. Permitted is needed beside bounding: with `no_new_privs`, execve gives nothing
//! that was not permitted before. The ambient and inheritable sets stay empty, `no_new_privs` unset. `RLIMIT_NOFILE` should allow
//! 4096 files, in the root container's specification too: an exec by the control socket puts that one's limits in force here. The bridge is `/.cloche/init bridge` as [`BRIDGE_USER`](cloche_proto::frame::BRIDGE_USER) without capabilities, in
//! the mount namespace of `main`. The root container runs `pause` from any read-only image and needs nothing.

pub mod bridge;
pub mod clock;
pub mod core;
pub mod directory;
pub mod group;
pub mod holder;
pub mod hostname;
pub mod launch;
pub mod letter;
pub mod pause;
pub mod root;
pub mod spawner;
mod sys;
pub mod wire;
