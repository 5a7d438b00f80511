//! Whether cloche-init answers, and what to do when it does not. Pure; all times are of the boot clock.
//!
//! ```text
//!            hello unanswered (1 s on donated pipes; 2 s on a bridge's, which then failed)
//!   Greeting ─────────────► Bridging ──failed──► Resting ──pause over──► Bridging ...
//!      │  ▲                   │
//!      │  └────new pipes──────┘
//!      ▼ greeted
//!     Open ──silent 2 s──► wake and ping ──silent 2 s──► Bridging
//! ```
//!
//! Silence means something only while an answer is due, after a create, a ping or a hello, and while the pipe is read. A
//! sandbox that is idle gets a ping every [`IDLE_PING`], some microseconds of work each.

use std::collections::VecDeque;
use std::time::Duration;

/// How long a hello on donated pipes may stay unanswered. They come with a container that is just starting, which takes more than 50 ms
/// on a loaded node (seen); a bridge to a holder that is on its way helps nobody.
pub(super) const HELLO_PATIENCE: Duration = Duration::from_secs(1);
/// How long anything else may.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// How often a sandbox is pinged of which nothing is heard or wanted.
pub(super) const IDLE_PING: Duration = Duration::from_secs(30);
/// First pause between attempts, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Attempts that may fail before the sessions count as unavailable.
const ATTEMPTS: u32 = 2;
/// Epochs that the holder may break within [`BREAKS_WITHIN`] before there is a pause.
const BREAKS: usize = 4;
const BREAKS_WITHIN: Duration = Duration::from_mins(1);

/// Something to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// SIGCONT to the holder.
    Wake,
    /// Get new pipes.
    Bridge,
    /// Send a ping.
    Ping,
    /// Begin a new epoch on the pipes that there are.
    Hello,
    /// Give up the pipes that a bridge made: [`Liveness::failed`].
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Greeting {
        until: Duration,
        donated: bool,
    },
    Bridging,
    Open,
    Resting {
        until: Duration,
    },
    /// The sandbox has ended.
    Over,
}

/// The state of one channel.
#[derive(Debug)]
pub(super) struct Liveness {
    phase: Phase,
    /// When an answer must have come; only while one is due.
    answer_by: Option<Duration>,
    /// When the idle ping is due.
    ping_at: Duration,
    woken: bool,
    failures: u32,
    breaks: VecDeque<Duration>,
    /// The pipes are to be kept: the holder broke the protocol, new ones would not help.
    keep_pipes: bool,
}

impl Liveness {
    /// Begins without pipes: [`Self::due`] asks for a bridge at once.
    pub(super) fn new(now: Duration) -> Self {
        Self {
            phase: Phase::Resting { until: now },
            answer_by: None,
            ping_at: now,
            woken: false,
            failures: 0,
            breaks: VecDeque::new(),
            keep_pipes: false,
        }
    }

    /// Whether sessions count as unavailable.
    pub(super) fn is_unavailable(&self) -> bool {
        self.failures >= ATTEMPTS
    }

    /// Whether the holder has greeted, and answers as far as is known.
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// When [`Self::due`] is to be called, at the latest. `running`: there are sessions whose end would be missed.
    pub(super) fn next(&self, running: bool) -> Option<Duration> {
        match self.phase {
            Phase::Greeting { until, .. } | Phase::Resting { until } => Some(until),
            Phase::Bridging | Phase::Over => None,
            Phase::Open => self
                .answer_by
                .into_iter()
                .chain(running.then_some(self.ping_at))
                .min(),
        }
    }

    /// What is to be done now.
    pub(super) fn due(&mut self, now: Duration, running: bool) -> Vec<Act> {
        match self.phase {
            // A bridge is the remedy for the first silence.
            Phase::Greeting {
                until,
                donated: true,
            } if now >= until => {
                self.phase = Phase::Bridging;
                if self.failures > 0 {
                    vec![Act::Wake, Act::Bridge]
                } else {
                    vec![Act::Bridge]
                }
            }
            // One that nobody answers either has failed: more of them only pile up in the sandbox.
            Phase::Greeting { until, .. } if now >= until => vec![Act::Fail],
            Phase::Resting { until } if now >= until => {
                if std::mem::take(&mut self.keep_pipes) {
                    return vec![Act::Hello];
                }
                self.phase = Phase::Bridging;
                if self.failures > 0 {
                    vec![Act::Wake, Act::Bridge]
                } else {
                    vec![Act::Bridge]
                }
            }
            Phase::Open => match self.answer_by {
                Some(by) if now >= by && self.woken => {
                    self.phase = Phase::Bridging;
                    self.answer_by = None;
                    vec![Act::Bridge]
                }
                Some(by) if now >= by => {
                    self.woken = true;
                    self.answer_by = Some(now + PATIENCE);
                    vec![Act::Wake, Act::Ping]
                }
                None if running && now >= self.ping_at => vec![Act::Ping],
                Some(_) | None => vec![],
            },
            Phase::Greeting { .. } | Phase::Resting { .. } | Phase::Bridging | Phase::Over => {
                vec![]
            }
        }
    }

    /// A hello is on its way; on pipes that were `donated` at the start, or that the bridge made.
    pub(super) fn greeting(&mut self, now: Duration, donated: bool) {
        let patience = if donated { HELLO_PATIENCE } else { PATIENCE };
        self.phase = Phase::Greeting {
            until: now + patience,
            donated,
        };
        self.answer_by = None;
    }

    /// The holder has greeted.
    pub(super) fn opened(&mut self, now: Duration) {
        self.phase = Phase::Open;
        self.heard(now);
    }

    /// Something was heard.
    pub(super) fn heard(&mut self, now: Duration) {
        self.woken = false;
        self.answer_by = None;
        self.ping_at = now + IDLE_PING;
        self.forgive(now);
        // One that greets well and then breaks the protocol is judged by its breaks.
        if self.breaks.len() < BREAKS {
            self.failures = 0;
        }
    }

    fn forgive(&mut self, now: Duration) {
        while self
            .breaks
            .front()
            .is_some_and(|at| *at + BREAKS_WITHIN < now)
        {
            self.breaks.pop_front();
        }
    }

    /// Something was sent that must be answered.
    pub(super) fn asked(&mut self, now: Duration) {
        self.ping_at = now + IDLE_PING;
        if self.phase == Phase::Open && self.answer_by.is_none() {
            self.answer_by = Some(now + PATIENCE);
        }
    }

    /// Its pipe is not read now, since what came before is not stored yet: that nothing is heard says nothing of the holder.
    pub(super) fn held_back(&mut self, now: Duration) {
        let later = now + PATIENCE;
        self.answer_by = self.answer_by.map(|by| by.max(later));
        if let Phase::Greeting { until, .. } = &mut self.phase {
            *until = later.max(*until);
        }
    }

    /// The bridge could not be made, or the pipes broke.
    pub(super) fn failed(&mut self, now: Duration) {
        if self.phase == Phase::Over {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let pause = FIRST_PAUSE
            .saturating_mul(1 << self.failures.min(16).saturating_sub(1))
            .min(LONGEST_PAUSE);
        self.phase = Phase::Resting { until: now + pause };
        self.answer_by = None;
    }

    /// The holder broke the protocol: a new epoch, at once unless it does so again and again.
    pub(super) fn broken(&mut self, now: Duration) -> Vec<Act> {
        self.forgive(now);
        self.breaks.push_back(now);
        if self.breaks.len() < BREAKS {
            return vec![Act::Hello];
        }
        while self.breaks.len() > BREAKS {
            self.breaks.pop_front();
        }
        self.failures = self.failures.max(ATTEMPTS);
        self.failed(now);
        self.keep_pipes = true;
        vec![]
    }

    /// The sandbox has ended.
    pub(super) fn over(&mut self) {
        self.phase = Phase::Over;
        self.answer_by = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_silent_greeting_is_bridged_then_woken() {
        let mut live = Liveness::new(ms(0));
        live.greeting(ms(0), true);
        assert_eq!(live.next(true), Some(HELLO_PATIENCE));
        assert_eq!(live.due(ms(999), true), []);
        assert_eq!(live.due(ms(1000), true), [Act::Bridge]);
        assert_eq!(live.next(true), None, "the bridge is being made");
        live.failed(ms(1010));
        assert!(!live.is_unavailable());
        assert_eq!(live.due(ms(1260), true), [Act::Wake, Act::Bridge]);
        live.failed(ms(1270));
        assert!(live.is_unavailable());
        assert_eq!(live.next(true), Some(ms(1770)));
        for _ in 0..40 {
            live.failed(ms(2000));
        }
        assert_eq!(live.next(true), Some(ms(32_000)), "bounded pause");
        live.greeting(ms(3000), false);
        live.opened(ms(3001));
        assert!(!live.is_unavailable());
    }

    #[test]
    fn a_bridge_that_nobody_answers_has_failed() {
        let mut live = Liveness::new(ms(0));
        live.greeting(ms(0), false);
        assert_eq!(live.due(ms(1999), true), []);
        assert_eq!(live.due(ms(2000), true), [Act::Fail]);
        live.failed(ms(2000));
        assert_eq!(live.due(ms(2250), true), [Act::Wake, Act::Bridge]);
        live.greeting(ms(2300), false);
        assert_eq!(live.due(ms(4300), true), [Act::Fail]);
        live.failed(ms(4300));
        assert!(live.is_unavailable());
    }

    #[test]
    fn silence_counts_only_while_an_answer_is_due() {
        let mut live = Liveness::new(ms(0));
        live.greeting(ms(0), true);
        live.opened(ms(1));
        assert_eq!(live.next(false), None, "nothing to do while nothing runs");
        assert_eq!(live.next(true), Some(ms(1) + IDLE_PING));
        live.asked(ms(10));
        assert_eq!(live.due(ms(2009), true), []);
        assert_eq!(live.due(ms(2010), true), [Act::Wake, Act::Ping]);
        live.asked(ms(2010));
        assert_eq!(live.due(ms(4010), true), [Act::Bridge]);
        live.greeting(ms(4020), false);
        live.opened(ms(4021));
        live.asked(ms(4022));
        live.heard(ms(4023));
        assert_eq!(live.due(ms(9000), true), []);
        assert_eq!(live.due(ms(4023) + IDLE_PING, true), [Act::Ping]);
    }

    #[test]
    fn while_nothing_is_read_silence_means_nothing() {
        let mut live = Liveness::new(ms(0));
        live.greeting(ms(0), false);
        live.held_back(ms(1900));
        assert_eq!(live.due(ms(2000), true), []);
        assert_eq!(live.next(true), Some(ms(1900) + PATIENCE));
        live.opened(ms(2100));
        live.held_back(ms(2200));
        assert_eq!(live.next(false), None, "no answer is due");
        live.asked(ms(3000));
        live.held_back(ms(4900));
        assert_eq!(live.due(ms(6000), true), []);
        assert_eq!(
            live.due(ms(6900), true),
            [Act::Wake, Act::Ping],
            "read again"
        );
    }

    #[test]
    fn one_that_breaks_the_protocol_again_and_again_is_paused() {
        let mut live = Liveness::new(ms(0));
        let mut now = ms(0);
        let mut hellos = 0;
        for _ in 0..1000 {
            live.greeting(now, true);
            live.opened(now);
            let acts = live.broken(now);
            if acts.is_empty() {
                assert!(live.is_unavailable());
                now = live.next(true).unwrap();
                assert_eq!(live.due(now, true), [Act::Hello]);
            }
            hellos += 1;
            if now > ms(600_000) {
                break;
            }
        }
        assert!(hellos < 100, "{hellos} epochs in ten minutes");
        live.greeting(now, true);
        live.opened(now);
        let later = now + BREAKS_WITHIN * 2;
        assert_eq!(live.broken(later), [Act::Hello], "forgiven after a while");
        live.opened(later);
        assert!(!live.is_unavailable());
    }
}
