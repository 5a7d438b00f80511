//! Why a sandbox ended: the closed list of reasons, who is at fault, and whether trying again can help.

use serde::{Deserialize, Serialize};

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
    /// It was not running `lifecycle.startTimeoutSeconds` after it was bound.
    StartTimeout,
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
    /// The node's agent had no room for it.
    NodeRejected,
    /// gVisor's sentry died, not by a limit.
    RuntimeCrashed,
    /// The node was rebooted or is gone.
    NodeLost,
    /// Its object was deleted.
    Deleted,
    /// A reason that this build does not know.
    #[serde(other)]
    Unknown,
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
