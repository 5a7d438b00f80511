//! Words, ages and tables.

use jiff::Timestamp;
use serde_json::Value;

/// `text` as one line, without what could move a terminal's cursor or change its state: it may come from inside a sandbox.
pub(crate) fn plain(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            // Bidirectional overrides too: they make a line read as another one.
            '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                line.push('\u{fffd}');
            }
            char if char.is_control() => line.push('\u{fffd}'),
            char => line.push(char),
        }
    }
    line
}

/// A string, number or truth value as a [`plain`] word.
pub(crate) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(plain(text)),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Time between two moments as kubectl writes it: `5s`, `3m10s`, `12m`, `5h3m`, `12h`, `3d4h`, `30d`, `2y3d`. A clock that
/// went back gives `0s`.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let pair = |large: i64, unit: char, small: i64, part: char| {
        if small == 0 {
            format!("{large}{unit}")
        } else {
            format!("{large}{unit}{small}{part}")
        }
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => pair(minutes, 'm', seconds % 60, 's'),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => pair(hours, 'h', minutes % 60, 'm'),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => pair(days, 'd', hours % 24, 'h'),
        () if days < 730 => format!("{days}d"),
        () => pair(days / 365, 'y', days % 365, 'd'),
    }
}

/// Columns three blanks apart, as kubectl's; no blanks at a line's end.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let widths = widths(rows);
    rows.iter().map(|row| line(row, &widths)).collect()
}

/// How wide each column is.
pub(crate) fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect()
}

/// One row of a table; a cell that is wider than its column moves those after it.
pub(crate) fn line(row: &[String], widths: &[usize]) -> String {
    let cells: Vec<String> = row
        .iter()
        .zip(widths)
        .map(|(cell, width)| format!("{cell:width$}"))
        .collect();
    let mut line = cells.join("   ").trim_end().to_owned();
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn ages_read_as_kubectls() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (seconds, text) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (190, "3m10s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * 3600, "3h"),
            (5 * 3600 + 180, "5h3m"),
            (9 * 3600 + 180, "9h"),
            (2 * 86400, "2d"),
            (3 * 86400 + 4 * 3600, "3d4h"),
            (9 * 86400, "9d"),
            (800 * 86400, "2y70d"),
        ] {
            assert_eq!(age(now - SignedDuration::from_secs(seconds), now), text);
        }
    }

    #[test]
    fn a_terminal_is_safe_from_words() {
        assert_eq!(
            plain("a\u{1b}[2J\r\n\u{9b}b\u{202e}é"),
            "a\u{fffd}[2J\\r\\n\u{fffd}b\u{fffd}é"
        );
    }
}
