//! Figures as a table for a person.

use super::{Figure, Samples};

const HEAD: [&str; 11] = [
    "figure", "unit", "n", "min", "median", "p95", "raw min", "raw", "ratio", "goal", "met",
];

/// One line for each figure, columns aligned.
pub(crate) fn table(figures: &[Figure]) -> String {
    let lines: Vec<[String; HEAD.len()]> = std::iter::once(HEAD.map(str::to_owned))
        .chain(figures.iter().map(line))
        .collect();
    let widths: Vec<usize> = (0..HEAD.len())
        .map(|at| lines.iter().map(|line| line[at].len()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for line in &lines {
        let cells: Vec<String> = line
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(at, (cell, width))| match at {
                // Names to the left, numbers to the right.
                0 | 1 | 10 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn line(figure: &Figure) -> [String; HEAD.len()] {
    let number = |value: f64| format!("{value:.2}");
    let or_dash = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
    let raw = figure.raw.as_ref().map(Samples::median);
    let median = figure.measured.median();
    let met = match figure.is_met() {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "-",
    };
    [
        figure.name.to_owned(),
        figure.unit.to_owned(),
        figure.measured.count().to_string(),
        number(figure.measured.least()),
        number(median),
        number(figure.measured.percentile(95)),
        or_dash(figure.raw.as_ref().map(Samples::least)),
        or_dash(raw),
        or_dash(raw.filter(|raw| *raw > 0.0).map(|raw| median / raw)),
        match (figure.bound(), figure.bound_of_p95()) {
            (Some(median), Some(p95)) => format!("{median:.0}, p95 {p95:.0}"),
            (bound, _) => or_dash(bound),
        },
        met.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::Goal;
    use super::super::tests::figure;
    use super::*;

    #[test]
    fn columns_are_aligned_and_what_is_missing_is_a_dash() {
        let figures = [
            figure(Goal::AboveRaw(5.0), &[12.0, 10.0, 11.0], &[4.0, 3.0, 5.0]),
            figure(Goal::None, &[100.0], &[]),
        ];
        assert_eq!(
            table(&figures),
            "figure         unit  n     min  median     p95  raw min   raw  ratio  goal  met\n\
             start.started  ms    3   10.00   11.00   12.00     3.00  4.00   2.75  9.00  NO\n\
             start.started  ms    1  100.00  100.00  100.00        -     -      -     -  -\n"
        );
    }
}
