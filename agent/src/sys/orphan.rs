//! What our children leave behind comes to us, and is reaped.
//!
//! `runsc create` exits when the sentry runs; the agent is a *subreaper*, so the sentry then becomes its child and its exit
//! status can be read. A `create` that is killed half-way leaves processes that nobody knows: they must not stay as zombies.
//! But a zombie whose status somebody waits for must be left alone. So an orphan is a dead child that
//! - no [`super::Process`] holds, and
//! - leads or is in another *session* than ours: all that we start by other means stays in our session and is waited for by
//!   whoever started it, while [`super::spawn`] and `runsc` (`runsc/sandbox/sandbox.go`, `Setsid: true`) begin new ones.

use std::io;
use std::time::Duration;

use nix::unistd::{Pid, getsid};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::process::claimed;
use super::{stat, wait};

/// Pause after a look that failed.
const RETRY: Duration = Duration::from_secs(1);

static WOKEN: Notify = Notify::const_new();

/// Makes this process the parent of all orphans below it. Source: `PR_SET_CHILD_SUBREAPER`(2const).
pub fn become_subreaper() -> io::Result<()> {
    nix::sys::prctl::set_child_subreaper(true).map_err(io::Error::from)
}

/// Has [`reap`] look again.
pub(super) fn wake() {
    WOKEN.notify_one();
}

/// Reaps orphans until it is dropped. One per process, on the runtime.
pub async fn reap() -> io::Result<()> {
    let mut children = signal(SignalKind::child())?;
    loop {
        let reaped = tokio::task::spawn_blocking(reap_now)
            .await
            .map_err(io::Error::other)?;
        if let Err(error) = reaped {
            // Such as no descriptor left for a look: zombies are no reason to stop.
            tracing::error!(%error, "cannot reap orphans; trying again");
            tokio::time::sleep(RETRY).await;
            continue;
        }
        // Both are cancel safe: a SIGCHLD or a wake-up that comes meanwhile is kept.
        tokio::select! {
            told = children.recv() => if told.is_none() {
                return Err(io::Error::other("the runtime's signal driver has gone"));
            },
            () = WOKEN.notified() => {}
        }
    }
}

/// Reaps every orphan that is dead now. Returns how many.
fn reap_now() -> io::Result<usize> {
    let session = getsid(None)?.as_raw();
    let mut reaped = 0;
    loop {
        // Held while looking *and* reaping: see `claimed`.
        let claims = claimed();
        let orphan = |pid: i32, of: i32| of != session && !claims.contains_key(&pid);
        let Some(pid) = wait::peek()? else {
            return Ok(reaped);
        };
        if let Some(stat) = stat::read(pid)?
            && orphan(pid, stat.session)
        {
            reaped += usize::from(wait::reap(pid)?);
            continue;
        }
        // The kernel always shows the same dead child first. Somebody else will take that one, maybe later: look past it.
        let own = Pid::this().as_raw();
        for (pid, stat) in stat::all()? {
            if stat.parent == own && stat.state == 'Z' && orphan(pid, stat.session) {
                reaped += usize::from(wait::reap(pid)?);
            }
        }
        return Ok(reaped);
    }
}
