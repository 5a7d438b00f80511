//! Ends that the operator tells, told as events too.

use std::time::Duration;

use cloche_crds::cluster::OPERATOR_CONTROLLER;
use cloche_crds::event::{Subject, Teller, of_end};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, PostParams};
use kube::{Client, Resource as _};

use crate::clock::Now;
use crate::failure::{Class, class, pause};
use crate::lenient::Lenient;
use crate::told::chain;

/// How often one is tried.
const TRIES: u32 = 5;
/// How long one try may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tells the end of a sandbox whose status was just written, if it has one that is worth an event. Nothing waits for it: one that cannot be
/// told after a few tries is not.
pub fn tell_end(client: &Client, written: Option<&Lenient>, now: Now) {
    let Some(event) = written.and_then(|written| of(written, now)) else {
        return;
    };
    let namespace = event.metadata.namespace.clone().unwrap_or_default();
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    tokio::spawn(async move {
        for failures in 0..TRIES {
            let (params, name) = (PostParams::default(), event.metadata.name.as_deref());
            let told = events.create(&params, &event);
            match tokio::time::timeout(PATIENCE, told).await {
                Ok(Ok(_)) => return,
                Ok(Err(error)) => match class(&error) {
                    // It has been told before.
                    Class::Conflict => return,
                    Class::Transient => {
                        tracing::warn!(event = name, error = chain(&error), "cannot tell an event");
                    }
                    Class::Gone | Class::Invalid | Class::Bug => {
                        tracing::warn!(event = name, error = chain(&error), "an event is refused");
                        return;
                    }
                },
                Err(_) => tracing::warn!(event = name, "the apiserver does not answer to an event"),
            }
            tokio::time::sleep(pause(failures, 0)).await;
        }
    });
}

fn of(sandbox: &Lenient, now: Now) -> Option<Event> {
    let end = sandbox.sandbox.status.as_ref()?.termination.as_ref()?;
    let meta = sandbox.meta();
    let subject = Subject {
        namespace: meta.namespace.as_deref()?,
        name: meta.name.as_deref()?,
        uid: meta.uid.as_deref()?,
    };
    let by = Teller {
        controller: OPERATOR_CONTROLLER,
        instance: OPERATOR_CONTROLLER,
    };
    of_end(subject, (end.reason, &end.message), by, now.wall)
}
