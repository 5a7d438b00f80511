//! Sandboxes over time, over restarts of who tells of them too.

use crate::backend::{Backend, Change, Changes, Failure, Outage, Selection};
use crate::error::Error;
use crate::object::Object;

/// Changes, tried on for a while when they break.
#[derive(Debug)]
pub(super) struct Steady {
    changes: Changes,
    /// Somebody was connected to: who does not answer later was there.
    seen: bool,
}

impl Steady {
    /// Nothing is connected yet.
    pub(super) fn new(backend: &Backend, selection: &Selection) -> Self {
        Self {
            changes: backend.changes(selection),
            seen: false,
        }
    }

    /// The next change. `operation`: what to call it in an error.
    pub(super) async fn next(&mut self, operation: &str) -> Result<Change, Error> {
        let mut outage: Option<Outage> = None;
        loop {
            let last = match self.changes.next().await {
                Ok(change) => {
                    self.seen = true;
                    return Ok(change);
                }
                Err(Failure::Broken(message)) => {
                    self.seen = true;
                    message
                }
                Err(Failure::Unconnected(problem)) if self.seen => problem.to_string(),
                Err(failure) => return Err(failure.error(operation)),
            };
            let outage = outage.get_or_insert_with(Outage::begin);
            if outage.is_too_long() {
                return Err(Error::Lost {
                    operation: operation.to_owned(),
                    seconds: outage.seconds(),
                    last,
                    left: "what became of it is not known".to_owned(),
                });
            }
            tokio::time::sleep(outage.pause()).await;
        }
    }
}

/// Follows one sandbox.
#[derive(Debug)]
pub(super) struct Watch {
    operation: String,
    changes: Steady,
    last: Option<Object>,
}

impl Watch {
    /// Nothing is connected yet.
    pub(super) fn new(backend: &Backend, name: &str) -> Self {
        Self {
            operation: format!("watch sandbox {name}"),
            changes: Steady::new(backend, &Selection::One(name.to_owned())),
            last: None,
        }
    }

    /// Of somebody who has been talked to before: who does not answer now is waited for.
    pub(super) fn again(backend: &Backend, name: &str) -> Self {
        let mut watch = Self::new(backend, name);
        watch.changes.seen = true;
        watch
    }

    /// The newest that was seen of it; once it is gone, what it looked like at the end, as far as that was told.
    pub(super) fn last(&self) -> Option<&Object> {
        self.last.as_ref()
    }

    /// The sandbox as it is at first, and then whenever it has changed; `None`: there is none.
    pub(super) async fn next(&mut self) -> Result<Option<Object>, Error> {
        match self.changes.next(&self.operation).await? {
            Change::Present(object) => {
                self.last = Some(object.clone());
                Ok(Some(object))
            }
            Change::Deleted(object) => {
                self.last = Some(object);
                Ok(None)
            }
            Change::Absent => Ok(None),
        }
    }
}
