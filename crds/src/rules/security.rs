//! As whom commands run, and with which rights.

use super::{Violation, excerpt};
use crate::limits::{MOST_ID, PATH as PATH_BYTES, SUPPLEMENTAL_GROUPS, WRITABLE_PATHS};
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
    repeated("capabilities", &list).collect()
}

/// Where writable paths make a difference, and lead to what is part of the root.
pub(super) fn writable_paths(sandbox: &Sandbox) -> Vec<Violation> {
    let context = context(sandbox);
    let list = context.writable_paths.unwrap_or_default();
    let field = format!("{PATH}.writablePaths");
    let is_read_only = context.read_only_root_filesystem == Some(true);
    let mut broken = Vec::new();
    if !list.is_empty() && !is_read_only {
        let message = "means nothing where the whole root can be written to: set readOnlyRootFilesystem, or leave it out";
        broken.push(Violation::new(&field, message));
    }
    if list.len() > WRITABLE_PATHS {
        let message = format!(
            "has {} entries; at most {WRITABLE_PATHS} are allowed",
            list.len()
        );
        broken.push(Violation::new(&field, message));
    }
    broken.extend(list.iter().enumerate().filter_map(|(index, path)| {
        Some(Violation::new(format!("{field}[{index}]"), refused(path)?))
    }));
    broken.extend(repeated("writablePaths", &list));
    broken
}

fn refused(path: &str) -> Option<String> {
    /// What is mounted in every sandbox.
    const MOUNTS: [&str; 4] = ["proc", "sys", "dev", ".cloche"];
    let plain = path.strip_prefix('/').unwrap_or_default();
    let first = plain.split('/').next().unwrap_or_default();
    if path.len() > PATH_BYTES {
        Some(format!(
            "has {} bytes; at most {PATH_BYTES} are allowed",
            path.len()
        ))
    } else if path.contains('\0') {
        Some("contains a NUL character, which no path can: take it out".to_owned())
    } else if plain.split('/').any(|part| matches!(part, "" | "." | "..")) {
        Some(format!(
            "{}: write an absolute path of plain names, as /var/cache",
            excerpt(path)
        ))
    } else if MOUNTS.contains(&first) {
        Some(format!(
            "{} is not part of the root file system: take it out",
            excerpt(path)
        ))
    } else {
        None
    }
}

/// Every entry of a list that stands in it before.
fn repeated<T: PartialEq>(field: &str, list: &[T]) -> impl Iterator<Item = Violation> {
    list.iter().enumerate().filter_map(move |(index, entry)| {
        let earlier = list[..index].iter().position(|other| other == entry)?;
        let message = format!("already stands in {PATH}.{field}[{earlier}]: take one out");
        Some(Violation::new(format!("{PATH}.{field}[{index}]"), message))
    })
}
