//! As whom commands run, and with which rights.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// As whom every command of the sandbox runs, and with which rights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecurityContext {
    /// User id. Default: the image's user, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_user: Option<i64>,
    /// Group id. Default: that of the user in the image's /etc/passwd, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_group: Option<i64>,
    /// Group ids beside it, and beside those of the user in the image's /etc/group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supplemental_groups: Option<Vec<i64>>,
    /// Whether only /tmp and `writablePaths` can be written to, besides /dev. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only_root_filesystem: Option<bool>,
    /// Absolute paths that stay writable where the root is read-only, with all below them. What is missing is made: directories that
    /// everybody may write to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writable_paths: Option<Vec<String>>,
    /// Whether a program can get more rights than the command that starts it (setuid, file capabilities). Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_privilege_escalation: Option<bool>,
    /// Exactly these, for root; other users get them by setuid programs alone. Default: all of them; an empty list is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<Capability>>,
}

/// A capability of Linux, without its `CAP_`: the default ones of container engines. Not `NET_RAW`, with which packets go out under any
/// address, and none by which a guest would take hold of what keeps its own commands apart.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Capability {
    /// Write to the kernel's audit log.
    AuditWrite,
    /// Give files to anybody.
    Chown,
    /// Read, write and execute whatever a file's mode says.
    DacOverride,
    /// Do to any file what its owner may.
    Fowner,
    /// Keep setuid and setgid bits when a file changes.
    Fsetid,
    /// Signal any process.
    Kill,
    /// Make device files.
    Mknod,
    /// Listen at ports below 1024.
    NetBindService,
    /// Give capabilities to files.
    Setfcap,
    /// Become any group.
    Setgid,
    /// Hand on and drop capabilities.
    Setpcap,
    /// Become any user.
    Setuid,
    /// Change the root directory.
    SysChroot,
}

impl Capability {
    /// All that there are.
    pub const ALL: [Self; 13] = [
        Self::AuditWrite,
        Self::Chown,
        Self::DacOverride,
        Self::Fowner,
        Self::Fsetid,
        Self::Kill,
        Self::Mknod,
        Self::NetBindService,
        Self::Setfcap,
        Self::Setgid,
        Self::Setpcap,
        Self::Setuid,
        Self::SysChroot,
    ];

    /// Its name in a manifest.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AuditWrite => "AUDIT_WRITE",
            Self::Chown => "CHOWN",
            Self::DacOverride => "DAC_OVERRIDE",
            Self::Fowner => "FOWNER",
            Self::Fsetid => "FSETID",
            Self::Kill => "KILL",
            Self::Mknod => "MKNOD",
            Self::NetBindService => "NET_BIND_SERVICE",
            Self::Setfcap => "SETFCAP",
            Self::Setgid => "SETGID",
            Self::Setpcap => "SETPCAP",
            Self::Setuid => "SETUID",
            Self::SysChroot => "SYS_CHROOT",
        }
    }

    /// Its bit number in the kernel's sets. Source: linux/capability.h.
    pub const fn number(self) -> u32 {
        match self {
            Self::Chown => 0,
            Self::DacOverride => 1,
            Self::Fowner => 3,
            Self::Fsetid => 4,
            Self::Kill => 5,
            Self::Setgid => 6,
            Self::Setuid => 7,
            Self::Setpcap => 8,
            Self::NetBindService => 10,
            Self::SysChroot => 18,
            Self::Mknod => 27,
            Self::AuditWrite => 29,
            Self::Setfcap => 31,
        }
    }
}

/// As whom commands run, after the defaults; what is absent is the image's word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Security {
    /// User id; `None`: the image's user.
    pub user: Option<u32>,
    /// Group id; `None`: the user's own.
    pub group: Option<u32>,
    /// More groups.
    pub groups: BTreeSet<u32>,
    /// Whether the root can be written to nowhere but in /tmp and these.
    pub read_only_root: bool,
    /// Absolute paths; none where the root is writable.
    pub writable_paths: BTreeSet<String>,
    /// Whether a program can get more rights than the command that starts it.
    pub allow_privilege_escalation: bool,
    /// Exactly these.
    pub capabilities: BTreeSet<Capability>,
}

/// What applies where nothing is asked for.
impl Default for Security {
    fn default() -> Self {
        Self {
            user: None,
            group: None,
            groups: BTreeSet::new(),
            read_only_root: false,
            writable_paths: BTreeSet::new(),
            allow_privilege_escalation: true,
            capabilities: Capability::ALL.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_called_as_they_are_written() {
        for capability in Capability::ALL {
            let written = serde_json::to_value(capability).unwrap();
            assert_eq!(written, capability.as_str());
        }
        assert_eq!(BTreeSet::from(Capability::ALL).len(), Capability::ALL.len());
    }
}
