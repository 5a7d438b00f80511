//! What a sandbox is called.

use super::{Violation, excerpt};
use crate::limits::LABEL;
use crate::sandbox::Sandbox;

/// `metadata.name` is a DNS label: it becomes a host name and part of paths.
pub(super) fn name(sandbox: &Sandbox) -> Vec<Violation> {
    label(
        "metadata.name",
        sandbox.metadata.name.as_deref().unwrap_or(""),
    )
    .into_iter()
    .collect()
}

/// `spec.hostname` is a DNS label.
pub(super) fn hostname(sandbox: &Sandbox) -> Vec<Violation> {
    let hostname = sandbox.spec.hostname.as_deref();
    hostname
        .and_then(|hostname| label("spec.hostname", hostname))
        .into_iter()
        .collect()
}

fn label(path: &str, text: &str) -> Option<Violation> {
    (!is_label(text)).then(|| {
        let message = format!(
            "{} is not a DNS label: write 1 to {LABEL} lower case letters, digits and -, beginning and ending with a \
             letter or digit",
            excerpt(text)
        );
        Violation::new(path, message)
    })
}

/// A DNS label of RFC 1123, in lower case.
pub(crate) fn is_label(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() <= LABEL
        && text.bytes().next().is_some_and(word)
        && text.bytes().last().is_some_and(word)
        && text.bytes().all(|byte| word(byte) || byte == b'-')
}
