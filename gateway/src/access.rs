//! Whether a user may do what they ask: the apiserver is asked, each time.

use std::time::Duration;

use cloche_crds::cluster::{SUBRESOURCES_GROUP, VERSION};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::sync::Semaphore;

use crate::front_proxy::User;
use crate::refusal::{Kind, Refusal};

/// How long one question to the apiserver may take, its turn included.
const PATIENCE: Duration = Duration::from_secs(10);
/// Questions to the apiserver at a time.
const AT_A_TIME: usize = 64;

/// What is done with a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Runs a command.
    Exec,
    /// Joins one that runs.
    Attach,
    /// Reads the output of one.
    Log,
    /// Looks what the sandbox uses.
    Usage,
}

impl Deed {
    /// The subresource.
    pub(crate) const fn subresource(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::Log => "log",
            Self::Usage => "usage",
        }
    }

    /// The verb that a role must have. A WebSocket is a GET, for which the apiserver asks for `get` alone, and who may read must not
    /// therefore run commands.
    pub(crate) const fn verb(self) -> &'static str {
        match self {
            Self::Exec | Self::Attach => "create",
            Self::Log | Self::Usage => "get",
        }
    }
}

/// The question.
pub(crate) fn review(user: &User, namespace: &str, name: &str, deed: Deed) -> SubjectAccessReview {
    let text = |text: &str| Some(text.to_owned());
    SubjectAccessReview {
        metadata: ObjectMeta::default(),
        spec: SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            uid: user.uid.clone(),
            groups: Some(user.groups.clone()),
            extra: Some(user.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                group: text(SUBRESOURCES_GROUP),
                version: text(VERSION),
                resource: text("sandboxes"),
                subresource: text(deed.subresource()),
                namespace: text(namespace),
                name: text(name),
                verb: text(deed.verb()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        status: None,
    }
}

/// What the answer means. Without a status there is no answer.
pub(crate) fn decide(
    answer: &SubjectAccessReview,
    user: &User,
    namespace: &str,
    name: &str,
    deed: Deed,
) -> Result<(), Refusal> {
    let Some(status) = &answer.status else {
        let message = "the apiserver did not say whether it is allowed; retry";
        return Err(Refusal::new(Kind::InternalError, message));
    };
    if status.allowed && status.denied != Some(true) {
        return Ok(());
    }
    let mut message = format!(
        "sandboxes.{SUBRESOURCES_GROUP} {name:?} is forbidden: user {:?} cannot {} resource \"sandboxes/{}\" in API group \
         {SUBRESOURCES_GROUP:?} in the namespace {namespace:?}",
        user.name,
        deed.verb(),
        deed.subresource(),
    );
    for why in [&status.reason, &status.evaluation_error]
        .into_iter()
        .flatten()
        .filter(|why| !why.is_empty())
    {
        message.push_str(": ");
        message.push_str(why);
    }
    Err(Refusal::new(Kind::Forbidden, message))
}

/// The apiserver, asked so much at a time and so long. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Apiserver {
    client: kube::Client,
    turns: std::sync::Arc<Semaphore>,
}

impl Apiserver {
    /// Over `client`.
    pub(crate) fn new(client: kube::Client) -> Self {
        Self {
            client,
            turns: std::sync::Arc::new(Semaphore::new(AT_A_TIME)),
        }
    }

    /// Lets through who may.
    pub(crate) async fn check(
        &self,
        user: &User,
        namespace: &str,
        name: &str,
        deed: Deed,
    ) -> Result<(), Refusal> {
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let question = review(user, namespace, name, deed);
        let params = PostParams::default();
        let answer = self
            .ask("may they do that", reviews.create(&params, &question))
            .await?;
        decide(&answer, user, namespace, name, deed)
    }

    /// One object by name; `None` where there is none.
    pub(crate) async fn get<K>(&self, api: &Api<K>, name: &str) -> Result<Option<K>, Refusal>
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        self.ask(name, api.get_opt(name)).await
    }

    /// For `Api`s.
    pub(crate) fn client(&self) -> kube::Client {
        self.client.clone()
    }

    async fn ask<T>(
        &self,
        what: &str,
        question: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Refusal> {
        let asked = async {
            let _turn = self.turns.acquire().await;
            question.await
        };
        match tokio::time::timeout(PATIENCE, asked).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                tracing::warn!(
                    what,
                    error = &error as &dyn std::error::Error,
                    "the apiserver was asked in vain"
                );
                Err(unanswered(&error))
            }
            Err(_) => {
                let message = "the apiserver does not answer the gateway; retry";
                Err(Refusal::new(Kind::ServiceUnavailable, message))
            }
        }
    }
}

/// What an apiserver's error means to the user: it is not about them, and opens nothing.
fn unanswered(error: &kube::Error) -> Refusal {
    match error {
        kube::Error::Api(status) if status.code < 500 && status.code != 429 => Refusal::new(
            Kind::InternalError,
            format!(
                "the apiserver refused a request of the gateway: {}",
                status.message
            ),
        ),
        error => Refusal::new(
            Kind::ServiceUnavailable,
            format!("the gateway cannot ask the apiserver; retry: {error}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::authorization::v1::SubjectAccessReviewStatus;

    use super::*;

    fn alice() -> User {
        User {
            name: "alice".to_owned(),
            uid: Some("17".to_owned()),
            groups: vec!["dev".to_owned()],
            extra: BTreeMap::from([("scopes".to_owned(), vec!["a".to_owned()])]),
        }
    }

    #[test]
    fn the_question_names_all_that_a_role_can_tell_apart() {
        let review = review(&alice(), "team", "demo", Deed::Exec);
        let wanted = serde_json::json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {},
            "spec": {
                "user": "alice", "uid": "17", "groups": ["dev"], "extra": {"scopes": ["a"]},
                "resourceAttributes": {
                    "group": "subresources.cloche.dev", "version": "v1alpha1", "resource": "sandboxes",
                    "subresource": "exec", "namespace": "team", "name": "demo", "verb": "create",
                },
            },
        });
        assert_eq!(serde_json::to_value(review).unwrap(), wanted);
        assert_eq!((Deed::Attach.verb(), Deed::Log.verb()), ("create", "get"));
    }

    #[test]
    fn only_a_plain_yes_lets_through() {
        let decided = |status| {
            let answer = SubjectAccessReview {
                status,
                ..SubjectAccessReview::default()
            };
            decide(&answer, &alice(), "team", "demo", Deed::Exec).map_err(|refusal| refusal.kind)
        };
        let status = |allowed, denied| {
            Some(SubjectAccessReviewStatus {
                allowed,
                denied,
                reason: Some("because".to_owned()),
                evaluation_error: None,
            })
        };
        assert_eq!(decided(status(true, None)), Ok(()));
        assert_eq!(decided(status(true, Some(true))), Err(Kind::Forbidden));
        assert_eq!(decided(status(false, None)), Err(Kind::Forbidden));
        assert_eq!(decided(None), Err(Kind::InternalError));
    }
}
