//! What the lanes found: libtest's summaries, summed.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

/// Tests and checks by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    /// Tests that were not run. There is no good reason for one, so it is as bad as a failure.
    pub(super) ignored: u64,
}

impl Counts {
    pub(super) fn success() -> Self {
        Self {
            passed: 1,
            ..Self::default()
        }
    }

    pub(super) fn failure() -> Self {
        Self {
            failed: 1,
            ..Self::default()
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// The sum of the summaries in a test program's output; `None` when there is none, because the program died before.
///
/// A summary is libtest's line `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; ...`.
pub(super) fn summaries(output: &str) -> Option<Counts> {
    output
        .lines()
        .filter_map(summary)
        .reduce(|mut sum, counts| {
            sum += counts;
            sum
        })
}

fn summary(line: &str) -> Option<Counts> {
    let (verdict, fields) = line.strip_prefix("test result: ")?.split_once(". ")?;
    if !["ok", "FAILED"].contains(&verdict) {
        return None;
    }
    let count = |name: &str| {
        fields.split(';').find_map(|field| {
            let (number, what) = field.trim().split_once(' ')?;
            (what == name).then(|| number.parse().ok())?
        })
    };
    Some(Counts {
        passed: count("passed")?,
        failed: count("failed")?,
        ignored: count("ignored")?,
    })
}

/// One row per lane.
#[derive(Debug, Default)]
pub(super) struct Report {
    lanes: Vec<(&'static str, Counts, Duration)>,
}

impl Report {
    /// A lane that found nothing to run has failed: the tests were not found.
    pub(super) fn add(&mut self, lane: &'static str, mut counts: Counts, took: Duration) {
        if counts == Counts::default() {
            println!("lane {lane}: FAILED: it ran no test");
            counts = Counts::failure();
        }
        self.lanes.push((lane, counts, took));
    }

    pub(super) fn is_good(&self) -> bool {
        let total = self.total();
        total.passed > 0 && total.failed == 0 && total.ignored == 0
    }

    fn total(&self) -> Counts {
        let mut total = Counts::default();
        for (_, counts, _) in &self.lanes {
            total += *counts;
        }
        total
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<8} {:>6} {:>6} {:>7}",
            "lane", "passed", "failed", "minutes"
        )?;
        for (lane, counts, took) in &self.lanes {
            let minutes = took.as_secs_f64() / 60.0;
            let Counts { passed, failed, .. } = counts;
            writeln!(f, "{lane:<8} {passed:>6} {failed:>6} {minutes:>7.1}")?;
        }
        let Counts {
            passed,
            failed,
            ignored,
        } = self.total();
        if ignored > 0 {
            writeln!(f, "{ignored} ignored: no test may be skipped")?;
        }
        writeln!(f, "{passed} passed, {failed} failed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u64, failed: u64, ignored: u64) -> Counts {
        Counts {
            passed,
            failed,
            ignored,
        }
    }

    #[test]
    fn summaries_are_found_and_summed() {
        let cases = [
            ("", None),
            ("running 3 tests\ntest a ... ok\n", None),
            (
                "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s\n",
                Some(counts(3, 0, 1)),
            ),
            (
                "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 3.20s\n\
                 noise\n\
                 test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
                Some(counts(1, 2, 0)),
            ),
            ("test result: ok. many passed; 0 failed; 0 ignored;", None),
            ("test result: ok.", None),
            ("test result: maybe. 3 passed; 0 failed; 0 ignored", None),
            (" test result: ok. 3 passed; 0 failed; 0 ignored", None),
        ];
        for (output, expected) in cases {
            assert_eq!(summaries(output), expected, "{output:?}");
        }
    }

    #[test]
    fn the_closing_line_is_plain_and_last() {
        let mut report = Report::default();
        report.add("static", counts(7, 0, 0), Duration::from_secs(90));
        report.add("unit", counts(120, 0, 0), Duration::from_secs(6));
        assert!(report.is_good());
        assert_eq!(
            report.to_string(),
            "lane     passed failed minutes\n\
             static        7      0     1.5\n\
             unit        120      0     0.1\n\
             127 passed, 0 failed\n"
        );
    }

    #[test]
    fn failures_skips_and_nothing_are_bad() {
        for (bad, last) in [
            (counts(1, 1, 0), "1 passed, 1 failed"),
            (counts(1, 0, 1), "1 passed, 0 failed"),
            (counts(0, 0, 0), "0 passed, 1 failed"),
        ] {
            let mut report = Report::default();
            report.add("unit", bad, Duration::ZERO);
            assert!(!report.is_good(), "{bad:?}");
            assert_eq!(report.to_string().lines().last(), Some(last));
        }
        assert!(!Report::default().is_good());
    }
}
