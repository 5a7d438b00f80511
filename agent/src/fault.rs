//! Named points at which a test can kill the agent: `CLOCHE_FAULT=NAME` or `NAME:N` (the N-th time it is passed, from 1).
//!
//! Compiled to nothing without the feature `fault-points`. With it, reaching the named point is `kill -9` of oneself: no
//! destructor, no flush, no handler runs. The log tells each passage at the level trace: when each step of a start was done.

/// Passes the point `name`.
#[cfg(not(feature = "fault-points"))]
#[inline]
pub fn point(_name: &'static str) {}

/// Passes the point `name`; does not return if `CLOCHE_FAULT` names it.
#[cfg(feature = "fault-points")]
pub fn point(name: &'static str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    static ARMED: LazyLock<Option<(String, u32)>> = LazyLock::new(|| {
        let armed = std::env::var("CLOCHE_FAULT").ok()?;
        Some(match armed.rsplit_once(':') {
            Some((name, count)) if count.parse::<u32>().is_ok() => {
                (name.to_owned(), count.parse().unwrap_or(1))
            }
            _ => (armed, 1),
        })
    });
    static PASSED: AtomicU32 = AtomicU32::new(0);

    tracing::trace!(point = name, "passed");
    let Some((armed, at)) = ARMED.as_ref() else {
        return;
    };
    if armed == name && PASSED.fetch_add(1, Ordering::SeqCst) + 1 == *at {
        tracing::warn!(point = name, "fault point reached: killing this process");
        let killed =
            nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
        // The test that armed it then fails by its deadline.
        tracing::error!(point = name, ?killed, "still alive");
        loop {
            std::thread::park();
        }
    }
}
