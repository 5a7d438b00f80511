//! gVisor's `runsc`: the one command that is ever executed (`create`), and the sentry's control socket for all else.
//!
//! ```text
//!   profile ──runsc, cloche-init, init.erofs──┐
//!   argv, spec (pure) ────────────────────────┼──► create ──► Created { sentry }     a *created* sandbox
//!   sys::spawn (groups, limits, fds) ─────────┘                   │
//!                                                             Sentry (urpc)          SetNetworkArgs, StartRoot: *started*
//!                                                                 │                  CreateSubcontainer, StartSubcontainer: `main`
//!                                                                 ▼
//!   tear_down ◄── cgroup, pidfd; panic_log tells why one died by itself
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`place`] | names and paths of one instance |
//! | [`argv`] | pure: the arguments of `runsc create` |
//! | [`spec`] | pure: the OCI specs of the root container and of `main`, both constant |
//! | [`profile`] | runsc, cloche-init and its EROFS, copied so that an upgrade changes nothing under a running sandbox |
//! | [`mod@create`] | runs `runsc create` in its groups, asserts that every process is in them |
//! | [`saved`] | the files that `main`'s writable layer is kept in |
//! | [`urpc`] | the control socket's protocol, towards a server that may lie |
//! | [`sentry`] | the calls that we use, typed |
//! | [`panic_log`] | the first line of what a sentry wrote when it panicked |
//! | [`tear_down`] | nothing stays behind |
//!
//! The sentry is untrusted: what comes from it is bounded in size and time, and is data, never a path, unit or label.

pub mod argv;
pub mod create;
pub mod panic_log;
pub mod place;
pub mod profile;
pub mod saved;
pub mod sentry;
pub mod spec;
pub mod tear_down;
pub mod urpc;

pub use create::{CreateError, CreatePlan, Created, create};
pub use place::{InstanceName, InstancePaths};
pub use profile::Profile;
pub use saved::SavedFiles;
pub use sentry::Sentry;
