//! What `wait --for` waits for.

use std::fmt;

use cloche_crds::{ConditionType, Phase};

use super::{Object, field};

/// A state to wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Goal {
    /// A condition has a status.
    Condition {
        /// Its type.
        kind: String,
        /// `True`, `False` or `Unknown`.
        status: String,
    },
    /// It is in a phase.
    Phase(String),
    /// It ended, however.
    Finished,
    /// There is no such object any more.
    Deleted,
}

/// Where a sandbox stands towards a goal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There.
    Reached,
    /// Not yet.
    Pending,
    /// Never, as it has ended or is gone.
    Impossible,
}

impl Goal {
    /// Reads `condition=TYPE[=STATUS]`, `phase=PHASE`, `ready`, `finished` or `delete`, in upper or lower case.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "cannot wait for {text:?}: write condition=TYPE, condition=TYPE=STATUS, phase=PHASE, ready, finished or delete"
            )
        };
        match text.split_once('=') {
            None => match text.to_ascii_lowercase().as_str() {
                "ready" => Ok(Self::Condition {
                    kind: ConditionType::Ready.to_string(),
                    status: "True".to_owned(),
                }),
                "finished" => Ok(Self::Finished),
                "delete" | "deleted" => Ok(Self::Deleted),
                _ => Err(wrong()),
            },
            Some(("phase", phase)) => Phase::ALL
                .iter()
                .find(|known| known.as_str().eq_ignore_ascii_case(phase))
                .map(|phase| Self::Phase(phase.to_string()))
                .ok_or_else(|| {
                    let all = Phase::ALL.map(Phase::as_str).join(", ");
                    format!("there is no phase {phase:?}: the phases are {all}")
                }),
            Some(("condition", rest)) => {
                let (kind, status) = rest.split_once('=').unwrap_or((rest, "True"));
                let status = ["True", "False", "Unknown"]
                    .into_iter()
                    .find(|known| known.eq_ignore_ascii_case(status))
                    .ok_or_else(wrong)?;
                if kind.is_empty() {
                    return Err(wrong());
                }
                Ok(Self::Condition {
                    kind: kind.to_owned(),
                    status: status.to_owned(),
                })
            }
            Some(_) => Err(wrong()),
        }
    }

    /// How far `object` is; `None`: there is none.
    pub(crate) fn progress(&self, object: Option<&Object>) -> Progress {
        let Some(object) = object else {
            return match self {
                Self::Deleted => Progress::Reached,
                Self::Condition { .. } | Self::Phase(_) | Self::Finished => Progress::Impossible,
            };
        };
        let reached = match self {
            Self::Condition { kind, status } => object
                .condition(kind)
                .and_then(|condition| field(condition, "status"))
                .is_some_and(|found| found == *status),
            Self::Phase(phase) => object.phase() == *phase,
            Self::Finished => object.is_finished(),
            Self::Deleted => false,
        };
        match self {
            _ if reached => Progress::Reached,
            Self::Condition { .. } | Self::Phase(_) if object.is_finished() => Progress::Impossible,
            Self::Condition { .. } | Self::Phase(_) | Self::Finished | Self::Deleted => {
                Progress::Pending
            }
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Condition { kind, status } => write!(formatter, "condition {kind}={status}"),
            Self::Phase(phase) => write!(formatter, "phase {phase}"),
            Self::Finished => formatter.write_str("the end"),
            Self::Deleted => formatter.write_str("the deletion"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::object;
    use super::Progress::{Impossible, Pending, Reached};
    use super::*;

    #[test]
    fn goals() {
        let running =
            object("{status: {phase: Running, conditions: [{type: Ready, status: 'True'}]}}");
        let failed =
            object("{status: {phase: Failed, conditions: [{type: Ready, status: 'False'}]}}");
        for (text, on_running, on_failed, on_nothing) in [
            ("condition=Ready", Reached, Impossible, Impossible),
            ("condition=ready=true", Reached, Impossible, Impossible),
            ("condition=Ready=False", Pending, Reached, Impossible),
            ("condition=Finished", Pending, Impossible, Impossible),
            ("phase=running", Reached, Impossible, Impossible),
            ("phase=Failed", Pending, Reached, Impossible),
            ("ready", Reached, Impossible, Impossible),
            ("Finished", Pending, Reached, Impossible),
            ("deleted", Pending, Pending, Reached),
            ("finished", Pending, Reached, Impossible),
            ("delete", Pending, Pending, Reached),
        ] {
            let goal = Goal::parse(text).unwrap();
            let progress =
                [Some(&running), Some(&failed), None].map(|object| goal.progress(object));
            assert_eq!(progress, [on_running, on_failed, on_nothing], "{text}");
        }
        for wrong in [
            "",
            "readily",
            "phase=",
            "phase=Happy",
            "condition=",
            "condition==True",
            "condition=Ready=Maybe",
            "jsonpath={.a}=b",
            "Finished=",
        ] {
            assert!(Goal::parse(wrong).is_err(), "{wrong}");
        }
    }
}
