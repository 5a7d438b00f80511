//! The rules that an object has to keep, each one function, and what a valid one means.
//!
//! Every rule looks at the whole object and names *all* that breaks it: a user mends a manifest once. Each is the twin of a rule
//! in the CRD's [`schema`](crate::schema); `tests/rules/*.yaml` is the table of what they accept and deny.

mod command;
mod environment;
mod lifecycle;
mod metadata;
mod placement;
mod resources;
mod security;
mod update;

use std::fmt;

pub use placement::is_subdomain;
pub use update::check_update;

use crate::limits::OBJECT_NAME;
use crate::sandbox::{Effective, Sandbox};

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The field: `spec.env[2].name`.
    pub path: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl Violation {
    pub(crate) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.path, self.message)
    }
}

/// Everything that is wrong with an object; never empty. Shown as one line for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violations(pub Vec<Violation>);

impl fmt::Display for Violations {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, violation) in self.0.iter().enumerate() {
            if index > 0 {
                formatter.write_str("\n")?;
            }
            violation.fmt(formatter)?;
        }
        Ok(())
    }
}

impl std::error::Error for Violations {}

/// One rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// How the table of accept and deny calls it.
    pub name: &'static str,
    /// All that breaks it.
    pub check: fn(&Sandbox) -> Vec<Violation>,
}

/// Every rule of a single object. What compares two is [`check_update`].
pub const RULES: [Rule; 31] = [
    Rule {
        name: "name",
        check: metadata::name,
    },
    Rule {
        name: "hostname",
        check: metadata::hostname,
    },
    Rule {
        name: "image",
        check: command::image,
    },
    Rule {
        name: "pull-policy",
        check: command::pull_policy,
    },
    Rule {
        name: "pull-secrets",
        check: command::pull_secrets,
    },
    Rule {
        name: "command",
        check: command::command,
    },
    Rule {
        name: "args",
        check: command::args,
    },
    Rule {
        name: "working-dir",
        check: command::working_dir,
    },
    Rule {
        name: "shell",
        check: command::shell,
    },
    Rule {
        name: "env-names",
        check: environment::names,
    },
    Rule {
        name: "env-unique",
        check: environment::unique,
    },
    Rule {
        name: "env-values",
        check: environment::values,
    },
    Rule {
        name: "env-sources",
        check: environment::sources,
    },
    Rule {
        name: "process-size",
        check: environment::process_size,
    },
    Rule {
        name: "cpu",
        check: resources::cpu,
    },
    Rule {
        name: "memory",
        check: resources::memory,
    },
    Rule {
        name: "ephemeral-storage",
        check: resources::ephemeral_storage,
    },
    Rule {
        name: "requests-within-limits",
        check: resources::requests_within_limits,
    },
    Rule {
        name: "pids",
        check: resources::pids,
    },
    Rule {
        name: "ids",
        check: security::ids,
    },
    Rule {
        name: "capabilities",
        check: security::capabilities,
    },
    Rule {
        name: "writable-paths",
        check: security::writable_paths,
    },
    Rule {
        name: "ttl",
        check: lifecycle::ttl,
    },
    Rule {
        name: "idle-timeout",
        check: lifecycle::idle_timeout,
    },
    Rule {
        name: "idle-action",
        check: lifecycle::idle_action,
    },
    Rule {
        name: "start-timeout",
        check: lifecycle::start_timeout,
    },
    Rule {
        name: "grace",
        check: lifecycle::grace,
    },
    Rule {
        name: "schedule-timeout",
        check: lifecycle::schedule_timeout,
    },
    Rule {
        name: "ttl-after-finished",
        check: lifecycle::ttl_after_finished,
    },
    Rule {
        name: "node-selector",
        check: placement::node_selector,
    },
    Rule {
        name: "tolerations",
        check: placement::tolerations,
    },
];

/// What the object means, or everything that is wrong with it.
pub fn validate(sandbox: &Sandbox) -> Result<Effective, Violations> {
    let broken: Vec<Violation> = RULES
        .iter()
        .flat_map(|rule| (rule.check)(sandbox))
        .collect();
    if broken.is_empty() {
        Effective::of(sandbox).map_err(|violation| Violations(vec![violation]))
    } else {
        Err(Violations(broken))
    }
}

/// What is said of a name that no object has.
fn no_object_name(name: &str) -> String {
    format!(
        "{} is not an object's name: write at most {OBJECT_NAME} lower-case letters, digits, - and .",
        excerpt(name)
    )
}

/// A few characters of a value that a user has to find again; never a whole secret or a megabyte.
pub(crate) fn excerpt(text: &str) -> String {
    const SHOWN: usize = 64;
    let mut characters = text.chars();
    let start: String = characters.by_ref().take(SHOWN).collect();
    if characters.next().is_some() {
        format!("{start:?}…")
    } else {
        format!("{start:?}")
    }
}
