//! One sandbox over time, over restarts of the agent too.

use crate::backend::{Backend, Change, Changes, Failure, Outage, Selection};
use crate::error::Error;
use crate::object::Object;

/// Follows one sandbox.
pub(crate) struct Watch {
    name: String,
    changes: Changes,
    /// Something was heard: who does not answer later was there.
    seen: bool,
    last: Option<Object>,
}

impl Watch {
    /// Nothing is connected yet.
    pub(crate) fn new(backend: &Backend, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            changes: backend.changes(&Selection::One(name.to_owned())),
            seen: false,
            last: None,
        }
    }

    /// The newest that was seen of it; once it is gone, what it looked like at the end, as far as that was told.
    pub(crate) fn last(&self) -> Option<&Object> {
        self.last.as_ref()
    }

    /// The sandbox as it is at first, and then whenever it has changed; `None`: there is none.
    pub(crate) async fn next(&mut self) -> Result<Option<Object>, Error> {
        let mut outage: Option<Outage> = None;
        loop {
            let last = match self.changes.next().await {
                Ok(change) => {
                    self.seen = true;
                    match change {
                        Change::Present(object) => {
                            self.last = Some(object.clone());
                            return Ok(Some(object));
                        }
                        Change::Deleted(object) => {
                            self.last = Some(object);
                            return Ok(None);
                        }
                        Change::Absent => return Ok(None),
                    }
                }
                Err(Failure::Broken(message)) => message,
                Err(Failure::Unconnected(problem)) if self.seen => problem.to_string(),
                Err(failure) => return Err(failure.error(self.operation())),
            };
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

    fn operation(&self) -> String {
        format!("watch sandbox {}", self.name)
    }
}
