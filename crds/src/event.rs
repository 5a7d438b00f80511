//! The event that tells of an abnormal end, for who looks at events and not at the object's status.
//!
//! Its name is made of the object's: whoever tells an end twice makes one event.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

use crate::condition::cut;
use crate::reason::Reason;
use crate::sandbox::{API_VERSION, KIND};

/// Longest `note` of an event, in bytes: the apiserver's.
const MAX_NOTE: usize = 1024;
/// What happened, as `action` tells it.
const ACTION: &str = "End";

/// The sandbox that an event is about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// Who tells.
#[derive(Clone, Copy, Debug)]
pub struct Teller<'a> {
    /// The kind of part: `cloche.dev/agent`.
    pub controller: &'a str,
    /// Which one of it: the node of an agent.
    pub instance: &'a str,
}

/// The event of a sandbox's end, where that is worth one.
pub fn of_end(
    subject: Subject<'_>,
    (reason, message): (Reason, &str),
    by: Teller<'_>,
    now: Timestamp,
) -> Option<Event> {
    let Subject {
        namespace,
        name,
        uid,
    } = subject;
    reason.is_worth_an_event().then(|| Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{uid}")),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        regarding: Some(ObjectReference {
            api_version: Some(API_VERSION.to_owned()),
            kind: Some(KIND.to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }),
        type_: Some("Warning".to_owned()),
        reason: Some(reason.as_str().to_owned()),
        note: Some(cut(message, MAX_NOTE)),
        action: Some(ACTION.to_owned()),
        event_time: Some(MicroTime(now)),
        reporting_controller: Some(by.controller.to_owned()),
        reporting_instance: Some(by.instance.to_owned()),
        ..Event::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(reason: Reason, message: &str) -> Option<Event> {
        let subject = Subject {
            namespace: "team",
            name: "demo",
            uid: "u-1",
        };
        let by = Teller {
            controller: "cloche.dev/agent",
            instance: "node1",
        };
        of_end(subject, (reason, message), by, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn an_abnormal_end_is_told_of_its_object_once() {
        let told = event(Reason::OOMKilled, "too much").unwrap();
        assert_eq!(told.metadata.name.as_deref(), Some("demo.u-1"));
        let about = told.regarding.unwrap();
        assert_eq!(
            (about.kind.as_deref(), about.uid.as_deref()),
            (Some("Sandbox"), Some("u-1"))
        );
        assert_eq!(
            (
                told.type_.as_deref(),
                told.reason.as_deref(),
                told.note.as_deref()
            ),
            (Some("Warning"), Some("OOMKilled"), Some("too much"))
        );
        let long = event(Reason::ImageInvalid, &"é".repeat(MAX_NOTE)).unwrap();
        assert!(long.note.is_some_and(|note| note.len() <= MAX_NOTE));
    }

    #[test]
    fn an_end_that_was_asked_for_is_none() {
        let quiet = Reason::ALL
            .into_iter()
            .filter(|reason| event(*reason, "").is_none());
        let asked_for = [
            Reason::Completed,
            Reason::Error,
            Reason::DeadlineExceeded,
            Reason::IdleTimeout,
            Reason::Deleted,
        ];
        assert_eq!(quiet.collect::<Vec<_>>(), asked_for);
    }
}
