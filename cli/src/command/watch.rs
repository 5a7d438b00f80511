//! One sandbox over time, over restarts of the agent too.

use cloche_proto::agent::v1alpha1::{ListRequest, SandboxKey, WatchEvent};
use tonic::{Code, Streaming};

use crate::connection::{Agent, Outage, is_broken};
use crate::error::Error;
use crate::object::Object;

/// Follows one sandbox.
pub(crate) struct Watch<'a> {
    agent: &'a Agent,
    key: SandboxKey,
    events: Option<Streaming<WatchEvent>>,
    seen: bool,
    last: Option<Object>,
}

impl<'a> Watch<'a> {
    /// Nothing is connected yet.
    pub(crate) fn new(agent: &'a Agent, key: SandboxKey) -> Self {
        Self {
            agent,
            key,
            events: None,
            seen: false,
            last: None,
        }
    }

    /// The newest that was seen of it; once it is gone, what it looked like at the end, as far as the agent told.
    pub(crate) fn last(&self) -> Option<&Object> {
        self.last.as_ref()
    }

    /// The sandbox as it is at first, and then whenever it has changed; `None`: there is none.
    pub(crate) async fn next(&mut self) -> Result<Option<Object>, Error> {
        let mut outage: Option<Outage> = None;
        loop {
            let last = match self.attempt().await {
                Ok(next) => return Ok(next),
                Err(Error::Refused { status, .. }) if is_broken(&status) => {
                    status.message().to_owned()
                }
                Err(problem @ (Error::Connect { .. } | Error::Protocol { .. })) if self.seen => {
                    problem.to_string()
                }
                Err(problem) => return Err(problem),
            };
            self.events = None;
            let outage = outage.get_or_insert_with(Outage::begin);
            if outage.is_too_long() {
                return Err(Error::Lost {
                    operation: self.operation(),
                    seconds: outage.seconds(),
                    last,
                    left: "what became of it is not known".to_owned(),
                });
            }
            tokio::time::sleep(outage.pause()).await;
        }
    }

    async fn attempt(&mut self) -> Result<Option<Object>, Error> {
        let operation = self.operation();
        let refused = |status| Error::refused(operation.clone(), status);
        let events = match &mut self.events {
            Some(events) => events,
            none => {
                let request = ListRequest {
                    key: Some(self.key.clone()),
                };
                let mut client = self.agent.connect().await?;
                match client.watch(request).await {
                    Ok(response) => none.insert(response.into_inner()),
                    Err(status) if status.code() == Code::NotFound => return Ok(None),
                    Err(status) => return Err(refused(status)),
                }
            }
        };
        loop {
            let event = match events.message().await {
                Ok(Some(event)) => event,
                Ok(None) => {
                    return Err(refused(tonic::Status::unavailable("it closed the stream")));
                }
                Err(status) if status.code() == Code::NotFound => return Ok(None),
                Err(status) => return Err(refused(status)),
            };
            self.seen = true;
            if event.synced {
                continue;
            }
            let object = Object::read(&event.object).map_err(|message| Error::Wrong {
                operation: operation.clone(),
                message,
            })?;
            self.last = Some(object.clone());
            return Ok((!event.deleted).then_some(object));
        }
    }

    fn operation(&self) -> String {
        format!("watch sandbox {}", self.key.name)
    }
}
