//! How long a sandbox may take to start, live and end.

use super::Violation;
use crate::limits::{MOST_GRACE_SECONDS, MOST_START_TIMEOUT_SECONDS, MOST_TTL_SECONDS};
use crate::sandbox::{Lifecycle, Sandbox};

/// `ttlSeconds` is a time.
pub(super) fn ttl(sandbox: &Sandbox) -> Vec<Violation> {
    seconds(
        sandbox,
        "ttlSeconds",
        |lifecycle| lifecycle.ttl_seconds,
        MOST_TTL_SECONDS,
    )
}

/// `idleTimeoutSeconds` is a time.
pub(super) fn idle_timeout(sandbox: &Sandbox) -> Vec<Violation> {
    seconds(
        sandbox,
        "idleTimeoutSeconds",
        |lifecycle| lifecycle.idle_timeout_seconds,
        MOST_TTL_SECONDS,
    )
}

/// What becomes of it when it is idle means nothing without a time.
pub(super) fn idle_action(sandbox: &Sandbox) -> Vec<Violation> {
    let lifecycle = sandbox.spec.lifecycle.clone().unwrap_or_default();
    match (lifecycle.idle_timeout_seconds, lifecycle.idle_action) {
        (None, Some(_)) => vec![Violation::new(
            "spec.lifecycle.idleTimeoutSeconds",
            "is missing: say when the sandbox counts as idle, or leave idleAction out",
        )],
        (Some(_), Some(_) | None) | (None, None) => Vec::new(),
    }
}

/// `startTimeoutSeconds` is a time.
pub(super) fn start_timeout(sandbox: &Sandbox) -> Vec<Violation> {
    seconds(
        sandbox,
        "startTimeoutSeconds",
        |lifecycle| lifecycle.start_timeout_seconds,
        MOST_START_TIMEOUT_SECONDS,
    )
}

/// `terminationGracePeriodSeconds` is a time.
pub(super) fn grace(sandbox: &Sandbox) -> Vec<Violation> {
    seconds(
        sandbox,
        "terminationGracePeriodSeconds",
        |lifecycle| lifecycle.termination_grace_period_seconds,
        MOST_GRACE_SECONDS,
    )
}

/// `scheduleTimeoutSeconds` is a time.
pub(super) fn schedule_timeout(sandbox: &Sandbox) -> Vec<Violation> {
    seconds(
        sandbox,
        "scheduleTimeoutSeconds",
        |lifecycle| lifecycle.schedule_timeout_seconds,
        MOST_TTL_SECONDS,
    )
}

/// `ttlSecondsAfterFinished` is a time.
pub(super) fn ttl_after_finished(sandbox: &Sandbox) -> Vec<Violation> {
    seconds(
        sandbox,
        "ttlSecondsAfterFinished",
        |lifecycle| lifecycle.ttl_seconds_after_finished,
        MOST_TTL_SECONDS,
    )
}

fn seconds(
    sandbox: &Sandbox,
    field: &str,
    read: fn(&Lifecycle) -> Option<i64>,
    most: i64,
) -> Vec<Violation> {
    match sandbox.spec.lifecycle.as_ref().and_then(read) {
        Some(value) if !(1..=most).contains(&value) => {
            let message = format!(
                "is {value}: write seconds from 1 to {most}, or leave it out for the default"
            );
            vec![Violation::new(format!("spec.lifecycle.{field}"), message)]
        }
        Some(_) | None => Vec::new(),
    }
}
