//! The deadlines of one session. Pure; all times are of the boot clock.

use std::time::Duration;

/// How long after the command's timeout the agent kills its tree, if the holder did not.
pub(super) const TIMEOUT_GRACE: Duration = Duration::from_millis(300);
/// How long an ended session is kept, at least: it goes once its output is closed too.
pub(super) const KEPT: Duration = Duration::from_hours(1);
/// A client that made a session, or lost it by a restart of the agent, has at least this long to attach.
pub(super) const FIRST_ATTACH: Duration = Duration::from_secs(10);
/// How long the rest of an ended command's own output may stay away, with init answering, before what came is all.
pub(super) const SETTLE: Duration = Duration::from_secs(2);
/// Pause before an end that could not be recorded is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// Something to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// The timeout is over, or nobody is attached for too long: kill the tree.
    Kill,
    /// Record the end again, which failed before.
    Record,
    /// The rest of the output does not come.
    Settle,
    /// The session was kept long enough.
    Collect,
}

/// Who watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watched {
    /// Nobody yet in this agent's life.
    Never {
        /// When it was made or loaded.
        since: Duration,
    },
    /// At least one.
    Now,
    /// Nobody any more.
    Left {
        /// When the last one left.
        since: Duration,
    },
}

/// One session's deadlines.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // facts that do not depend on each other
pub(super) struct Life {
    /// When its timeout is over.
    pub(super) deadline: Option<Duration>,
    /// How long it may go on with nobody attached.
    pub(super) kill_on_detach: Option<Duration>,
    pub(super) watched: Watched,
    /// Its tree is to be killed already.
    pub(super) killing: bool,
    /// That is since its timeout was over.
    pub(super) timed_out: bool,
    /// When its end was recorded.
    pub(super) ended: Option<Duration>,
    /// No process has its output open any more. One that does would be killed by SIGPIPE if init let go of the session.
    pub(super) closed: bool,
    /// It goes with the sandbox and not before.
    pub(super) permanent: bool,
    /// When waiting for the rest of its output is given up.
    pub(super) settle: Option<Duration>,
    /// When recording its end is tried again.
    pub(super) retry: Option<Duration>,
    /// It is being removed.
    pub(super) collecting: bool,
}

impl Life {
    pub(super) fn new(
        now: Duration,
        deadline: Option<Duration>,
        kill_on_detach: Option<Duration>,
        ended: Option<Duration>,
    ) -> Self {
        Self {
            deadline,
            kill_on_detach,
            watched: Watched::Never { since: now },
            killing: false,
            timed_out: false,
            ended,
            closed: false,
            permanent: false,
            settle: None,
            retry: None,
            collecting: false,
        }
    }

    /// Whether anyone is attached.
    pub(super) fn watch(&mut self, now: Duration, attached: bool) {
        self.watched = match (self.watched, attached) {
            (_, true) => Watched::Now,
            (Watched::Now, false) => Watched::Left { since: now },
            (before, false) => before,
        };
    }

    /// When it is killed for its timeout.
    fn timeout(&self) -> Option<Duration> {
        self.deadline.map(|at| at.saturating_add(TIMEOUT_GRACE))
    }

    /// Its tree is being killed, for its timeout or since nobody is attached.
    pub(super) fn kill_due(&mut self, now: Duration) {
        self.timed_out |= self.timeout().is_some_and(|at| at <= now);
    }

    /// Time has passed, until `now`, that does not count for one that runs.
    pub(super) fn wait_longer(&mut self, by: Duration, now: Duration) {
        if self.ended.is_some() {
            return;
        }
        self.deadline = self.deadline.map(|at| at.saturating_add(by));
        self.watched = match self.watched {
            // Made, or left, in the middle of it: not before the end of it.
            Watched::Never { since } => Watched::Never {
                since: since.saturating_add(by).min(now),
            },
            Watched::Now => Watched::Now,
            Watched::Left { since } => Watched::Left {
                since: since.saturating_add(by).min(now),
            },
        };
    }

    /// Whether it may be forgotten at all; `ended` says since when.
    pub(super) fn collectable(&self) -> bool {
        self.closed && !self.permanent && !self.collecting
    }

    /// The next thing to do, and when.
    pub(super) fn next(&self) -> Option<(Duration, Due)> {
        let kill = || {
            let timeout = self.timeout();
            let detached = self.kill_on_detach.and_then(|time| match self.watched {
                Watched::Never { since } => Some(since.saturating_add(time.max(FIRST_ATTACH))),
                Watched::Now => None,
                Watched::Left { since } => Some(since.saturating_add(time)),
            });
            let at = timeout.into_iter().chain(detached).min()?;
            Some((at, Due::Kill))
        };
        let collect = self
            .ended
            // Not under the eyes of someone who reads it.
            .filter(|_| self.collectable() && self.watched != Watched::Now)
            .map(|at| (at.saturating_add(KEPT), Due::Collect));
        [
            kill().filter(|_| !self.killing && self.ended.is_none()),
            self.retry.map(|at| (at, Due::Record)),
            self.settle.map(|at| (at, Due::Settle)),
            collect,
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn deadlines() {
        let plain = Life::new(secs(5), None, None, None);
        assert_eq!(plain.next(), None);

        let mut timed = Life::new(secs(5), Some(secs(8)), Some(secs(2)), None);
        assert_eq!(timed.next(), Some((secs(8) + TIMEOUT_GRACE, Due::Kill)));
        timed.deadline = None;
        // Nobody came yet: long enough for a client to come.
        assert_eq!(timed.next(), Some((secs(5) + FIRST_ATTACH, Due::Kill)));
        timed.watch(secs(6), true);
        assert_eq!(timed.next(), None);
        timed.watch(secs(7), false);
        assert_eq!(timed.next(), Some((secs(9), Due::Kill)));
        timed.watch(secs(8), false);
        assert_eq!(timed.next(), Some((secs(9), Due::Kill)), "left but once");
        timed.wait_longer(secs(20), secs(100));
        assert_eq!(timed.next(), Some((secs(29), Due::Kill)), "paused");
        timed.wait_longer(secs(20), secs(30));
        assert_eq!(timed.watched, Watched::Left { since: secs(30) });
        timed.watched = Watched::Left { since: secs(7) };
        timed.deadline = Some(secs(90));
        timed.kill_due(secs(90));
        assert!(!timed.timed_out, "killed since nobody was attached");
        timed.kill_due(secs(91));
        assert!(timed.timed_out);
        timed.deadline = None;
        timed.killing = true;
        assert_eq!(timed.next(), None);
        timed.ended = Some(secs(10));
        assert_eq!(timed.next(), None, "something has its output open");
        timed.closed = true;
        assert_eq!(timed.next(), Some((secs(3610), Due::Collect)));
        timed.watch(secs(3600), true);
        assert_eq!(timed.next(), None, "someone reads it");
        timed.settle = Some(secs(12));
        assert_eq!(timed.next(), Some((secs(12), Due::Settle)));
    }
}
