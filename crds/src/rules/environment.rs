//! The environment of what runs.

use std::collections::HashMap;

use super::placement::is_subdomain;
use super::{Violation, excerpt, no_object_name};
use crate::limits::{ENV, ENV_NAME, ENV_VALUE, OBJECT_NAME, PROCESS_BYTES};
use crate::sandbox::{EnvVar, EnvVarSource, KeyRef, Sandbox};

fn env(sandbox: &Sandbox) -> &[EnvVar] {
    sandbox.spec.env.as_deref().unwrap_or(&[])
}

/// There are not too many variables and each has a name that a shell and Kubernetes take.
pub(super) fn names(sandbox: &Sandbox) -> Vec<Violation> {
    let mut broken = Vec::new();
    let count = env(sandbox).len();
    if count > ENV {
        let message = format!("has {count} entries; at most {ENV} are allowed");
        broken.push(Violation::new("spec.env", message));
    }
    for (index, variable) in env(sandbox).iter().enumerate() {
        if !is_name(&variable.name) {
            let message = format!(
                "{} is not a name of a variable: write 1 to {ENV_NAME} letters, digits, _ . and -, not beginning with a digit",
                excerpt(&variable.name)
            );
            broken.push(Violation::new(format!("spec.env[{index}].name"), message));
        }
    }
    broken
}

/// No two variables have one name: which of them counts would be a guess.
pub(super) fn unique(sandbox: &Sandbox) -> Vec<Violation> {
    let mut seen = HashMap::new();
    let mut broken = Vec::new();
    for (index, variable) in env(sandbox).iter().enumerate() {
        if let Some(first) = seen.get(variable.name.as_str()) {
            let message = format!(
                "{} is already set by spec.env[{first}]: keep one",
                excerpt(&variable.name)
            );
            broken.push(Violation::new(format!("spec.env[{index}].name"), message));
        } else {
            seen.insert(variable.name.as_str(), index);
        }
    }
    broken
}

/// Values are of what Linux can take. They may be secrets: no message shows one.
pub(super) fn values(sandbox: &Sandbox) -> Vec<Violation> {
    let mut broken = Vec::new();
    for (index, variable) in env(sandbox).iter().enumerate() {
        let value = variable.value.as_deref().unwrap_or("");
        let path = || format!("spec.env[{index}].value");
        if value.len() > ENV_VALUE {
            let message = format!("has {} bytes; at most {ENV_VALUE} are allowed", value.len());
            broken.push(Violation::new(path(), message));
        }
        if value.contains('\0') {
            let message = "contains a NUL character, which no variable can: take it out";
            broken.push(Violation::new(path(), message));
        }
    }
    broken
}

/// A value stands in one place, and a key that it is taken from can exist.
pub(super) fn sources(sandbox: &Sandbox) -> Vec<Violation> {
    let mut broken = Vec::new();
    for (index, variable) in env(sandbox).iter().enumerate() {
        let Some(source) = &variable.value_from else {
            continue;
        };
        let path = format!("spec.env[{index}]");
        if variable.value.is_some() {
            let message = "has both value and valueFrom: keep one";
            broken.push(Violation::new(&path, message));
        }
        broken.extend(of_source(&format!("{path}.valueFrom"), source));
    }
    broken
}

fn of_source(path: &str, source: &EnvVarSource) -> Vec<Violation> {
    let EnvVarSource {
        secret_key_ref,
        config_map_key_ref,
    } = source;
    match (secret_key_ref, config_map_key_ref) {
        (Some(key), None) => of_key(&format!("{path}.secretKeyRef"), key),
        (None, Some(key)) => of_key(&format!("{path}.configMapKeyRef"), key),
        (None, None) | (Some(_), Some(_)) => {
            let message = "names not exactly one of secretKeyRef and configMapKeyRef: write one";
            vec![Violation::new(path, message)]
        }
    }
}

fn of_key(path: &str, reference: &KeyRef) -> Vec<Violation> {
    let KeyRef {
        name,
        key,
        optional: _,
    } = reference;
    let mut broken = Vec::new();
    if !is_subdomain(name) {
        broken.push(Violation::new(format!("{path}.name"), no_object_name(name)));
    }
    if !is_key(key) {
        let message = format!(
            "{} is not a key: write 1 to {OBJECT_NAME} letters, digits, -, _ and ., neither . nor .. nor beginning with ..",
            excerpt(key)
        );
        broken.push(Violation::new(format!("{path}.key"), message));
    }
    broken
}

/// Command, arguments and environment together fit into what a process can be started with.
pub(super) fn process_size(sandbox: &Sandbox) -> Vec<Violation> {
    let spec = &sandbox.spec;
    let arguments = [&spec.command, &spec.args].into_iter().flatten().flatten();
    let variables = env(sandbox).iter();
    let total: usize = arguments.map(|argument| argument.len() + 1).sum::<usize>()
        + variables
            .map(|v| v.name.len() + v.value.as_ref().map_or(0, String::len) + 2)
            .sum::<usize>();
    if total <= PROCESS_BYTES {
        return Vec::new();
    }
    let message = format!(
        "command, args and env have {total} bytes together; at most {PROCESS_BYTES} are allowed: put long text into a file"
    );
    vec![Violation::new("spec", message)]
}

/// `[-._a-zA-Z][-._a-zA-Z0-9]*`, the names that Kubernetes has always taken.
fn is_name(text: &str) -> bool {
    let start = |byte: u8| byte.is_ascii_alphabetic() || b"._-".contains(&byte);
    text.len() <= ENV_NAME
        && text.bytes().next().is_some_and(start)
        && text
            .bytes()
            .all(|byte| start(byte) || byte.is_ascii_digit())
}

/// A key of a Secret or `ConfigMap` (Kubernetes: `IsConfigMapKey`).
fn is_key(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=OBJECT_NAME).contains(&text.len())
        && text.bytes().all(inner)
        && text != "."
        && !text.starts_with("..")
}
