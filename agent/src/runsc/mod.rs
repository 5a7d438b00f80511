//! gVisor's `runsc`: the one command that is ever executed (`create`), and the sentry's control socket for all else.
//!
//! Interface that the rest of the agent builds on (the owner of this folder fills it in and may refine it):
//!
//! - `argv`: pure; the argument list of `runsc create`.
//! - `spec`: pure; the OCI spec of the root container (constant per profile and shape) and of `main` (constant).
//! - `urpc::Connection`: connect, `call(method, arg, fds, deadline)`; replies bounded to 1 MiB, received fds closed.
//! - `Sentry`: typed calls (start_root, create_subcontainer, start_subcontainer, execute, signal).
//! - `create(..) -> Created { pid, start_time }`: joins the cgroup, drops niceness, affinity, rlimits, signal mask and fds,
//!   execs `runsc create`, reads the sentry's pid.
