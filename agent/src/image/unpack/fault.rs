//! Why an image could not be unpacked, as the child tells its parent.

use serde::{Deserialize, Serialize};

/// Longest text about a hostile name in a message, in bytes.
const SHOWN_MAX: usize = 160;

/// Why an image could not be unpacked. Crosses the pipe from the unpacking child as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::image) enum Fault {
    /// The image breaks a rule.
    Invalid(String),
    /// The disk is full.
    NoSpace,
    /// The node failed: a file of the staging directory, a system call.
    Node(String),
}

impl Fault {
    /// A failed operation of the node's own.
    pub(super) fn io(operation: &str, error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(code) if code == nix::libc::ENOSPC || code == nix::libc::EDQUOT => Self::NoSpace,
            Some(nix::libc::EFBIG) => {
                Self::Invalid("its EROFS would be larger than the limit".to_owned())
            }
            _ => Self::Node(format!("{operation}: {error}")),
        }
    }
}

/// Hostile bytes for a message: escaped, shortened.
pub(in crate::image) fn shown(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(SHOWN_MAX)];
    let dots = if cut.len() < bytes.len() { "..." } else { "" };
    format!("`{}{dots}`", cut.escape_ascii())
}
