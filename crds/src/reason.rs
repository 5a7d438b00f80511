//! Why a sandbox ended: the closed list of reasons, who is at fault, and whether trying again can help.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::phase::Phase;

/// Why a sandbox ended. Written to `status.termination.reason`.
///
/// The list grows with what Cloche can do; a reader of a newer agent's status meets [`Reason::Unknown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reason {
    /// Its command ended with exit code 0.
    Completed,
    /// Its command ended with another exit code or by a signal, or its init was killed from inside.
    Error,
    /// It used more memory than its own limit.
    OOMKilled,
    /// It used more processes than the node lets it have.
    PidsExceeded,
    /// The node needed what it used beyond its request.
    Evicted,
    /// `lifecycle.ttlSeconds` was over.
    DeadlineExceeded,
    /// It was idle for `lifecycle.idleTimeoutSeconds`, and `lifecycle.idleAction` is `End`.
    IdleTimeout,
    /// It was not running `lifecycle.startTimeoutSeconds` after it was bound.
    StartTimeout,
    /// Its object breaks a rule that the apiserver did not hold it to, or has a field that the node's agent does not know.
    SpecInvalid,
    /// The registry could not be reached, or broke off, or sent something else than it announced.
    ImagePullFailed,
    /// The registry or the image directory has no such image.
    ImageNotFound,
    /// The registry refused the credentials, or asks for some.
    ImageUnauthorized,
    /// The image breaks a rule: unsafe paths, reserved paths, wrong architecture, too large, malformed.
    ImageInvalid,
    /// Its command does not exist in the image (exit code 127).
    CommandNotFound,
    /// Its command is there but cannot be run: mode, format, working directory or user (exit code 126).
    CommandNotExecutable,
    /// The node could not set or keep a limit that the spec asks for.
    CannotEnforce,
    /// No node could take it within `lifecycle.scheduleTimeoutSeconds`.
    Unschedulable,
    /// The node's agent had no room for it.
    NodeRejected,
    /// gVisor's sentry died, not by a limit.
    RuntimeCrashed,
    /// The node was rebooted or is gone.
    NodeLost,
    /// Its node is being drained or shut down.
    NodeShutdown,
    /// It was stopped, and the files that it was to be brought back with are damaged or gone.
    SnapshotCorrupt,
    /// Its object was deleted.
    Deleted,
    /// A reason that this build does not know.
    #[serde(other)]
    Unknown,
}

impl Reason {
    /// Every reason that this build knows, in the order of `docs/reasons.md`; without [`Reason::Unknown`].
    pub const ALL: [Self; 23] = [
        Self::Completed,
        Self::Error,
        Self::OOMKilled,
        Self::PidsExceeded,
        Self::Evicted,
        Self::DeadlineExceeded,
        Self::IdleTimeout,
        Self::StartTimeout,
        Self::SpecInvalid,
        Self::ImagePullFailed,
        Self::ImageNotFound,
        Self::ImageUnauthorized,
        Self::ImageInvalid,
        Self::CommandNotFound,
        Self::CommandNotExecutable,
        Self::CannotEnforce,
        Self::Unschedulable,
        Self::NodeRejected,
        Self::RuntimeCrashed,
        Self::NodeLost,
        Self::NodeShutdown,
        Self::SnapshotCorrupt,
        Self::Deleted,
    ];

    /// The word in `status.termination.reason`, the same that serde writes.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "Completed",
            Self::Error => "Error",
            Self::OOMKilled => "OOMKilled",
            Self::PidsExceeded => "PidsExceeded",
            Self::Evicted => "Evicted",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::IdleTimeout => "IdleTimeout",
            Self::StartTimeout => "StartTimeout",
            Self::SpecInvalid => "SpecInvalid",
            Self::ImagePullFailed => "ImagePullFailed",
            Self::ImageNotFound => "ImageNotFound",
            Self::ImageUnauthorized => "ImageUnauthorized",
            Self::ImageInvalid => "ImageInvalid",
            Self::CommandNotFound => "CommandNotFound",
            Self::CommandNotExecutable => "CommandNotExecutable",
            Self::CannotEnforce => "CannotEnforce",
            Self::Unschedulable => "Unschedulable",
            Self::NodeRejected => "NodeRejected",
            Self::RuntimeCrashed => "RuntimeCrashed",
            Self::NodeLost => "NodeLost",
            Self::NodeShutdown => "NodeShutdown",
            Self::SnapshotCorrupt => "SnapshotCorrupt",
            Self::Deleted => "Deleted",
            Self::Unknown => "Unknown",
        }
    }

    /// The phase of a sandbox that ended so.
    pub const fn phase(self) -> Phase {
        match self {
            Self::Completed => Phase::Succeeded,
            Self::DeadlineExceeded | Self::IdleTimeout | Self::Deleted => Phase::Ended,
            Self::Error
            | Self::OOMKilled
            | Self::PidsExceeded
            | Self::Evicted
            | Self::StartTimeout
            | Self::SpecInvalid
            | Self::ImagePullFailed
            | Self::ImageNotFound
            | Self::ImageUnauthorized
            | Self::ImageInvalid
            | Self::CommandNotFound
            | Self::CommandNotExecutable
            | Self::CannotEnforce
            | Self::Unschedulable
            | Self::NodeRejected
            | Self::RuntimeCrashed
            | Self::NodeLost
            | Self::NodeShutdown
            | Self::SnapshotCorrupt => Phase::Failed,
            Self::Unknown => Phase::Unknown,
        }
    }

    /// Who is at fault where nothing more is known. The image reasons may be proved to be another's fault
    /// ([`Reason::allows`]): a registry that answers 500 is not the user's.
    pub const fn default_domain(self) -> FailureDomain {
        match self {
            Self::Completed | Self::Error | Self::OOMKilled | Self::PidsExceeded => {
                FailureDomain::Workload
            }
            Self::DeadlineExceeded | Self::IdleTimeout => FailureDomain::Policy,
            Self::SpecInvalid
            | Self::ImageNotFound
            | Self::ImageUnauthorized
            | Self::ImageInvalid
            | Self::CommandNotFound
            | Self::CommandNotExecutable
            | Self::Deleted => FailureDomain::User,
            Self::Evicted
            | Self::StartTimeout
            | Self::ImagePullFailed
            | Self::CannotEnforce
            | Self::Unschedulable
            | Self::NodeRejected
            | Self::RuntimeCrashed
            | Self::NodeLost
            | Self::NodeShutdown
            | Self::SnapshotCorrupt => FailureDomain::Infrastructure,
            Self::Unknown => FailureDomain::Unknown,
        }
    }

    /// Whether `domain` may stand beside this reason.
    pub fn allows(self, domain: FailureDomain) -> bool {
        let image = matches!(
            self,
            Self::ImagePullFailed
                | Self::ImageNotFound
                | Self::ImageUnauthorized
                | Self::ImageInvalid
        );
        domain == self.default_domain()
            || (image && matches!(domain, FailureDomain::User | FailureDomain::Infrastructure))
    }

    /// Whether the same object, applied again unchanged, can come to a better end.
    pub const fn retry_can_help(self) -> bool {
        match self {
            Self::Evicted
            | Self::StartTimeout
            | Self::ImagePullFailed
            | Self::CannotEnforce
            | Self::Unschedulable
            | Self::NodeRejected
            | Self::RuntimeCrashed
            | Self::NodeLost
            | Self::NodeShutdown
            | Self::SnapshotCorrupt => true,
            Self::Completed
            | Self::Error
            | Self::OOMKilled
            | Self::PidsExceeded
            | Self::DeadlineExceeded
            | Self::IdleTimeout
            | Self::SpecInvalid
            | Self::ImageNotFound
            | Self::ImageUnauthorized
            | Self::ImageInvalid
            | Self::CommandNotFound
            | Self::CommandNotExecutable
            | Self::Deleted
            | Self::Unknown => false,
        }
    }

    /// Whether an event tells of such an end: nobody asked for it, and the command alone does not explain it.
    pub const fn is_worth_an_event(self) -> bool {
        match self {
            Self::Completed
            | Self::Error
            | Self::DeadlineExceeded
            | Self::IdleTimeout
            | Self::Deleted
            | Self::Unknown => false,
            Self::OOMKilled
            | Self::PidsExceeded
            | Self::Evicted
            | Self::StartTimeout
            | Self::SpecInvalid
            | Self::ImagePullFailed
            | Self::ImageNotFound
            | Self::ImageUnauthorized
            | Self::ImageInvalid
            | Self::CommandNotFound
            | Self::CommandNotExecutable
            | Self::CannotEnforce
            | Self::Unschedulable
            | Self::NodeRejected
            | Self::RuntimeCrashed
            | Self::NodeLost
            | Self::NodeShutdown
            | Self::SnapshotCorrupt => true,
        }
    }

    /// The exit code that the reason itself fixes, as a shell would give it; `None` where only the command can tell.
    pub const fn exit_code(self) -> Option<u8> {
        match self {
            Self::Completed => Some(0),
            Self::CommandNotFound => Some(127),
            Self::CommandNotExecutable => Some(126),
            Self::Error
            | Self::OOMKilled
            | Self::PidsExceeded
            | Self::Evicted
            | Self::DeadlineExceeded
            | Self::IdleTimeout
            | Self::StartTimeout
            | Self::SpecInvalid
            | Self::ImagePullFailed
            | Self::ImageNotFound
            | Self::ImageUnauthorized
            | Self::ImageInvalid
            | Self::CannotEnforce
            | Self::Unschedulable
            | Self::NodeRejected
            | Self::RuntimeCrashed
            | Self::NodeLost
            | Self::NodeShutdown
            | Self::SnapshotCorrupt
            | Self::Deleted
            | Self::Unknown => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Who is at fault. Written to `status.termination.failureDomain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FailureDomain {
    /// What ran in the sandbox.
    Workload,
    /// Who wrote the object, or deleted it.
    User,
    /// A limit in time that the spec asked for.
    Policy,
    /// The node, the registry, Cloche itself.
    Infrastructure,
    /// A domain that this build does not know.
    #[serde(other)]
    Unknown,
}

impl FailureDomain {
    /// The word in `status.termination.failureDomain`, the same that serde writes.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Workload => "Workload",
            Self::User => "User",
            Self::Policy => "Policy",
            Self::Infrastructure => "Infrastructure",
            Self::Unknown => "Unknown",
        }
    }
}

impl fmt::Display for FailureDomain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_that_serde_writes() {
        for reason in Reason::ALL {
            assert_eq!(
                serde_json::to_value(reason).unwrap(),
                serde_json::Value::from(reason.as_str())
            );
            assert!(reason.as_str().len() <= 64);
        }
    }

    #[test]
    fn every_reason_has_an_end_and_a_culprit() {
        for reason in Reason::ALL {
            assert!(reason.phase().is_terminal(), "{reason}");
            assert!(reason.allows(reason.default_domain()), "{reason}");
            assert_ne!(reason.default_domain(), FailureDomain::Unknown, "{reason}");
            assert!(!reason.allows(FailureDomain::Unknown), "{reason}");
        }
    }

    #[test]
    fn infrastructure_is_worth_a_retry_and_always_failed() {
        for reason in Reason::ALL {
            if reason.default_domain() == FailureDomain::Infrastructure {
                assert!(reason.retry_can_help(), "{reason}");
                assert_eq!(reason.phase(), Phase::Failed, "{reason}");
            } else {
                assert!(!reason.retry_can_help(), "{reason}");
            }
        }
    }

    #[test]
    fn a_newer_agents_words_can_still_be_read() {
        let reason: Reason = serde_json::from_str(r#""WentForAWalk""#).unwrap();
        assert_eq!(reason, Reason::Unknown);
        let domain: FailureDomain = serde_json::from_str(r#""Weather""#).unwrap();
        assert_eq!(domain, FailureDomain::Unknown);
    }
}
