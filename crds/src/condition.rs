//! The conditions of a sandbox: their types, their reasons, and how one changes.

use std::fmt;

use jiff::Timestamp;
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::reason::Reason;

/// Longest `message` of a condition or a termination, in bytes; [`bounded`] cuts there.
pub const MAX_MESSAGE: usize = 4096;

/// The type of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConditionType {
    /// Standalone only: the manifest file is an object that the agent takes. `False` where it is not; what was desired
    /// before goes on.
    Accepted,
    /// A node is bound to run it.
    Scheduled,
    /// Its image is on the node.
    ImageReady,
    /// It serves commands.
    Ready,
    /// It has written nearly as much as it may. Told only where it once was so.
    DiskPressure,
    /// Its limit of processor time holds it up. Told only where it once was so.
    CPUThrottled,
    /// It failed and will not get further by itself. `True` only with phase Failed.
    Stalled,
    /// It ended; `status.termination` says how.
    Finished,
}

impl ConditionType {
    /// Every type, in the order in which they stand in a status.
    pub const ALL: [Self; 8] = [
        Self::Accepted,
        Self::Scheduled,
        Self::ImageReady,
        Self::Ready,
        Self::DiskPressure,
        Self::CPUThrottled,
        Self::Stalled,
        Self::Finished,
    ];

    /// The word in `conditions[].type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Scheduled => "Scheduled",
            Self::ImageReady => "ImageReady",
            Self::Ready => "Ready",
            Self::DiskPressure => "DiskPressure",
            Self::CPUThrottled => "CPUThrottled",
            Self::Stalled => "Stalled",
            Self::Finished => "Finished",
        }
    }
}

impl fmt::Display for ConditionType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Why a condition is as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConditionReason {
    /// Accepted=True: the manifest is a valid object.
    Valid,
    /// Accepted=False: the manifest is no object, or breaks a rule.
    Invalid,
    /// Accepted=False: the manifest changes what cannot change while the sandbox exists.
    Immutable,
    /// Scheduled=True: bound to the node in `status.nodeName`.
    Bound,
    /// Scheduled=False: no node has room for it, or none that it may run on.
    Unschedulable,
    /// ImageReady=False: not begun.
    Waiting,
    /// ImageReady=False: layers are being fetched.
    Pulling,
    /// ImageReady=False: layers are being made into a file system.
    Unpacking,
    /// ImageReady=True: on the node, by the digest in `status.imageDigest`.
    Present,
    /// Ready=False, or ImageReady=False for what the image needs: it takes from Secrets or `ConfigMap`s what cannot be had for now, and
    /// waits; the message says what and why.
    WaitingForReferences,
    /// Ready=False: its instance is being made or claimed.
    Starting,
    /// Ready=True.
    Running,
    /// Ready=False: it stands still, as its spec wants it.
    Paused,
    /// Ready=False: it stands still, or is stopped, since it was idle; the next session has it run again.
    Idle,
    /// Ready=False: its command was told to end, and its files are being kept.
    Stopping,
    /// Ready=False: nothing of it runs and its files are kept, as its spec wants it.
    Stopped,
    /// Ready=False: it is stopped and is to run again, for which something is lacking; the message says what.
    WakePending,
    /// Ready=Unknown: it runs, but its sessions cannot be reached.
    SessionsUnavailable,
    /// Ready=False: it runs, but the node cannot store output: commands that print are blocked until it can.
    LogStorageFull,
    /// `DiskPressure=True`: little is left of its limit.
    NearLimit,
    /// `CPUThrottled=True`.
    Throttled,
    /// `DiskPressure=False`, `CPUThrottled=False`.
    Enough,
    /// Ready=False: it is being taken down.
    Terminating,
    /// Ready=Unknown, of a sandbox or of a node: the node's agent is not heard. What runs there goes on.
    AgentUnreachable,
    /// Ready=False, of a node: its agent has no certificate that holds, so that nobody can reach its sandboxes.
    NoCertificate,
    /// Ready=False, of a node: it is being drained or shut down.
    Draining,
    /// Ready=False, of a node: little is left of the disk that its sandboxes write to.
    DiskPressure,
    /// Ready=False, of a node: no pod holds there what its sandboxes may request.
    NotReserved,
    /// Finished=True, Stalled=True, or another condition that this end made `False`.
    Ended(Reason),
}

impl ConditionReason {
    /// The word in `conditions[].reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "Valid",
            Self::Invalid => "Invalid",
            Self::Immutable => "Immutable",
            Self::Bound => "Bound",
            Self::Unschedulable => "Unschedulable",
            Self::Waiting => "Waiting",
            Self::Pulling => "Pulling",
            Self::Unpacking => "Unpacking",
            Self::Present => "Present",
            Self::WaitingForReferences => "WaitingForReferences",
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Paused => "Paused",
            Self::Idle => "Idle",
            Self::Stopping => "Stopping",
            Self::Stopped => "Stopped",
            Self::WakePending => "WakePending",
            Self::SessionsUnavailable => "SessionsUnavailable",
            Self::LogStorageFull => "LogStorageFull",
            Self::NearLimit => "NearLimit",
            Self::Throttled => "Throttled",
            Self::Enough => "Enough",
            Self::Terminating => "Terminating",
            Self::AgentUnreachable => "AgentUnreachable",
            Self::NoCertificate => "NoCertificate",
            Self::Draining => "Draining",
            Self::DiskPressure => "DiskPressure",
            Self::NotReserved => "NotReserved",
            Self::Ended(reason) => reason.as_str(),
        }
    }
}

impl fmt::Display for ConditionReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// `"True"`, `"False"` or `"Unknown"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// Nobody can tell.
    Unknown,
}

impl ConditionStatus {
    /// The word in `conditions[].status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Sets one condition: `lastTransitionTime` is kept where `status` stays the same, as Kubernetes wants it. The list stays in
/// the order of [`ConditionType::ALL`]; types that this build does not know are kept, last.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    kind: ConditionType,
    status: ConditionStatus,
    reason: ConditionReason,
    message: &str,
    now: Timestamp,
) {
    let before = conditions
        .iter()
        .find(|condition| condition.type_ == kind.as_str())
        .filter(|condition| condition.status == status.as_str())
        .map(|condition| condition.last_transition_time.clone());
    conditions.retain(|condition| condition.type_ != kind.as_str());
    conditions.push(Condition {
        type_: kind.as_str().to_owned(),
        status: status.as_str().to_owned(),
        reason: reason.as_str().to_owned(),
        message: bounded(message),
        last_transition_time: before.unwrap_or(Time(now)),
        observed_generation: None,
    });
    conditions.sort_by_key(|condition| {
        ConditionType::ALL
            .iter()
            .position(|kind| kind.as_str() == condition.type_)
            .unwrap_or(ConditionType::ALL.len())
    });
}

/// `message`, cut at [`MAX_MESSAGE`] bytes: see [`cut`].
pub fn bounded(message: &str) -> String {
    cut(message, MAX_MESSAGE)
}

/// `message`, cut at `most` bytes on a character's boundary, with control characters but newline and tab replaced: parts of it may come
/// from an image or a guest, and end on a terminal.
pub(crate) fn cut(message: &str, most: usize) -> String {
    const ELLIPSIS: &str = "…";
    let clean = |character: char| {
        if character.is_control() && character != '\n' && character != '\t' {
            '\u{fffd}'
        } else {
            character
        }
    };
    let whole_fits = message.chars().map(|c| clean(c).len_utf8()).sum::<usize>() <= most;
    let room = if whole_fits {
        most
    } else {
        most - ELLIPSIS.len()
    };
    let mut cut = String::with_capacity(message.len().min(most));
    for character in message.chars().map(clean) {
        if cut.len() + character.len_utf8() > room {
            break;
        }
        cut.push(character);
    }
    if !whole_fits {
        cut.push_str(ELLIPSIS);
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_transition_time_changes_with_the_status_alone() {
        let mut conditions = Vec::new();
        let mut set = |status, reason, second| {
            set_condition(
                &mut conditions,
                ConditionType::Ready,
                status,
                reason,
                "",
                at(second),
            );
            conditions[0].clone()
        };
        set(ConditionStatus::False, ConditionReason::Waiting, 1);
        let same = set(ConditionStatus::False, ConditionReason::Starting, 2);
        assert_eq!(same.last_transition_time, Time(at(1)));
        assert_eq!(same.reason, "Starting");
        let changed = set(ConditionStatus::True, ConditionReason::Running, 3);
        assert_eq!(changed.last_transition_time, Time(at(3)));
        assert_eq!(conditions.len(), 1);
    }

    #[test]
    fn conditions_keep_their_order_and_strangers() {
        let mut conditions = Vec::new();
        for kind in ConditionType::ALL.into_iter().rev() {
            let (status, reason) = (ConditionStatus::True, ConditionReason::Valid);
            set_condition(&mut conditions, kind, status, reason, "", at(1));
        }
        conditions.insert(
            0,
            Condition {
                type_: "EgressEnforced".to_owned(),
                ..conditions[0].clone()
            },
        );
        let (status, reason) = (ConditionStatus::False, ConditionReason::Starting);
        set_condition(
            &mut conditions,
            ConditionType::Ready,
            status,
            reason,
            "",
            at(2),
        );
        let order: Vec<_> = conditions.iter().map(|c| c.type_.as_str()).collect();
        let mut wanted: Vec<_> = ConditionType::ALL
            .iter()
            .map(|kind| kind.as_str())
            .collect();
        wanted.push("EgressEnforced");
        assert_eq!(order, wanted);
    }

    #[test]
    fn messages_are_cut_on_a_character_and_carry_no_escapes() {
        assert_eq!(bounded("a\u{1b}[31mb\n\tc"), "a\u{fffd}[31mb\n\tc");
        let long = bounded(&"é".repeat(MAX_MESSAGE));
        assert!(long.len() <= MAX_MESSAGE && long.ends_with('…'));
        let exact = "x".repeat(MAX_MESSAGE);
        assert_eq!(bounded(&exact), exact);
        assert!(bounded(&"\u{1}".repeat(MAX_MESSAGE)).len() <= MAX_MESSAGE);
    }
}
