//! As whom commands run, and with which rights.

use super::Violation;
use crate::limits::{MOST_ID, SUPPLEMENTAL_GROUPS};
use crate::sandbox::{Sandbox, SecurityContext};

const PATH: &str = "spec.securityContext";

fn context(sandbox: &Sandbox) -> SecurityContext {
    sandbox.spec.security_context.clone().unwrap_or_default()
}

/// User and groups are ids that Linux has.
pub(super) fn ids(sandbox: &Sandbox) -> Vec<Violation> {
    let context = context(sandbox);
    let groups = context.supplemental_groups.unwrap_or_default();
    let one = |name: &str, id: Option<i64>| Some((format!("{PATH}.{name}"), id?));
    let mut broken: Vec<_> = [
        one("runAsUser", context.run_as_user),
        one("runAsGroup", context.run_as_group),
    ]
    .into_iter()
    .flatten()
    .chain(groups.iter().enumerate().map(|(index, id)| {
        let path = format!("{PATH}.supplementalGroups[{index}]");
        (path, *id)
    }))
    .filter(|(_, id)| !(0..=MOST_ID).contains(id))
    .map(|(path, id)| Violation::new(path, format!("is {id}: write a number from 0 to {MOST_ID}")))
    .collect();
    if groups.len() > SUPPLEMENTAL_GROUPS {
        let message = format!(
            "has {} entries; at most {SUPPLEMENTAL_GROUPS} are allowed",
            groups.len()
        );
        broken.push(Violation::new(
            format!("{PATH}.supplementalGroups"),
            message,
        ));
    }
    broken
}

/// No capability stands twice.
pub(super) fn capabilities(sandbox: &Sandbox) -> Vec<Violation> {
    let list = context(sandbox).capabilities.unwrap_or_default();
    let earlier = |index: usize| list[..index].iter().position(|other| *other == list[index]);
    (0..list.len())
        .filter_map(|index| {
            let path = format!("{PATH}.capabilities[{index}]");
            let message = format!(
                "already stands in {PATH}.capabilities[{}]: take one out",
                earlier(index)?
            );
            Some(Violation::new(path, message))
        })
        .collect()
}
