//! The status that an object should have: ours, beside what others wrote there. Pure.

use cloche_crds::condition::{Condition, Time, bounded, set_condition};
use cloche_crds::sandbox::Termination;
use cloche_crds::{ConditionReason, ConditionStatus, ConditionType, Phase, SandboxStatus};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::seen::Seen;
use crate::sandbox::Cause;

/// The fields that the agent writes, and takes out where it has nothing to say. The binding is the operator's.
const OURS: [&str; 9] = [
    "observedGeneration",
    "phase",
    "conditions",
    "effective",
    "imageDigest",
    "runtime",
    "startedAt",
    "expiresAt",
    "termination",
];

/// The status of `seen` after `ours` has been told. Whatever others have put there stays: fields, conditions, and Scheduled, which is
/// the operator's. Times of conditions are kept where nothing changes.
pub(super) fn told(
    ours: &SandboxStatus,
    seen: &Seen,
    now: Timestamp,
) -> Result<Map<String, Value>, serde_json::Error> {
    let mut ours = ours.clone();
    if let Some(termination) = &mut ours.termination {
        termination.message = bounded(&termination.message);
    }
    let conditions = std::mem::take(&mut ours.conditions);
    let mut written = match serde_json::to_value(&ours)? {
        Value::Object(written) => written,
        _ => Map::new(),
    };
    let before = seen.status.get("conditions").and_then(Value::as_array);
    let conditions = merged(conditions, before.map_or(&[], Vec::as_slice), now)?;
    written.insert("conditions".to_owned(), Value::Array(conditions));
    let mut status = seen.status.clone();
    for field in OURS {
        match written.remove(field) {
            Some(value) => status.insert(field.to_owned(), value),
            None => status.remove(field),
        };
    }
    Ok(status)
}

fn kind_of(condition: &Value) -> &str {
    let kind = condition.get("type").and_then(Value::as_str);
    kind.unwrap_or_default()
}

fn merged(
    mut ours: Vec<Condition>,
    before: &[Value],
    now: Timestamp,
) -> Result<Vec<Value>, serde_json::Error> {
    let find = |kind: &str| before.iter().find(|condition| kind_of(condition) == kind);
    // Told by an agent before this one, which has not seen it: it is not so, as far as is known.
    for kind in [ConditionType::DiskPressure, ConditionType::CPUThrottled] {
        let is_ours = ours.iter().any(|one| one.type_ == kind.as_str());
        if find(kind.as_str()).is_some() && !is_ours {
            let reason = ConditionReason::Enough;
            set_condition(&mut ours, kind, ConditionStatus::False, reason, "", now);
        }
    }
    let mut all = Vec::new();
    for mut condition in ours {
        let old = find(&condition.type_);
        if let (Some(old), true) = (old, condition.type_ == ConditionType::Scheduled.as_str()) {
            all.push(old.clone());
            continue;
        }
        condition.message = bounded(&condition.message);
        let mut value = serde_json::to_value(&condition)?;
        if let Some(old) = old {
            let at = old.get("lastTransitionTime").cloned();
            let same = old.get("status").and_then(Value::as_str) == Some(&condition.status);
            let Time(changed) = condition.last_transition_time;
            let since: Option<Timestamp> = at
                .as_ref()
                .and_then(Value::as_str)
                .and_then(|text| text.parse().ok());
            let kept = match (same, at, since) {
                (true, Some(at), _) => Some(at),
                // It has been otherwise since: what is told now begins now.
                (false, _, Some(since)) if since > changed => {
                    Some(serde_json::to_value(Time(now))?)
                }
                (true, None, _) | (false, ..) => None,
            };
            if let (Some(at), Some(fields)) = (kept, value.as_object_mut()) {
                fields.insert("lastTransitionTime".to_owned(), at);
            }
        }
        all.push(value);
    }
    let strange = |condition: &&Value| {
        let kind = kind_of(condition);
        !all.iter().any(|ours| kind_of(ours) == kind)
    };
    let strangers: Vec<Value> = before.iter().filter(strange).cloned().collect();
    all.extend(strangers);
    // In their order; strangers last.
    let place = |condition: &Value| {
        let kind = kind_of(condition);
        let known = ConditionType::ALL
            .iter()
            .position(|known| known.as_str() == kind);
        known.unwrap_or(ConditionType::ALL.len())
    };
    all.sort_by_key(place);
    Ok(all)
}

/// The status of a sandbox that ends without having been begun by this agent, as of `at`. What an earlier one has told of it stays.
pub(super) fn refused(cause: &Cause, seen: &Seen, at: Timestamp) -> SandboxStatus {
    fn read<T: DeserializeOwned>(seen: &Seen, field: &str) -> Option<T> {
        serde_json::from_value(seen.status.get(field)?.clone()).ok()
    }
    let started_at: Option<Time> = read(seen, "startedAt");
    let reason = ConditionReason::Ended(cause.reason);
    let mut conditions = Vec::new();
    let stalled = (cause.reason.phase() == Phase::Failed)
        .then_some((ConditionType::Stalled, ConditionStatus::True));
    let told = [
        (ConditionType::Ready, ConditionStatus::False),
        (ConditionType::Finished, ConditionStatus::True),
    ];
    for (kind, status) in told.into_iter().chain(stalled) {
        set_condition(&mut conditions, kind, status, reason, &cause.message, at);
    }
    SandboxStatus {
        observed_generation: Some(seen.generation),
        phase: cause.reason.phase(),
        conditions,
        termination: Some(Termination {
            reason: cause.reason,
            failure_domain: cause.domain,
            message: bounded(&cause.message),
            exit_code: cause.exit_code,
            signal: cause.signal,
            started_at: started_at.clone(),
            finished_at: Some(Time(at)),
            peak_memory_bytes: None,
            cpu_seconds: None,
            written_bytes: None,
        }),
        effective: read(seen, "effective"),
        image_digest: read(seen, "imageDigest"),
        runtime: read(seen, "runtime"),
        started_at,
        expires_at: read(seen, "expiresAt"),
        node_name: None,
        node_uid: None,
    }
}

#[cfg(test)]
mod tests {
    use cloche_crds::{FailureDomain, Reason};
    use serde_json::json;

    use super::super::seen::tests::seen;
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn running(second: i64) -> SandboxStatus {
        let mut status = SandboxStatus {
            phase: Phase::Running,
            observed_generation: Some(1),
            started_at: Some(Time(at(second))),
            ..SandboxStatus::default()
        };
        for (kind, reason) in [
            (ConditionType::Scheduled, ConditionReason::Bound),
            (ConditionType::Ready, ConditionReason::Running),
        ] {
            let status_of = ConditionStatus::True;
            set_condition(
                &mut status.conditions,
                kind,
                status_of,
                reason,
                "",
                at(second),
            );
        }
        status
    }

    fn after(ours: &SandboxStatus, before: &Value) -> Value {
        let seen = seen(&json!({"status": before}));
        Value::Object(told(ours, &seen, at(100)).unwrap())
    }

    #[test]
    fn what_others_wrote_stays() {
        let strange = json!({"type": "Mood", "status": "True", "reason": "Sunny", "message": "", "lastTransitionTime": "x"});
        let scheduled = json!({"type": "Scheduled", "status": "True", "reason": "Bound", "message": "by the scheduler",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let before = json!({"source": "somewhere", "expiresAt": "2026-01-01T00:00:00Z", "conditions": [strange, scheduled]});
        let status = after(&running(5), &before);
        assert_eq!(status["nodeName"], "one");
        assert_eq!(status["nodeUID"], "node-1");
        assert_eq!(status["source"], "somewhere");
        assert_eq!(status["phase"], "Running");
        assert_eq!(status.get("expiresAt"), None, "it expires no more");
        let conditions = status["conditions"].as_array().unwrap();
        let kinds: Vec<_> = conditions.iter().map(kind_of).collect();
        assert_eq!(kinds, ["Scheduled", "Ready", "Mood"]);
        assert_eq!((&conditions[0], &conditions[2]), (&scheduled, &strange));
    }

    #[test]
    fn what_an_earlier_agent_told_of_pressure_is_taken_back() {
        let pressure = json!({"type": "DiskPressure", "status": "True", "reason": "NearLimit", "message": "full",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let once = after(&running(5), &json!({"conditions": [pressure]}));
        let of = |status: &Value| {
            let all = status["conditions"].as_array().unwrap();
            all.iter()
                .find(|one| kind_of(one) == "DiskPressure")
                .unwrap()
                .clone()
        };
        let told = of(&once);
        assert_eq!(
            (&told["status"], &told["reason"]),
            (&json!("False"), &json!("Enough"))
        );
        assert_eq!(after(&running(5), &once), once);
    }

    #[test]
    fn a_deletion_is_no_failure() {
        let refuse = |reason: Reason| {
            let cause = Cause::new(reason, reason.default_domain(), "so it was");
            let status = refused(&cause, &seen(&json!({})), at(5));
            status.conditions.iter().any(|one| one.type_ == "Stalled")
        };
        assert!(!refuse(Reason::Deleted));
        assert!(refuse(Reason::SpecInvalid));
    }

    #[test]
    fn telling_the_same_again_changes_nothing() {
        let once = after(&running(5), &json!({}));
        assert_eq!(after(&running(5), &once), once);
        // A later agent has other times in mind; what stands there is older and holds.
        let mut later = running(5);
        later.conditions = running(50).conditions;
        assert_eq!(after(&later, &once), once);
    }

    #[test]
    fn a_condition_that_was_otherwise_meanwhile_begins_now() {
        let mut before = after(&running(5), &json!({}));
        before["conditions"][1]["status"] = json!("Unknown");
        before["conditions"][1]["reason"] = json!("AgentUnreachable");
        before["conditions"][1]["lastTransitionTime"] = json!(at(50).to_string());
        let status = after(&running(5), &before);
        let ready = &status["conditions"][1];
        assert_eq!(ready["status"], "True");
        assert_eq!(
            ready["lastTransitionTime"],
            serde_json::to_value(Time(at(100))).unwrap()
        );
    }

    #[test]
    fn a_refusal_settles_every_condition_and_is_bounded() {
        let cause = Cause::new(
            Reason::SpecInvalid,
            FailureDomain::User,
            "x".repeat(1_000_000),
        );
        let before = json!({"startedAt": at(0).to_string(), "imageDigest": "sha256:1", "runtime": {"name": "runsc"}});
        let last = seen(&json!({"metadata": {"generation": 3}, "status": before}));
        let status = after(&refused(&cause, &last, at(1)), &before);
        assert_eq!(status["phase"], "Failed");
        assert_eq!(status["observedGeneration"], 3);
        assert_eq!(status["termination"]["reason"], "SpecInvalid");
        assert_eq!(status["termination"]["startedAt"], status["startedAt"]);
        assert!(status["startedAt"].is_string());
        assert_eq!(status["imageDigest"], "sha256:1");
        assert_eq!(status.get("runtime"), None, "it cannot be read");
        let conditions = status["conditions"].as_array().unwrap();
        let kinds: Vec<_> = conditions.iter().map(kind_of).collect();
        assert_eq!(kinds, ["Scheduled", "Ready", "Stalled", "Finished"]);
        assert!(status.to_string().len() < 5 * 4096);
    }
}
