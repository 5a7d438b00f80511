//! What `top` prints.

use cloche_crds::quantity::Quantity;
use serde::Deserialize;

use super::{Object, text};

/// What a sandbox uses. Source: `SandboxUsage` of the group `subresources.cloche.dev`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Usage {
    /// Thousandths of a core over the last seconds.
    pub(crate) cpu_millicores: Option<u64>,
    /// In bytes.
    pub(crate) memory_bytes: u64,
    /// In bytes.
    pub(crate) disk_bytes: Option<u64>,
    /// Of the node.
    pub(crate) processes: u64,
}

/// One line for each.
pub(crate) fn table(told: &[(Object, Usage)], namespaces: bool) -> String {
    let mut header = vec![
        "NAME",
        "CPU(cores)",
        "CPU%",
        "MEMORY(bytes)",
        "MEMORY%",
        "DISK(bytes)",
        "DISK%",
        "PROCESSES",
    ];
    if namespaces {
        header.insert(0, "NAMESPACE");
    }
    let header = header.into_iter().map(str::to_owned).collect();
    let rows = told.iter().map(|(object, usage)| {
        let mut row = row(object, usage);
        if namespaces {
            row.insert(0, object.word("/metadata/namespace").unwrap_or_default());
        }
        row
    });
    text::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>())
}

fn row(object: &Object, usage: &Usage) -> Vec<String> {
    let limit = |name: &str| {
        object
            .word(&format!("/status/effective/resources/limits/{name}"))
            .map(Quantity)
    };
    let bytes = |name: &str| Some(limit(name)?.bytes().ok()?.0);
    let cpu = || Some(limit("cpu")?.millicores().ok()?.0);
    let share = |used: Option<u64>, limit: Option<u64>| match (used, limit) {
        (Some(used), Some(limit)) if limit > 0 => {
            format!("{}%", u128::from(used) * 100 / u128::from(limit))
        }
        _ => unknown(),
    };
    let amount = |used: Option<u64>| used.map_or_else(unknown, mebibytes);
    vec![
        object.name(),
        usage
            .cpu_millicores
            .map_or_else(unknown, |millis| format!("{millis}m")),
        share(usage.cpu_millicores, cpu()),
        amount(Some(usage.memory_bytes)),
        share(Some(usage.memory_bytes), bytes("memory")),
        amount(usage.disk_bytes),
        share(usage.disk_bytes, bytes("ephemeral-storage")),
        usage.processes.to_string(),
    ]
}

fn unknown() -> String {
    "<unknown>".to_owned()
}

/// As `kubectl top` writes it: whole mebibytes, rounded up so that what is there is not shown as nothing.
fn mebibytes(bytes: u64) -> String {
    format!("{}Mi", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::super::tests::object;
    use super::*;

    #[test]
    fn amounts_stand_beside_their_share_of_the_limits() {
        let of = |name: &str| {
            object(&format!(
                "{{metadata: {{name: {name}, namespace: team}}, status: {{effective: {{resources: {{limits: {{cpu: '2', memory: 512Mi, ephemeral-storage: 1Gi}}}}}}}}}}"
            ))
        };
        let told = [
            (
                of("busy"),
                Usage {
                    cpu_millicores: Some(1500),
                    memory_bytes: 128 << 20,
                    disk_bytes: Some(1),
                    processes: 12,
                },
            ),
            (of("new"), Usage::default()),
        ];
        assert_eq!(
            table(&told, true),
            "NAMESPACE   NAME   CPU(cores)   CPU%        MEMORY(bytes)   MEMORY%   DISK(bytes)   DISK%       PROCESSES\n\
             team        busy   1500m        75%         128Mi           25%       1Mi           0%          12\n\
             team        new    <unknown>    <unknown>   0Mi             0%        <unknown>     <unknown>   0\n"
        );
    }
}
