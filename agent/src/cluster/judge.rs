//! What an object means for this node. Pure.

use cloche_crds::{FailureDomain, Reason};
use serde_json::{Map, Value};

use super::desired::DesiredObject;
use super::seen::Seen;
use crate::sandbox::Cause;

/// Which Node this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OurNode {
    /// Its name.
    pub name: String,
    /// Its UID: a Node that was deleted and made anew under its old name is another one.
    pub uid: String,
}

/// How this agent stands to an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stance<'a> {
    /// It has nothing of it, and never had in this run.
    New {
        /// There was a record, which cannot be read any more.
        record_lost: bool,
    },
    /// It wants it to be there, so.
    Taken(&'a DesiredObject),
}

/// What an object means for this node.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Judgement {
    /// Nothing: it is of another node, or over.
    Leave,
    /// What there is of it here goes on as it is, though it should not be so: told in the log.
    Keep(&'static str),
    /// It should be here, so.
    Take(Box<DesiredObject>),
    /// It is being deleted: what there is of it here goes, if there is anything.
    Drop,
    /// It ends without having begun here.
    Refuse(Cause),
}

/// Decides. Absence is not judged here: an object that is not there has to be asked for first.
pub(super) fn judge(seen: &Seen, ours: Option<&OurNode>, stance: Stance<'_>) -> Judgement {
    let is_ours = ours.is_some_and(|ours| seen.is_bound_to(&ours.name, &ours.uid));
    match stance {
        Stance::Taken(_) if seen.deleting => Judgement::Drop,
        Stance::Taken(taken) => match (seen.termination(), &seen.spec) {
            // Somebody else has declared it ended, or we have: either way nothing of it may run.
            (Some(termination), _) => Judgement::Take(Box::new(DesiredObject {
                ended: Some(cause(termination)),
                ..taken.clone()
            })),
            (None, _) if ours.is_some() && !is_ours => Judgement::Keep(
                "it runs here and is not bound to this Node any more: it goes on until it is deleted or declared ended",
            ),
            (None, Err(_)) => Judgement::Keep(
                "its spec was changed to something that breaks a rule: it goes on as it was",
            ),
            (None, Ok(spec)) => Judgement::Take(Box::new(DesiredObject {
                uid: seen.uid.clone(),
                generation: seen.generation,
                object: spec.object.clone(),
                effective: spec.effective.clone(),
                ended: None,
            })),
        },
        Stance::New { .. } if !is_ours => Judgement::Leave,
        Stance::New { .. } if seen.termination().is_some() && seen.deleting => Judgement::Drop,
        Stance::New { .. } if seen.termination().is_some() => Judgement::Leave,
        Stance::New { record_lost } if record_lost || seen.has_run() => {
            Judgement::Refuse(Cause::new(
                Reason::RuntimeCrashed,
                FailureDomain::Infrastructure,
                "the node's record of it is gone; it is not run a second time, status unknown",
            ))
        }
        // Who waits for it to go, and what it has of the node's budget, wait for its end.
        Stance::New { .. } if seen.deleting => Judgement::Refuse(Cause::new(
            Reason::Deleted,
            FailureDomain::User,
            "its object was deleted before the node had begun it",
        )),
        Stance::New { .. } => match &seen.spec {
            Ok(spec) => Judgement::Take(Box::new(DesiredObject {
                uid: seen.uid.clone(),
                generation: seen.generation,
                object: spec.object.clone(),
                effective: spec.effective.clone(),
                ended: None,
            })),
            Err(wrong) => Judgement::Refuse(Cause::new(
                Reason::SpecInvalid,
                FailureDomain::User,
                wrong.clone(),
            )),
        },
    }
}

/// An end that the status tells, in our words.
fn cause(termination: &Map<String, Value>) -> Cause {
    let read = |field: &str| termination.get(field).cloned().unwrap_or_default();
    let reason = serde_json::from_value(read("reason")).unwrap_or(Reason::Unknown);
    let domain = serde_json::from_value(read("failureDomain")).unwrap_or(FailureDomain::Unknown);
    let message = read("message").as_str().unwrap_or_default().to_owned();
    Cause::new(reason, domain, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::seen::tests::seen;
    use super::*;

    const NEW: Stance<'_> = Stance::New { record_lost: false };

    fn ours() -> OurNode {
        OurNode {
            name: "one".to_owned(),
            uid: "node-1".to_owned(),
        }
    }

    fn judged(patch: &Value, stance: Stance<'_>) -> Judgement {
        judge(&seen(patch), Some(&ours()), stance)
    }

    fn taken() -> DesiredObject {
        match judged(&json!({}), NEW) {
            Judgement::Take(desired) => *desired,
            other => panic!("{other:?}"),
        }
    }

    fn refused(judgement: Judgement) -> Reason {
        match judgement {
            Judgement::Refuse(cause) => cause.reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_bound_to_this_node_is_taken_and_nothing_else() {
        assert_eq!(taken().ended, None);
        for other in [
            json!({"status": {"nodeUID": "node-2"}}),
            json!({"status": {"nodeUID": null}}),
            json!({"status": {"nodeName": "two"}}),
            json!({"status": null}),
            json!({"status": {"nodeUID": "node-2"}, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        ] {
            assert_eq!(judged(&other, NEW), Judgement::Leave, "{other}");
        }
        assert_eq!(judge(&seen(&json!({})), None, NEW), Judgement::Leave);
    }

    #[test]
    fn nothing_runs_twice() {
        for ran in [
            json!({"status": {"phase": "Running"}}),
            json!({"status": {"phase": "Terminating"}}),
            json!({"status": {"phase": "Starting", "startedAt": "2026-01-01T00:00:00Z"}}),
        ] {
            assert_eq!(refused(judged(&ran, NEW)), Reason::RuntimeCrashed, "{ran}");
        }
        let lost = Stance::New { record_lost: true };
        assert_eq!(refused(judged(&json!({}), lost)), Reason::RuntimeCrashed);
        let begun = json!({"status": {"phase": "Starting"}});
        assert!(matches!(judged(&begun, NEW), Judgement::Take(_)));
    }

    #[test]
    fn a_broken_rule_ends_it_before_it_begins_and_disturbs_nothing_later() {
        let broken = json!({"spec": {"image": "Python"}});
        assert_eq!(refused(judged(&broken, NEW)), Reason::SpecInvalid);
        let taken = taken();
        let kept = judged(&broken, Stance::Taken(&taken));
        assert!(matches!(kept, Judgement::Keep(_)), "{kept:?}");
    }

    #[test]
    fn a_deletion_is_one_whatever_else_is_wrong() {
        let taken = taken();
        let deleting = |more: &Value| json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": more});
        for (more, of_new) in [
            (json!({}), Some(Reason::Deleted)),
            (json!({"phase": "Running"}), Some(Reason::RuntimeCrashed)),
            (json!({"termination": {"reason": "Error"}}), None),
        ] {
            match (judged(&deleting(&more), NEW), of_new) {
                // Nobody else tells its end.
                (Judgement::Refuse(cause), Some(reason)) => assert_eq!(cause.reason, reason),
                (judgement, _) => assert_eq!((judgement, of_new), (Judgement::Drop, None)),
            }
            let judgement = judged(&deleting(&more), Stance::Taken(&taken));
            assert_eq!(judgement, Judgement::Drop);
        }
        let unbound = deleting(&json!({"nodeUID": "node-2"}));
        assert_eq!(judged(&unbound, Stance::Taken(&taken)), Judgement::Drop);
    }

    #[test]
    fn losing_the_binding_is_an_alarm_and_nothing_else() {
        let taken = taken();
        for patch in [
            json!({"status": {"nodeUID": "node-2"}}),
            json!({"status": null}),
        ] {
            let judgement = judged(&patch, Stance::Taken(&taken));
            assert!(matches!(judgement, Judgement::Keep(_)), "{judgement:?}");
        }
        // Whose it is cannot be told before this Node is known.
        let judgement = judge(&seen(&json!({})), None, Stance::Taken(&taken));
        assert!(matches!(judgement, Judgement::Take(_)));
    }

    #[test]
    fn what_was_declared_ended_ends_here() {
        let taken = taken();
        let lost = json!({"status": {"phase": "Failed", "termination": {
            "reason": "NodeLost", "failureDomain": "Infrastructure", "message": "the node is gone"}}});
        let Judgement::Take(after) = judged(&lost, Stance::Taken(&taken)) else {
            panic!()
        };
        let cause = after.ended.unwrap();
        assert_eq!(
            (cause.reason, cause.message.as_str()),
            (Reason::NodeLost, "the node is gone")
        );
        let unknown =
            json!({"status": {"nodeUID": "node-2", "termination": {"reason": "WentForAWalk"}}});
        let Judgement::Take(after) = judged(&unknown, Stance::Taken(&taken)) else {
            panic!()
        };
        assert_eq!(after.ended.unwrap().reason, Reason::Unknown);
        assert_eq!(judged(&lost, NEW), Judgement::Leave);
    }

    #[test]
    fn a_new_generation_is_followed() {
        let taken = taken();
        let edited =
            json!({"metadata": {"generation": 2}, "spec": {"lifecycle": {"ttlSeconds": 9}}});
        let Judgement::Take(after) = judged(&edited, Stance::Taken(&taken)) else {
            panic!()
        };
        assert_eq!(after.generation, 2);
        assert_eq!(after.effective.ttl.map(|ttl| ttl.as_secs()), Some(9));
    }
}
