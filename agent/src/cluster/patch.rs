//! JSON patches. Pure. Each begins by a test of the UID: one that was queued for an object can never hit another of its name.

use cloche_crds::cluster::FINALIZER;
use serde_json::{Map, Value, json};

use super::seen::Seen;

/// Puts `status` in the place of what stands there.
pub(super) fn status(uid: &str, status: &Map<String, Value>) -> Value {
    json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/status", "value": status},
    ])
}

/// Takes our finalizer off; `None` where it is not on.
pub(super) fn release(seen: &Seen) -> Option<Value> {
    let at = seen.finalizers.iter().position(|one| one == FINALIZER)?;
    let path = format!("/metadata/finalizers/{at}");
    Some(json!([
        {"op": "test", "path": "/metadata/uid", "value": seen.uid},
        {"op": "test", "path": path, "value": FINALIZER},
        {"op": "remove", "path": path},
    ]))
}

#[cfg(test)]
mod tests {
    use super::super::seen::tests::seen;
    use super::*;

    #[test]
    fn only_our_finalizer_is_taken_off_by_where_it_stands() {
        let others = seen(&json!({"metadata": {"finalizers": ["a/b", FINALIZER, "c/d"]}}));
        let patch = release(&others).unwrap();
        assert_eq!(patch[1]["path"], "/metadata/finalizers/1");
        assert_eq!(
            patch[2],
            json!({"op": "remove", "path": "/metadata/finalizers/1"})
        );
        let none = seen(&json!({"metadata": {"finalizers": ["a/b"]}}));
        assert_eq!(release(&none), None);
    }
}
