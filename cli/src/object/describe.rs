//! What `describe` prints.

use jiff::Timestamp;
use serde_json::Value;

use super::text::{age, scalar, table};
use super::{Object, field};

/// Column at which the values of the first level begin.
const INDENT: usize = 20;

/// All about a sandbox, for a person.
pub(crate) fn describe(object: &Object, now: Timestamp) -> String {
    let mut lines = Vec::new();
    let when = |pointer: &str| {
        let time = object.time(pointer)?;
        Some(if time > now {
            format!("{time} (in {})", age(now, time))
        } else {
            format!("{time} ({} ago)", age(time, now))
        })
    };
    for (title, value) in [
        ("Name", object.word("/metadata/name")),
        ("Namespace", object.word("/metadata/namespace")),
        ("UID", object.word("/metadata/uid")),
        ("Created", when("/metadata/creationTimestamp")),
        ("Deleted", when("/metadata/deletionTimestamp")),
        ("Status", Some(object.summary())),
        ("Node", object.word("/status/nodeName")),
        ("Started", when("/status/startedAt")),
        (
            "Expires",
            when("/status/expiresAt").filter(|_| !object.is_finished()),
        ),
        ("Image digest", object.word("/status/imageDigest")),
    ] {
        if let Some(value) = value {
            entry(&mut lines, 0, title, &value);
        }
    }
    for (title, pointer) in [
        ("Labels", "/metadata/labels"),
        ("Spec", "/spec"),
        ("Effective", "/status/effective"),
        ("Runtime", "/status/runtime"),
    ] {
        if let Some(value) = object.at(pointer) {
            tree(&mut lines, 0, title, value, pointer == "/metadata/labels");
        }
    }
    lines.extend(conditions(object, now));
    if let Some(value) = object.at("/status/termination") {
        tree(&mut lines, 0, "Termination", value, false);
    }
    lines.iter().flat_map(|line| [line, "\n"]).collect()
}

/// What was told of it as events, the oldest first; nothing where there are none.
pub(crate) fn events(events: &[Object], now: Timestamp) -> String {
    let when = |event: &Object| {
        ["/series/lastObservedTime", "/lastTimestamp", "/eventTime"]
            .into_iter()
            .find_map(|pointer| event.time(pointer))
    };
    let mut events: Vec<&Object> = events.iter().collect();
    events.sort_by_key(|event| when(event));
    let header = ["Type", "Reason", "Age", "From", "Message"].map(str::to_owned);
    let rows = events.iter().map(|event| {
        let word = |pointer| event.word(pointer).unwrap_or_default();
        let age = when(event).map_or_else(|| "<unknown>".to_owned(), |time| age(time, now));
        let count = event.at("/count").and_then(Value::as_u64).unwrap_or(1);
        let from = event
            .word("/reportingComponent")
            .filter(|from| !from.is_empty())
            .unwrap_or_else(|| word("/source/component"));
        vec![
            word("/type"),
            word("/reason"),
            if count > 1 {
                format!("{age} (x{count})")
            } else {
                age
            },
            from,
            word("/message"),
        ]
    });
    let rows: Vec<Vec<String>> = std::iter::once(header.to_vec()).chain(rows).collect();
    if rows.len() == 1 {
        return String::new();
    }
    let lines = table(&rows);
    std::iter::once("Events:\n".to_owned())
        .chain(lines.lines().map(|line| format!("  {line}\n")))
        .collect()
}

fn conditions(object: &Object, now: Timestamp) -> Vec<String> {
    if object.conditions().is_empty() {
        return Vec::new();
    }
    let header = ["Type", "Status", "Since", "Reason", "Message"].map(str::to_owned);
    let rows: Vec<Vec<String>> = std::iter::once(header.to_vec())
        .chain(object.conditions().iter().map(|condition| {
            let word = |name| field(condition, name).unwrap_or_default();
            let since = condition
                .get("lastTransitionTime")
                .and_then(Value::as_str)
                .and_then(|time| time.parse().ok())
                .map_or_else(|| "<unknown>".to_owned(), |since| age(since, now));
            vec![
                word("type"),
                word("status"),
                since,
                word("reason"),
                word("message"),
            ]
        }))
        .collect();
    let rows = table(&rows);
    std::iter::once("Conditions:".to_owned())
        .chain(rows.lines().map(|line| format!("  {line}")))
        .collect()
}

/// Any JSON as indented lines, field by field; `verbatim`: keys are data and not field names.
fn tree(lines: &mut Vec<String>, depth: usize, title: &str, value: &Value, verbatim: bool) {
    let blank = "  ".repeat(depth);
    match value {
        Value::Object(fields) => {
            lines.push(format!("{blank}{title}:"));
            for (key, value) in fields {
                let key = if verbatim {
                    super::plain(key)
                } else {
                    words(key)
                };
                tree(lines, depth + 1, &key, value, verbatim);
            }
        }
        Value::Array(items) if items.iter().all(|item| scalar(item).is_some()) => {
            let items: Vec<String> = items.iter().map(quoted).collect();
            entry(lines, depth, title, &items.join(" "));
        }
        Value::Array(items) => {
            lines.push(format!("{blank}{title}:"));
            for item in items {
                match (item.get("name").and_then(scalar), item.get("value")) {
                    // env
                    (Some(name), value) if item.as_object().is_some_and(|item| item.len() <= 2) => {
                        let value = value.and_then(scalar).unwrap_or_default();
                        lines.push(format!("{blank}  {name}={value}"));
                    }
                    _ => tree(lines, depth + 1, "-", item, verbatim),
                }
            }
        }
        Value::Null => {}
        Value::String(_) | Value::Number(_) | Value::Bool(_) => {
            entry(lines, depth, title, &scalar(value).unwrap_or_default());
        }
    }
}

fn entry(lines: &mut Vec<String>, depth: usize, title: &str, value: &str) {
    let blank = "  ".repeat(depth);
    let title = format!("{title}:");
    let width = INDENT.saturating_sub(blank.len());
    lines.push(format!("{blank}{title:width$} {value}"));
}

/// An argument as a shell would want it, so that its ends can be seen.
fn quoted(value: &Value) -> String {
    let word = scalar(value).unwrap_or_default();
    let simple = !word.is_empty()
        && word
            .chars()
            .all(|char| char.is_ascii_alphanumeric() || "-_./=:,@%+".contains(char));
    if simple {
        word
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// `ttlSeconds` as `Ttl seconds`.
fn words(key: &str) -> String {
    let mut text = String::new();
    for (index, char) in super::plain(key).chars().enumerate() {
        if index == 0 {
            text.extend(char.to_uppercase());
        } else if char.is_uppercase() {
            text.push(' ');
            text.extend(char.to_lowercase());
        } else {
            text.push(char);
        }
    }
    text
}
