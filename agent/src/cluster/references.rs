//! What sandboxes take from Secrets and `ConfigMap`s, on which an agent has no right: the operator tells it, of sandboxes that are bound to
//! this node.
//!
//! Each question has a connection of its own. They are few, any replica of the operator answers, and so a Service spreads them.

use std::time::Duration;

use cloche_identity::{Credentials, Identity};
use cloche_proto::operator::v1alpha1 as pb;
use cloche_proto::operator::v1alpha1::references_client::ReferencesClient;
use tokio::sync::watch;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::image::Login;
use crate::sandbox::Values;

/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(5);
/// How long an answer may take: a little longer than the operator takes at most.
const ANSWER: Duration = Duration::from_secs(35);

/// The way to the operator. Cheap to clone.
#[derive(Clone, Debug)]
pub struct References {
    address: String,
    credentials: watch::Receiver<Option<Credentials>>,
}

impl References {
    /// The operator is asked at `address` (`HOST:PORT`), by the newest of `credentials`.
    pub(super) fn new(address: String, credentials: watch::Receiver<Option<Credentials>>) -> Self {
        Self {
            address,
            credentials,
        }
    }

    /// What the environment of a sandbox takes from elsewhere. The error says in words why that cannot be had for now.
    pub(crate) async fn environment(self, of: pb::SandboxReference) -> Result<Values, String> {
        let mut client = self.client().await?;
        let answer = client.environment(of).await;
        let answer = answer.map_err(|status| self.refused(&status))?;
        let variables = answer.into_inner().variables.into_iter();
        Ok(variables
            .map(|variable| (variable.name, variable.value))
            .collect())
    }

    /// By whom the registry of a sandbox's image may be asked. The error says in words why that cannot be had for now.
    pub(crate) async fn logins(self, of: pb::SandboxReference) -> Result<Vec<Login>, String> {
        let mut client = self.client().await?;
        let answer = client.logins(of).await;
        let answer = answer.map_err(|status| self.refused(&status))?;
        let logins = answer.into_inner().logins.into_iter();
        Ok(logins
            .map(
                |pb::Login {
                     secret,
                     user,
                     password,
                 }| Login {
                    secret,
                    user,
                    password,
                },
            )
            .collect())
    }

    async fn client(&self) -> Result<ReferencesClient<Channel>, String> {
        let credentials = self.credentials.borrow().clone();
        let credentials = credentials.ok_or(
            "the operator cannot be asked: the node's agent has no certificate yet".to_owned(),
        )?;
        let connect = cloche_identity::connect(
            &credentials,
            Identity::Operator,
            &self.address,
            |endpoint| endpoint.timeout(ANSWER),
        );
        let channel = tokio::time::timeout(CONNECT, connect)
            .await
            .unwrap_or_else(|_| Err("it does not answer".to_owned()));
        let channel = channel.map_err(|why| {
            format!(
                "the operator cannot be reached at {} from this node: {why}",
                self.address
            )
        })?;
        Ok(ReferencesClient::new(channel))
    }

    fn refused(&self, status: &Status) -> String {
        let message = status.message();
        if status.code() == Code::FailedPrecondition {
            return message.to_owned();
        }
        format!(
            "the operator at {} gives no answer: {message}",
            self.address
        )
    }
}
