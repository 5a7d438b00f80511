//! The apiserver's Sandboxes: asked for one by one, and patched.

use std::time::Duration;

use cloche_crds::refusal::Refusal;
use cloche_crds::sandbox::Sandbox;
use futures::future::BoxFuture;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::Status;
use serde_json::Value;

use crate::source::SandboxKey;

/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum ObjectError {
    /// There is no such object, by the apiserver's word.
    #[error("there is no such object")]
    Gone,
    /// It will be refused again: by a rule, or because a test of the patch failed.
    #[error("the apiserver refuses it: {0}")]
    Refused(String),
    /// It may succeed when it is tried again.
    #[error("the apiserver does not answer as it should")]
    Unanswered(#[source] Box<kube::Error>),
    /// There was no answer in time.
    #[error("the apiserver has not answered within {} s", PATIENCE.as_secs())]
    Silent,
}

impl ObjectError {
    /// Whether it tells that the apiserver is away, and nothing of the object.
    pub(super) fn is_of_apiserver(&self) -> bool {
        match self {
            Self::Gone | Self::Refused(_) => false,
            Self::Silent => true,
            Self::Unanswered(error) => {
                !matches!(&**error, kube::Error::Api(status) if status.code < 429)
            }
        }
    }
}

/// What is asked of the apiserver. Each request has a deadline.
pub(super) trait Objects: Send + Sync + 'static {
    /// An object, live.
    fn get(&self, key: &SandboxKey) -> BoxFuture<'static, Result<DynamicObject, ObjectError>>;
    /// Applies a JSON patch to an object.
    fn patch(
        &self,
        key: &SandboxKey,
        part: Part,
        patch: Value,
    ) -> BoxFuture<'static, Result<DynamicObject, ObjectError>>;
    /// Tells an event; that it has been told before is fine.
    fn tell(&self, event: &Event) -> BoxFuture<'static, Result<(), ObjectError>>;
}

/// Which part of an object is patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Everything but the status.
    Main,
    /// The status alone.
    Status,
}

/// Those of a cluster.
#[derive(Clone)]
pub(super) struct ClusterObjects {
    client: kube::Client,
    resource: ApiResource,
}

impl ClusterObjects {
    /// Asked for through `client`.
    pub(super) fn new(client: kube::Client) -> Self {
        Self {
            client,
            resource: ApiResource::erase::<Sandbox>(&()),
        }
    }

    /// All, for a watch.
    pub(super) fn all<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource>,
    {
        Api::all_with(self.client.clone(), &self.resource)
    }

    fn of(&self, key: &SandboxKey) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &key.namespace, &self.resource)
    }
}

impl Objects for ClusterObjects {
    fn get(&self, key: &SandboxKey) -> BoxFuture<'static, Result<DynamicObject, ObjectError>> {
        let (api, name) = (self.of(key), key.name.clone());
        Box::pin(async move { in_time(&name, api.get(&name)).await })
    }

    fn patch(
        &self,
        key: &SandboxKey,
        part: Part,
        patch: Value,
    ) -> BoxFuture<'static, Result<DynamicObject, ObjectError>> {
        let (api, name) = (self.of(key), key.name.clone());
        Box::pin(async move {
            let patch = serde_json::from_value(patch)
                .map_err(|error| ObjectError::Refused(error.to_string()))?;
            let (patch, params) = (Patch::Json::<()>(patch), PatchParams::default());
            match part {
                Part::Main => in_time(&name, api.patch(&name, &params, &patch)).await,
                Part::Status => in_time(&name, api.patch_status(&name, &params, &patch)).await,
            }
        })
    }

    fn tell(&self, event: &Event) -> BoxFuture<'static, Result<(), ObjectError>> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let event = event.clone();
        Box::pin(async move {
            let told = in_time("", api.create(&PostParams::default(), &event)).await;
            match told {
                Err(ObjectError::Unanswered(error)) if is_there(&error) => Ok(()),
                told => told.map(drop),
            }
        })
    }
}

fn is_there(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

async fn in_time<T>(
    name: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ObjectError> {
    match tokio::time::timeout(PATIENCE, request).await {
        Err(_) => Err(ObjectError::Silent),
        Ok(answer) => answer.map_err(|error| class(name, error)),
    }
}

/// What an error means. "Not found" is believed only of this very object: an apiserver that does not serve Sandboxes yet, or no more,
/// answers 404 as well.
fn class(name: &str, error: kube::Error) -> ObjectError {
    let refusal = match &error {
        kube::Error::Api(status) if status.code == 404 && names(status, name) => {
            return ObjectError::Gone;
        }
        // A policy of somebody else may be taken back, and until then what is told is not.
        kube::Error::Api(status)
            if status.code == 422 && Refusal::of(status) == Refusal::Foreign =>
        {
            None
        }
        kube::Error::Api(status) if matches!(status.code, 400 | 422) => {
            Some(status.message.clone())
        }
        _ => None,
    };
    match refusal {
        Some(message) => ObjectError::Refused(message),
        None => ObjectError::Unanswered(Box::new(error)),
    }
}

fn names(status: &Status, name: &str) -> bool {
    let details = status.details.as_ref();
    details.is_some_and(|details| details.name == name)
}

#[cfg(test)]
mod tests {
    use kube::core::response::StatusDetails;
    use serde_json::json;

    use super::*;

    fn answer(code: u16, name: &str) -> ObjectError {
        let details: StatusDetails = serde_json::from_value(json!({"name": name})).unwrap();
        let status = Status {
            code,
            details: Some(details),
            ..Status::default()
        };
        class("demo", kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn only_the_objects_own_absence_is_one() {
        assert!(matches!(answer(404, "demo"), ObjectError::Gone));
        for name in ["", "sandboxes"] {
            assert!(matches!(answer(404, name), ObjectError::Unanswered(_)));
        }
    }

    #[test]
    fn a_refusal_is_final_and_all_else_is_tried_again() {
        for code in [400, 422] {
            assert!(matches!(answer(code, "demo"), ObjectError::Refused(_)));
        }
        for code in [401, 403, 409, 410, 429, 500, 503] {
            assert!(matches!(answer(code, "demo"), ObjectError::Unanswered(_)));
        }
    }
}
