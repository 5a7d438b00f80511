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
            Goal::AtMost(bound) => Some(bound),
            Goal::AboveRaw(more) => self.raw_median().map(|raw| raw + more),
            Goal::None => None,
        }
    }

    /// Whether the median is within the goal.
    fn is_met(&self) -> Option<bool> {
        self.bound().map(|bound| self.measured.median() <= bound)
    }
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    unit: &'static str,
    p50: f64,
    p95: f64,
    raw_p50: Option<f64>,
    goal: f64,
    met: bool,
}

/// The figures that have a goal, as a JSON list.
pub(crate) fn json(figures: &[Figure]) -> Result<String> {
    let rows: Vec<Row> = figures
        .iter()
        .filter_map(|figure| {
            Some(Row {
                name: figure.name,
                unit: figure.unit,
                p50: rounded(figure.measured.median()),
                p95: rounded(figure.measured.percentile(95)),
                raw_p50: figure.raw_median().map(rounded),
                goal: rounded(figure.bound()?),
                met: figure.is_met()?,
            })
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
    fn a_goal_is_met_by_the_median_up_to_the_bound_itself() {
        let cases = [
            (Goal::AtMost(2.0), [1.0, 2.0, 9.0], Some((2.0, true))),
            (Goal::AtMost(1.9), [1.0, 2.0, 9.0], Some((1.9, false))),
            (Goal::AboveRaw(0.5), [1.0, 2.0, 9.0], Some((2.0, true))),
            (Goal::AboveRaw(0.5), [1.0, 2.1, 9.0], Some((2.0, false))),
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
    fn json_is_a_list_of_what_has_a_goal() {
        let figures = [
            figure(Goal::AboveRaw(5.0), &[7.12345, 9.0, 8.0], &[3.0]),
            figure(Goal::None, &[1.0], &[]),
            figure(Goal::AtMost(25.0), &[30.0], &[]),
        ];
        let list: serde_json::Value =
            serde_json::from_str(&json(&figures).expect("encoded")).expect("decoded");
        assert_eq!(
            list,
            serde_json::json!([
                {"name": "start.started", "unit": "ms", "p50": 8.0, "p95": 9.0, "raw_p50": 3.0, "goal": 8.0, "met": true},
                {"name": "start.started", "unit": "ms", "p50": 30.0, "p95": 30.0, "raw_p50": null, "goal": 25.0, "met": false},
            ])
        );
        assert_eq!(rounded(7.123_45).to_string(), "7.123");
    }
}
