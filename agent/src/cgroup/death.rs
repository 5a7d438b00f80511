//! Why an instance ended, from what the kernel counted and logged. Pure.
//!
//! | sentry | processes killed for memory | forks refused | panic log | verdict |
//! |---|---|---|---|---|
//! | lives | none | any | any | alive |
//! | lives | some | any | any | kill the group: the kernel took a stub (v1; `memory.oom.group` does it on v2) |
//! | gone | some | some | yes | `PidsExceeded`: the kernel did not kill the sentry, it gave up by itself |
//! | gone | some | otherwise | | by whose limit: own, `OomKilled`; any other, `Evicted` |
//! | gone | none | some | any | `PidsExceeded` |
//! | gone | none | none | any | `RuntimeCrashed` |
//!
//! **Whose limit.** A kill is counted in the group of its victim, whichever limit was met. On v2 the count of the own limit's
//! failures is exact. On v1 it is not: it also rises when dropping page cache was enough, so a sandbox that had written a big file and
//! was then killed for the budget of all would look like one that ate its own memory. The kernel's log names the limit; where it has
//! the line, the line decides. It may lack it: the log is a ring, and OOM reports are rate limited (10 in 5 s).

use super::Counters;

/// Why an instance ended without anybody having asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Its own memory limit.
    OomKilled,
    /// The memory of all instances, or of the machine, ran out.
    Evicted,
    /// Its pids limit.
    PidsExceeded,
    /// None of these.
    RuntimeCrashed,
}

/// What to conclude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing happened.
    Alive,
    /// The sentry lives without processes that it needs: kill the group, and ask again.
    KillGroup,
    /// It is over.
    Ended(Death),
}

/// Whose memory limit the kernel's log names for a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomLimit {
    /// The group's.
    Own,
    /// That of a group above it, or the machine's memory.
    Above,
}

/// What is known about an instance.
#[derive(Clone, Copy, Debug)]
pub struct Evidence {
    /// The sentry is gone (by its pidfd).
    pub sentry_gone: bool,
    /// Counters when it was known to be well; zeros for its whole life. A recent sample makes v1 more exact.
    pub before: Counters,
    /// Counters now. For a sentry that is gone: read after its end.
    pub after: Counters,
    /// The sentry left a panic log that is not empty.
    pub panicked: bool,
    /// [`oom_limit`] of the kernel's log.
    pub logged: Option<OomLimit>,
}

/// Decides. See the module's table.
pub fn verdict(evidence: &Evidence) -> Verdict {
    let Evidence {
        sentry_gone,
        before,
        after,
        panicked,
        logged,
    } = *evidence;
    let killed = after.oom_kills > before.oom_kills;
    let own_limit_hit = after.memory_limit_hits > before.memory_limit_hits;
    let forks_refused = after.pids_limit_hits > before.pids_limit_hits;
    match (sentry_gone, killed) {
        (false, false) => Verdict::Alive,
        (false, true) => Verdict::KillGroup,
        (true, true) if panicked && forks_refused => Verdict::Ended(Death::PidsExceeded),
        (true, true) => Verdict::Ended(match (logged, own_limit_hit) {
            // Without a hit of the own limit it was not the own limit, whatever a log says.
            (Some(OomLimit::Own) | None, true) => Death::OomKilled,
            (Some(OomLimit::Above), _) | (_, false) => Death::Evicted,
        }),
        (true, false) if forks_refused => Verdict::Ended(Death::PidsExceeded),
        (true, false) => Verdict::Ended(Death::RuntimeCrashed),
    }
}

/// Whose limit the first kill in the group at `path` (`/cloche/x`) met, from the lines of [`super::oom_lines`]. The first: what is
/// killed later is a consequence of it.
pub fn oom_limit(lines: &[String], path: &str) -> Option<OomLimit> {
    let inside = |group: &str| {
        group
            .strip_prefix(path)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    lines.iter().find_map(|line| {
        // The victim's name comes last and is not ours: nothing after `,task=` is looked at.
        let (line, _) = line.split_once(",task=")?;
        let (head, victim) = line.split_once(",task_memcg=")?;
        if !inside(victim) {
            return None;
        }
        let own = head
            .split_once(",oom_memcg=")
            .is_some_and(|(_, limit)| inside(limit));
        Some(if own { OomLimit::Own } else { OomLimit::Above })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(limit: &str, victim: &str) -> String {
        format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,{limit},task_memcg={victim},task=exe,pid=7,uid=0"
        )
    }

    #[test]
    fn the_log_names_the_limit() {
        let lines = [
            line("oom_memcg=/cloche", "/cloche/b"),
            line("oom_memcg=/cloche/a", "/cloche/a"),
            line("oom_memcg=/cloche", "/cloche/a"),
            line("global_oom", "/cloche/c"),
            line("oom_memcg=/cloche/d/x", "/cloche/d/x"),
        ];
        assert_eq!(oom_limit(&lines, "/cloche/a"), Some(OomLimit::Own));
        assert_eq!(oom_limit(&lines, "/cloche/b"), Some(OomLimit::Above));
        assert_eq!(oom_limit(&lines, "/cloche/c"), Some(OomLimit::Above));
        assert_eq!(oom_limit(&lines, "/cloche/d"), Some(OomLimit::Own));
        assert_eq!(oom_limit(&lines, "/cloche/e"), None);
        assert_eq!(oom_limit(&lines, "/cloche/"), None);
    }

    #[test]
    fn the_name_of_the_victim_cannot_forge_a_limit() {
        let forged = line("oom_memcg=/cloche", "/cloche/b").replace(
            "task=exe",
            "task=,oom_memcg=/cloche/b,task_memcg=/cloche/a,task=",
        );
        assert_eq!(
            oom_limit(std::slice::from_ref(&forged), "/cloche/b"),
            Some(OomLimit::Above)
        );
        assert_eq!(oom_limit(&[forged], "/cloche/a"), None);
    }

    #[test]
    fn the_table() {
        use Death::{Evicted, OomKilled, PidsExceeded, RuntimeCrashed};
        use OomLimit::{Above, Own};
        let ended = Verdict::Ended;
        for (gone, kills, hits, forks, panicked, logged, wanted) in [
            (false, 0, 9, 9, true, None, Verdict::Alive),
            (false, 1, 0, 0, false, Some(Above), Verdict::KillGroup),
            (false, 1, 1, 0, false, Some(Own), Verdict::KillGroup),
            (true, 1, 1, 0, false, None, ended(OomKilled)),
            (true, 1, 1, 0, false, Some(Own), ended(OomKilled)),
            (true, 1, 1, 0, true, Some(Own), ended(OomKilled)),
            (true, 1, 1, 3, false, Some(Own), ended(OomKilled)),
            // Page cache had met the own limit; the budget of all was what killed.
            (true, 1, 99, 0, false, Some(Above), ended(Evicted)),
            (true, 1, 0, 0, false, None, ended(Evicted)),
            (true, 1, 0, 0, false, Some(Above), ended(Evicted)),
            (true, 1, 0, 0, false, Some(Own), ended(Evicted)),
            (true, 1, 1, 3, true, Some(Own), ended(PidsExceeded)),
            (true, 0, 0, 3, true, None, ended(PidsExceeded)),
            (true, 0, 9, 3, false, None, ended(PidsExceeded)),
            (true, 0, 9, 0, true, None, ended(RuntimeCrashed)),
            (true, 0, 9, 0, false, Some(Own), ended(RuntimeCrashed)),
        ] {
            let before = Counters {
                oom_kills: 5,
                memory_limit_hits: 50,
                pids_limit_hits: 500,
                ..Counters::default()
            };
            let evidence = Evidence {
                sentry_gone: gone,
                before,
                after: Counters {
                    oom_kills: 5 + kills,
                    memory_limit_hits: 50 + hits,
                    pids_limit_hits: 500 + forks,
                    ..before
                },
                panicked,
                logged,
            };
            assert_eq!(verdict(&evidence), wanted, "{evidence:?}");
        }
    }

    proptest! {
        #[test]
        fn blame_needs_proof(
            kills in 0u64..3, hits in 0u64..3, forks in 0u64..3, gone: bool, panicked: bool,
            logged in prop::option::of(prop::bool::ANY.prop_map(|own| if own { OomLimit::Own } else { OomLimit::Above })),
        ) {
            let after = Counters { oom_kills: kills, memory_limit_hits: hits, pids_limit_hits: forks, ..Counters::default() };
            let verdict = verdict(&Evidence { sentry_gone: gone, before: Counters::default(), after, panicked, logged });
            prop_assert_eq!(matches!(verdict, Verdict::Ended(_)), gone);
            if verdict == Verdict::Ended(Death::OomKilled) {
                prop_assert!(kills > 0 && hits > 0 && logged != Some(OomLimit::Above));
            }
            if verdict == Verdict::Ended(Death::PidsExceeded) {
                prop_assert!(forks > 0);
            }
        }

        #[test]
        fn never_panics(lines in prop::collection::vec("(,task=|,task_memcg=|,oom_memcg=|/a|.){0,12}", 0..4)) {
            let _ = oom_limit(&lines, "/a");
        }
    }
}
