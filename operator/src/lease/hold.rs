//! Taking the Lease, keeping it, giving it back.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{EVERY, HOLDS, NAME, Standing, Step, TRIES, Watching};
use crate::clock;
use crate::told::chain;

/// How long one request may take: several fit into [`TRIES`].
const PATIENCE: Duration = Duration::from_secs(3);

/// Who holds it, and where it is.
#[derive(Clone)]
pub struct Holder {
    /// The apiserver.
    pub client: Client,
    /// Where the Lease is.
    pub namespace: String,
    /// What tells this process from every other.
    pub identity: String,
}

/// The process has to end.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// Another holds it.
    #[error("lost the Lease {0}/{NAME}: another replica holds it")]
    Taken(String),
    /// It could not be renewed in time.
    #[error("lost the Lease {0}/{NAME}: it could not be renewed for {seconds} s", seconds = TRIES.as_secs())]
    Expired(String),
}

/// Takes the Lease when it can be had, and keeps it. Returns `Ok` when stopped, the Lease given back.
pub async fn hold(
    holder: &Holder,
    standing: &watch::Sender<Standing>,
    stop: &CancellationToken,
) -> Result<(), HoldError> {
    let mut watching = Watching::default();
    loop {
        let now = clock::now().run;
        // Cancel safe: what a request that is dropped wrote is read anew, or expires.
        let round = tokio::select! {
            () = stop.cancelled() => break,
            round = tokio::time::timeout(PATIENCE, holder.round(&mut watching)) => round,
        };
        let (leads, answers) = match round {
            Ok(Ok(Step::Lost)) => return Err(HoldError::Taken(holder.namespace.clone())),
            Ok(Ok(Step::Wait)) => (false, true),
            Ok(Ok(Step::Take | Step::Renew)) => {
                watching.renewed(now);
                (true, true)
            }
            // Another was first, which the next round sees.
            Ok(Err(Error::Api(status))) if status.code == 409 => (standing.borrow().leads, true),
            Ok(Err(error)) => {
                tracing::warn!(error = chain(&error), "cannot reach the Lease {NAME}");
                (standing.borrow().leads, false)
            }
            Err(_) => {
                tracing::warn!("the apiserver does not answer about the Lease {NAME}");
                (standing.borrow().leads, false)
            }
        };
        if watching.is_over(clock::now().run) {
            return Err(HoldError::Expired(holder.namespace.clone()));
        }
        let new = Standing { leads, answers };
        standing.send_if_modified(|old| {
            if leads && !old.leads {
                tracing::info!(identity = holder.identity, "this replica acts");
            }
            std::mem::replace(old, new) != new
        });
        let next = watching
            .over_at()
            .map_or(now + EVERY, |over| over.min(now + EVERY));
        tokio::select! {
            () = stop.cancelled() => break,
            () = clock::sleep_until(next) => {}
        }
    }
    if standing.borrow().leads {
        let given = tokio::time::timeout(PATIENCE, holder.give_back()).await;
        if let Ok(Err(error)) = given {
            tracing::warn!(
                error = chain(&error),
                "cannot give back the Lease {NAME}; it expires"
            );
        }
    }
    Ok(())
}

impl Holder {
    fn api(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn round(&self, watching: &mut Watching) -> Result<Step, Error> {
        let api = self.api();
        let seen = api.get_opt(NAME).await?;
        let step = watching.step(seen.as_ref(), &self.identity, clock::now().run);
        match step {
            Step::Lost | Step::Wait => {}
            Step::Take | Step::Renew => {
                let lease = self.lease(seen.as_ref(), step);
                // With the version that was read, so that of two who take it one is refused.
                match seen {
                    Some(_) => api.replace(NAME, &PostParams::default(), &lease).await?,
                    None => api.create(&PostParams::default(), &lease).await?,
                };
            }
        }
        Ok(step)
    }

    fn lease(&self, seen: Option<&Lease>, step: Step) -> Lease {
        let now = MicroTime(clock::now().wall);
        let before = seen.and_then(|seen| seen.spec.clone()).unwrap_or_default();
        let taken = step == Step::Take;
        Lease {
            metadata: ObjectMeta {
                name: Some(NAME.to_owned()),
                resource_version: seen.and_then(|seen| seen.metadata.resource_version.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: i32::try_from(HOLDS.as_secs()).ok(),
                acquire_time: if taken {
                    Some(now.clone())
                } else {
                    before.acquire_time
                },
                renew_time: Some(now),
                lease_transitions: Some(
                    before.lease_transitions.unwrap_or(0) + i32::from(taken && seen.is_some()),
                ),
                ..LeaseSpec::default()
            }),
        }
    }

    /// Nobody holds it.
    async fn give_back(&self) -> Result<(), Error> {
        let api = self.api();
        let mut lease = api.get(NAME).await?;
        if let Some(spec) = lease
            .spec
            .as_mut()
            .filter(|spec| spec.holder_identity.as_ref() == Some(&self.identity))
        {
            spec.holder_identity = None;
            api.replace(NAME, &PostParams::default(), &lease).await?;
        }
        Ok(())
    }
}
