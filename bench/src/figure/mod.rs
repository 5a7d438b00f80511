//! Figures: what was measured, of the agent and raw, and whether its goal is met. Pure.

mod samples;
mod table;

use anyhow::{Context as _, Result};
use serde::Serialize;

pub(crate) use samples::Samples;
pub(crate) use table::table;

/// What a figure is to be at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// This, in the figure's unit.
    AtMost(f64),
    /// The median and the 95th percentile, each its own.
    Within { median: f64, p95: f64 },
    /// This more than the raw median of the same run.
    AboveRaw(f64),
    /// Shown only.
    None,
}

/// One figure: less is better.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) measured: Samples,
    /// The same work done raw, where there is such.
    pub(crate) raw: Option<Samples>,
    pub(crate) goal: Goal,
}

impl Figure {
    fn raw_median(&self) -> Option<f64> {
        self.raw.as_ref().map(Samples::median)
    }

    /// The goal in the figure's unit.
    fn bound(&self) -> Option<f64> {
        match self.goal {
            Goal::AtMost(bound) | Goal::Within { median: bound, .. } => Some(bound),
            Goal::AboveRaw(more) => self.raw_median().map(|raw| raw + more),
            Goal::None => None,
        }
    }

    /// What the goal wants of the 95th percentile, where it wants something.
    fn bound_of_p95(&self) -> Option<f64> {
        match self.goal {
            Goal::Within { p95, .. } => Some(p95),
            Goal::AtMost(_) | Goal::AboveRaw(_) | Goal::None => None,
        }
    }

    /// Whether all that the goal is about is within it.
    fn is_met(&self) -> Option<bool> {
        let tail = self.bound_of_p95();
        self.bound().map(|bound| {
            self.measured.median() <= bound
                && tail.is_none_or(|bound| self.measured.percentile(95) <= bound)
        })
    }
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    unit: &'static str,
    min: f64,
    p50: f64,
    p95: f64,
    raw_p50: Option<f64>,
    goal: Option<f64>,
    /// Where the goal is about that, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    goal_p95: Option<f64>,
    met: Option<bool>,
}

/// The figures as a JSON list; `goal` and `met` are null where there is no goal.
pub(crate) fn json(figures: &[Figure]) -> Result<String> {
    let rows: Vec<Row> = figures
        .iter()
        .map(|figure| Row {
            name: figure.name,
            unit: figure.unit,
            min: rounded(figure.measured.least()),
            p50: rounded(figure.measured.median()),
            p95: rounded(figure.measured.percentile(95)),
            raw_p50: figure.raw_median().map(rounded),
            goal: figure.bound().map(rounded),
            goal_p95: figure.bound_of_p95().map(rounded),
            met: figure.is_met(),
        })
        .collect();
    let mut text = serde_json::to_string_pretty(&rows).context("encode the figures")?;
    text.push('\n');
    Ok(text)
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn figure(goal: Goal, measured: &[f64], raw: &[f64]) -> Figure {
        Figure {
            name: "start.started",
            unit: "ms",
            measured: Samples::new(measured.to_vec()).expect("not empty"),
            raw: Samples::new(raw.to_vec()).ok(),
            goal,
        }
    }

    #[test]
    fn a_goal_is_met_up_to_the_bound_itself() {
        let cases = [
            (Goal::AtMost(2.0), [1.0, 2.0, 9.0], Some((2.0, true))),
            (Goal::AtMost(1.9), [1.0, 2.0, 9.0], Some((1.9, false))),
            (Goal::AboveRaw(0.5), [1.0, 2.0, 9.0], Some((2.0, true))),
            (Goal::AboveRaw(0.5), [1.0, 2.1, 9.0], Some((2.0, false))),
            (
                Goal::Within {
                    median: 2.0,
                    p95: 9.0,
                },
                [1.0, 2.0, 9.0],
                Some((2.0, true)),
            ),
            (
                Goal::Within {
                    median: 2.0,
                    p95: 8.9,
                },
                [1.0, 2.0, 9.0],
                Some((2.0, false)),
            ),
            (Goal::None, [1.0, 2.0, 9.0], None),
        ];
        for (goal, measured, expected) in cases {
            let figure = figure(goal, &measured, &[1.0, 1.5, 7.0]);
            assert_eq!(figure.bound().zip(figure.is_met()), expected, "{goal:?}");
        }
        // Nothing to add to: no goal, rather than a wrong one.
        assert_eq!(figure(Goal::AboveRaw(1.0), &[1.0], &[]).is_met(), None);
    }

    #[test]
    fn json_is_a_list_of_all_figures() {
        let figures = [
            figure(Goal::AboveRaw(5.0), &[7.12345, 9.0, 8.0], &[3.0]),
            figure(Goal::None, &[1.0], &[]),
            figure(
                Goal::Within {
                    median: 25.0,
                    p95: 40.0,
                },
                &[30.0],
                &[],
            ),
        ];
        let list: serde_json::Value =
            serde_json::from_str(&json(&figures).expect("encoded")).expect("decoded");
        assert_eq!(
            list,
            serde_json::json!([
                {"name": "start.started", "unit": "ms", "min": 7.123, "p50": 8.0, "p95": 9.0, "raw_p50": 3.0,
                 "goal": 8.0, "met": true},
                {"name": "start.started", "unit": "ms", "min": 1.0, "p50": 1.0, "p95": 1.0, "raw_p50": null,
                 "goal": null, "met": null},
                {"name": "start.started", "unit": "ms", "min": 30.0, "p50": 30.0, "p95": 30.0, "raw_p50": null,
                 "goal": 25.0, "goal_p95": 40.0, "met": false},
            ])
        );
        assert_eq!(rounded(7.123_45).to_string(), "7.123");
    }
}
