use cloche_crds::{FailureDomain, Phase, Reason};
use serde_json::json;

use super::super::judge::{Judgement, Stance, judge};
use super::super::seen::tests::seen;
use super::*;
use crate::sandbox::Cause;
use crate::sandbox::fixture::now_at;

fn ours() -> OurNode {
    OurNode {
        name: "one".to_owned(),
        uid: "node-1".to_owned(),
    }
}

fn entry(patch: &Value, hold: Hold) -> Entry {
    let seen = seen(patch);
    let mut entry = Entry::new(seen.key.clone(), seen.uid.clone(), hold);
    entry.see(seen);
    entry.presence = Presence::Listed;
    entry
}

fn taken() -> Hold {
    let stance = Stance::New { record_lost: false };
    match judge(&seen(&json!({})), Some(&ours()), stance) {
        Judgement::Take(desired) => Hold::Taken(Arc::new(*desired)),
        other => panic!("{other:?}"),
    }
}

fn deleting() -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
}

fn accounted(revision: u64, driven: &[&str]) -> Accounted {
    Accounted {
        revision,
        driven: driven.iter().map(|uid| (*uid).to_owned()).collect(),
    }
}

fn next(entry: &Entry, accounted: &Accounted, second: i64) -> Next {
    let ours = ours();
    let around = Around {
        ours: Some(&ours),
        accounted,
    };
    entry.next(around, now_at(second))
}

fn posted(phase: Phase) -> Arc<Sandbox> {
    let mut object = Sandbox::new("demo", cloche_crds::SandboxSpec::default());
    let mut status = SandboxStatus {
        phase,
        ..SandboxStatus::default()
    };
    if phase == Phase::Failed {
        let cause = Cause::new(Reason::Error, FailureDomain::Workload, "so it was");
        status = status::refused(&cause, &seen(&json!({})), now_at(0).wall);
    }
    object.status = Some(status);
    Arc::new(object)
}

fn told(next: &Next) -> String {
    match next {
        Next::Do(Request::Tell(status)) => status["phase"].as_str().unwrap().to_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_finalizer_goes_when_nothing_is_left_and_not_before() {
    let dropped = Hold::Dropped { revision: 5 };
    let entry = entry(&deleting(), dropped);
    let is_release = |next: Next| matches!(next, Next::Do(Request::Release(_)));
    assert!(is_release(next(&entry, &accounted(5, &[]), 0)));
    // The supervisor has not seen yet that it is to go: it may be about to begin it.
    assert_eq!(next(&entry, &accounted(4, &[]), 0), Next::Wait);
    assert_eq!(next(&entry, &accounted(9, &["uid-1"]), 0), Next::Wait);
    let mut busy = entry.clone();
    busy.busy = true;
    assert_eq!(next(&busy, &accounted(5, &[]), 0), Next::Wait);
    let mut later = entry;
    later.not_before = Duration::from_secs(3);
    let at = next(&later, &accounted(5, &[]), 0);
    assert_eq!(at, Next::At(Duration::from_secs(3)));
}

#[test]
fn the_finalizer_of_one_that_stays_or_is_anothers_is_left_alone() {
    let nothing = accounted(5, &[]);
    let staying = entry(&json!({}), Hold::Dropped { revision: 1 });
    assert_eq!(next(&staying, &nothing, 0), Next::Wait);
    let mut others = deleting();
    others["status"] = json!({"nodeUID": "node-2"});
    let others = entry(&others, Hold::Dropped { revision: 1 });
    assert_eq!(next(&others, &nothing, 0), Next::Wait);
    let mut released = deleting();
    released["metadata"]["finalizers"] = json!(["a/b"]);
    let released = entry(&released, Hold::Dropped { revision: 1 });
    assert_eq!(next(&released, &nothing, 0), Next::Wait);
}

#[test]
fn the_end_is_told_before_the_finalizer_goes() {
    let mut ended = entry(&deleting(), Hold::Dropped { revision: 1 });
    ended.post(posted(Phase::Failed), Duration::ZERO);
    let nothing = accounted(5, &[]);
    assert!(!ended.is_settled(Some(&ours())));
    let Next::Do(Request::Tell(status)) = next(&ended, &nothing, 0) else {
        panic!()
    };
    let mut after = deleting();
    after["metadata"]["resourceVersion"] = json!("101");
    after["status"] = Value::Object(status);
    ended.see(seen(&after));
    assert!(ended.is_settled(Some(&ours())));
    assert!(matches!(
        next(&ended, &nothing, 0),
        Next::Do(Request::Release(_))
    ));
}

#[test]
fn an_end_that_is_refused_is_dropped() {
    let mut ended = entry(&json!({}), taken());
    ended.post(posted(Phase::Failed), Duration::ZERO);
    let driven = accounted(5, &["uid-1"]);
    let Next::Do(Request::Tell(status)) = next(&ended, &driven, 0) else {
        panic!()
    };
    ended.answer(status);
    assert_eq!(next(&ended, &driven, 0), Next::Wait);
    assert!(ended.is_settled(Some(&ours())));
    // It was not as it was thought to be: once more.
    ended.see(seen(&json!({"metadata": {"resourceVersion": "101"}})));
    assert_eq!(told(&next(&ended, &driven, 0)), "Failed");
}

#[test]
fn running_is_told_at_once_and_once() {
    let mut running = entry(&json!({}), taken());
    let driven = accounted(1, &["uid-1"]);
    running.post(posted(Phase::Starting), now_at(0).boot);
    let at = next(&running, &driven, 0);
    assert_eq!(at, Next::At(Duration::from_secs(1)));
    running.post(posted(Phase::Running), now_at(0).boot);
    let first = next(&running, &driven, 0);
    assert_eq!(told(&first), "Running");
    let Next::Do(Request::Tell(status)) = first else {
        panic!()
    };
    running.see(seen(
        &json!({"status": status, "metadata": {"resourceVersion": "101"}}),
    ));
    assert_eq!(next(&running, &driven, 0), Next::Wait);
    // The watch tells late how it was before that.
    running.see(seen(&json!({})));
    assert_eq!(next(&running, &driven, 0), Next::Wait);
}

#[test]
fn nothing_is_told_of_anothers_or_of_what_is_over() {
    let driven = accounted(1, &["uid-1"]);
    for patch in [
        json!({"status": {"nodeUID": "node-2"}}),
        json!({"status": {"termination": {"reason": "NodeLost"}}}),
    ] {
        let mut running = entry(&patch, taken());
        running.post(posted(Phase::Failed), Duration::ZERO);
        assert_eq!(next(&running, &driven, 0), Next::Wait, "{patch}");
        assert!(running.is_settled(Some(&ours())));
    }
    let mut running = entry(&json!({}), taken());
    running.post(posted(Phase::Running), Duration::ZERO);
    let around = Around {
        ours: None,
        accounted: &driven,
    };
    assert_eq!(running.next(around, now_at(0)), Next::Wait);
}

#[test]
fn what_is_absent_is_asked_for_while_something_of_it_is_here() {
    let mut absent = entry(&json!({}), taken());
    absent.presence = Presence::Absent {
        ask_at: Duration::from_secs(2),
    };
    let driven = accounted(1, &["uid-1"]);
    let wait = next(&absent, &driven, 1);
    assert_eq!(wait, Next::At(Duration::from_secs(2)));
    assert_eq!(next(&absent, &driven, 2), Next::Do(Request::Ask));
    absent.hold = Hold::Dropped { revision: 2 };
    assert_eq!(next(&absent, &driven, 2), Next::Do(Request::Ask));
    assert_eq!(next(&absent, &accounted(2, &[]), 2), Next::Forget);
}

#[test]
fn what_is_gone_is_forgotten_with_its_last_rest() {
    let mut gone = entry(&json!({}), Hold::Dropped { revision: 2 });
    gone.presence = Presence::Gone;
    assert!(gone.is_settled(None));
    assert_eq!(next(&gone, &accounted(2, &["uid-1"]), 0), Next::Wait);
    assert_eq!(next(&gone, &accounted(2, &[]), 0), Next::Forget);
}
