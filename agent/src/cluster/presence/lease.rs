//! The node's Lease, renewed while the agent lives.

use std::time::Duration;

use cloche_crds::cluster::LEASE_SECONDS;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{PresenceError, in_time, offer};
use crate::clock;
use crate::cluster::judge::OurNode;
use crate::cluster::patience::pause;
use crate::unique;

/// Time between two renewals, on average: a Lease outlasts three that fail.
const PERIOD: Duration = Duration::from_secs(10);
/// Failures after which pauses grow no longer: the Lease must be renewed soon after the apiserver is back.
const PATIENT: u32 = 3;

/// Renews the Lease.
pub(in crate::cluster) struct Heart {
    leases: Api<Lease>,
    ours: watch::Receiver<Option<OurNode>>,
}

impl Heart {
    /// The Lease of our Node in `namespace`.
    pub(in crate::cluster) fn new(
        client: kube::Client,
        namespace: &str,
        ours: watch::Receiver<Option<OurNode>>,
    ) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            ours,
        }
    }

    /// Renews until `stop`.
    pub(in crate::cluster) async fn run(mut self, stop: CancellationToken) {
        // Safe to break off anywhere: a Lease that was not renewed is renewed by the next agent.
        stop.run_until_cancelled(self.beat()).await;
    }

    async fn beat(&mut self) {
        let mut failures = 0;
        loop {
            let known = self.ours.wait_for(Option::is_some).await;
            // Without, whoever knows the Node has ended, and the agent with it.
            let Some(node) = known.ok().and_then(|ours| ours.clone()) else {
                return;
            };
            let wait = match self.renew(&node).await {
                Ok(()) => {
                    failures = 0;
                    PERIOD.mul_f64(0.9 + unique::fraction() / 5.0)
                }
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the Lease is not renewed; trying again"
                    );
                    failures = (failures + 1).min(PATIENT);
                    pause(failures)
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    async fn renew(&self, node: &OurNode) -> Result<(), PresenceError> {
        let lease = lease(node, MicroTime(clock::now().wall));
        let (params, patch) = (PatchParams::default(), Patch::Merge(&lease));
        let renewed = self.leases.patch(&node.name, &params, &patch);
        match in_time("renew the Lease", renewed).await {
            Ok(_) => Ok(()),
            Err(PresenceError::Api { source, .. }) if matches!(&*source, kube::Error::Api(status) if status.code == 404) =>
            {
                let params = PostParams::default();
                let made = self.leases.create(&params, &lease);
                in_time("make the Lease", made).await.map(drop)
            }
            Err(error) => Err(error),
        }
    }
}

fn lease(node: &OurNode, now: MicroTime) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(node.name.clone()),
            owner_references: Some(vec![offer::owner(node)]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.name.clone()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }),
    }
}
