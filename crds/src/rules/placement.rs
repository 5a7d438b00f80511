//! Which nodes may run a sandbox.

use std::collections::BTreeMap;

use super::{Violation, excerpt};
use crate::limits::{LABEL, LABEL_PREFIX, NODE_SELECTOR, TOLERATIONS};
use crate::sandbox::{Sandbox, Toleration, TolerationOperator};

/// `nodeSelector` is a bounded map of labels as Kubernetes writes them.
pub(super) fn node_selector(sandbox: &Sandbox) -> Vec<Violation> {
    const PATH: &str = "spec.nodeSelector";
    let selector = sandbox.spec.node_selector.as_ref();
    if selector.is_some_and(|selector| selector.len() > NODE_SELECTOR) {
        return vec![too_many(
            PATH,
            selector.map_or(0, BTreeMap::len),
            NODE_SELECTOR,
        )];
    }
    let mut broken = Vec::new();
    for (key, value) in selector.into_iter().flatten() {
        if !is_label_key(key) {
            broken.push(Violation::new(PATH, no_key(key)));
        }
        if !is_label_value(value) {
            broken.push(Violation::new(PATH, no_value(value)));
        }
    }
    broken
}

/// `tolerations` is a bounded list, each of a form that means something.
pub(super) fn tolerations(sandbox: &Sandbox) -> Vec<Violation> {
    const PATH: &str = "spec.tolerations";
    let tolerations = sandbox.spec.tolerations.as_deref().unwrap_or_default();
    if tolerations.len() > TOLERATIONS {
        return vec![too_many(PATH, tolerations.len(), TOLERATIONS)];
    }
    let each = tolerations.iter().enumerate();
    each.flat_map(|(index, toleration)| of_toleration(&format!("{PATH}[{index}]"), toleration))
        .collect()
}

fn of_toleration(path: &str, toleration: &Toleration) -> Vec<Violation> {
    let Toleration {
        key,
        operator,
        value,
        effect: _,
    } = toleration;
    let mut broken = Vec::new();
    if let Some(key) = key.as_deref().filter(|key| !is_label_key(key)) {
        broken.push(Violation::new(format!("{path}.key"), no_key(key)));
    }
    if let Some(value) = value.as_deref().filter(|value| !is_label_value(value)) {
        broken.push(Violation::new(format!("{path}.value"), no_value(value)));
    }
    let exists = *operator == Some(TolerationOperator::Exists);
    if key.is_none() && !exists {
        let message = "has no key: name one, or write operator Exists to tolerate every taint";
        broken.push(Violation::new(path, message));
    }
    if exists && value.is_some() {
        let message = "means nothing beside operator Exists: leave it out, or write operator Equal";
        broken.push(Violation::new(format!("{path}.value"), message));
    }
    broken
}

fn too_many(path: &str, found: usize, most: usize) -> Violation {
    Violation::new(
        path,
        format!("has {found} entries; at most {most} are allowed"),
    )
}

fn no_key(key: &str) -> String {
    format!(
        "{} is not a label's key: write 1 to {LABEL} letters, digits, -, _ and ., beginning and ending with a letter or digit, \
         after a DNS name and / if need be",
        excerpt(key)
    )
}

fn no_value(value: &str) -> String {
    format!(
        "{} is not a label's value: write at most {LABEL} letters, digits, -, _ and ., beginning and ending with a letter or \
         digit, or nothing",
        excerpt(value)
    )
}

/// `name` or `prefix/name` (Kubernetes: `IsQualifiedName`).
fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
        None => is_name(key),
    }
}

fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_name(value)
}

fn is_name(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.len() <= LABEL
        && text.bytes().all(inner)
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.ends_with(|last: char| last.is_ascii_alphanumeric())
}

/// A DNS subdomain (RFC 1123) in lower case, as most objects are named.
pub fn is_subdomain(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let part = |part: &str| {
        part.bytes().next().is_some_and(word)
            && part.bytes().last().is_some_and(word)
            && part.bytes().all(|byte| word(byte) || byte == b'-')
    };
    text.len() <= LABEL_PREFIX && text.split('.').all(part)
}
