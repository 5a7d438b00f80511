use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::*;

fn lease(holder: Option<&str>, renewed: i64) -> Lease {
    Lease {
        spec: Some(LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(jiff::Timestamp::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        }),
        ..Lease::default()
    }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn what_is_free_is_taken() {
    let mut watching = Watching::default();
    assert_eq!(watching.step(None, "me", at(0)), Step::Take);
    let given_back = lease(None, 0);
    assert_eq!(watching.step(Some(&given_back), "me", at(0)), Step::Take);
    let emptied = lease(Some(""), 0);
    assert_eq!(watching.step(Some(&emptied), "me", at(0)), Step::Take);
}

#[test]
fn anothers_is_taken_only_after_it_was_seen_still_for_as_long_as_it_holds() {
    let mut watching = Watching::default();
    // However long ago it says that it was renewed.
    let old = lease(Some("other"), 0);
    for (now, step) in [(100, Step::Wait), (115, Step::Wait), (116, Step::Take)] {
        assert_eq!(watching.step(Some(&old), "me", at(now)), step, "{now}");
    }
    let renewed = lease(Some("other"), 1);
    assert_eq!(watching.step(Some(&renewed), "me", at(116)), Step::Wait);
    assert_eq!(watching.step(Some(&renewed), "me", at(131)), Step::Wait);
    assert_eq!(watching.step(Some(&renewed), "me", at(132)), Step::Take);
}

#[test]
fn ours_is_renewed_and_lost_to_another() {
    let mut watching = Watching::default();
    assert_eq!(
        watching.step(Some(&lease(Some("me"), 0)), "me", at(0)),
        Step::Renew
    );
    watching.renewed(at(0));
    assert!(!watching.is_over(at(9)));
    assert!(watching.is_over(at(10)));
    watching.renewed(at(9));
    assert!(!watching.is_over(at(18)));
    let other = lease(Some("other"), 0);
    assert_eq!(watching.step(Some(&other), "me", at(10)), Step::Lost);
    assert_eq!(watching.step(None, "me", at(10)), Step::Lost);
}

#[test]
fn who_stands_by_has_nothing_to_lose() {
    let watching = Watching::default();
    assert!(!watching.is_over(at(1_000_000)));
    assert_eq!(watching.over_at(), None);
    assert!(TRIES < HOLDS);
}
