//! `status.phase`: one word for where a sandbox is in its life.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a sandbox is in its life.
///
/// ```text
/// Pending ─► Starting ─► Running ◄─► Paused
///    │         ▲  │         │ └────┬────┘
///    │   Stopped ◄──────────┘      │
///    │      │     │                │
///    └──────┴─────┴────────────────┴─► Terminating ─► Succeeded | Failed | Ended
/// ```
/// `Terminating` is shown while the node still holds something of it; the last three never change again.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub enum Phase {
    /// Accepted; no node has begun with it.
    #[default]
    Pending,
    /// A node pulls its image or starts it.
    Starting,
    /// It serves commands.
    Running,
    /// It stands still, as it was desired or since it was idle.
    Paused,
    /// Nothing of it runs and its files are kept, as it was desired or since it was idle.
    Stopped,
    /// It is being ended; its reason is already fixed.
    Terminating,
    /// [`Reason::Completed`](crate::Reason::Completed).
    Succeeded,
    /// It ended by its own fault, the user's or the infrastructure's.
    Failed,
    /// It was ended on purpose: a limit in time, or a deletion.
    Ended,
    /// A phase that this build does not know.
    #[serde(other)]
    Unknown,
}

impl Phase {
    /// Every phase that this build knows, without [`Phase::Unknown`].
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::Starting,
        Self::Running,
        Self::Paused,
        Self::Stopped,
        Self::Terminating,
        Self::Succeeded,
        Self::Failed,
        Self::Ended,
    ];

    /// The word in `status.phase`, the same that serde writes.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Paused => "Paused",
            Self::Stopped => "Stopped",
            Self::Terminating => "Terminating",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Ended => "Ended",
            Self::Unknown => "Unknown",
        }
    }

    /// Whether the phase never changes again.
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed | Self::Ended => true,
            Self::Pending
            | Self::Starting
            | Self::Running
            | Self::Paused
            | Self::Stopped
            | Self::Terminating
            | Self::Unknown => false,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_that_serde_writes() {
        for phase in Phase::ALL {
            assert_eq!(
                serde_json::to_value(phase).unwrap(),
                serde_json::Value::from(phase.as_str())
            );
        }
        let newer: Phase = serde_json::from_str(r#""Hibernating""#).unwrap();
        assert_eq!(newer, Phase::Unknown);
    }
}
