//! What happens to sandboxes of a cluster: a list, then a watch from its version on, asked for again when it ends.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::core::WatchEvent;
use serde_json::Value;
use tokio::time::Instant;

use super::Cluster;
use super::answer::{self, Asked};
use crate::backend::{Change, Failure, Selection};
use crate::object::Object;

/// A watch that ends sooner has failed, and is not asked for again at once.
const SHORT: Duration = Duration::from_secs(1);
/// The version that is no longer kept.
const EXPIRED: u16 = 410;

/// The stream of changes.
pub(crate) struct Changes {
    cluster: Cluster,
    selection: Selection,
    stage: Stage,
    /// Found by a list and not told yet.
    found: VecDeque<Change>,
    /// How the one sandbox was last, where it is one.
    last: Option<Object>,
}

enum Stage {
    /// Nothing is known, or not any more.
    Unknown,
    /// All is known up to this version.
    Known(String),
    /// What comes after a version is told by the stream.
    Watched {
        version: String,
        since: Instant,
        events: BoxStream<'static, Result<WatchEvent<Value>, kube::Error>>,
    },
}

impl Changes {
    pub(super) fn new(cluster: Cluster, selection: Selection) -> Self {
        Self {
            cluster,
            selection,
            stage: Stage::Unknown,
            found: VecDeque::new(),
            last: None,
        }
    }

    /// The next change.
    pub(crate) async fn next(&mut self) -> Result<Change, Failure> {
        loop {
            if let Some(change) = self.found.pop_front() {
                return Ok(self.told(change));
            }
            match &mut self.stage {
                Stage::Unknown => self.list().await?,
                Stage::Known(version) => {
                    let request = self.cluster.objects.watch(&self.selection, version)?;
                    let opened = self.cluster.client.request_events::<Value>(request).await;
                    let version = std::mem::take(version);
                    self.stage = match opened {
                        Ok(events) => Stage::Watched {
                            version,
                            since: Instant::now(),
                            events: events.boxed(),
                        },
                        Err(kube::Error::Api(status)) if status.code == EXPIRED => Stage::Unknown,
                        Err(problem) => {
                            self.stage = Stage::Known(version);
                            return Err(self.cluster.failure(problem, Asked::Objects));
                        }
                    };
                }
                Stage::Watched {
                    version,
                    since,
                    events,
                } => {
                    let (next, failure) = match events.next().await {
                        Some(Ok(WatchEvent::Error(status))) if status.code == EXPIRED => {
                            (Stage::Unknown, None)
                        }
                        Some(Ok(event)) => {
                            if let Some(change) = seen(event, version)? {
                                return Ok(self.told(change));
                            }
                            continue;
                        }
                        Some(Err(problem)) => {
                            let failure = self.cluster.failure(problem, Asked::Objects);
                            (Stage::Known(std::mem::take(version)), Some(failure))
                        }
                        None if since.elapsed() < SHORT => {
                            let failure = Failure::broken("it closed the stream");
                            (Stage::Known(std::mem::take(version)), Some(failure))
                        }
                        None => (Stage::Known(std::mem::take(version)), None),
                    };
                    self.stage = next;
                    if let Some(failure) = failure {
                        return Err(failure);
                    }
                }
            }
        }
    }

    async fn list(&mut self) -> Result<(), Failure> {
        let (objects, version) = self.cluster.page_through(&self.selection).await?;
        if let Selection::One(_) = self.selection {
            let uid = |object: &Object| object.word("/metadata/uid");
            let now = objects.first().and_then(uid);
            match &self.last {
                // What happened meanwhile was missed: the one that was known is gone, and another may have its name.
                Some(last) if objects.is_empty() || now != uid(last) => {
                    self.found.push_back(Change::Deleted(last.clone()));
                }
                None if objects.is_empty() => self.found.push_back(Change::Absent),
                Some(_) | None => {}
            }
        }
        self.found.extend(objects.into_iter().map(Change::Present));
        self.stage = Stage::Known(version);
        Ok(())
    }

    fn told(&mut self, change: Change) -> Change {
        if let Selection::One(_) = self.selection {
            self.last = match &change {
                Change::Present(object) => Some(object.clone()),
                Change::Deleted(_) | Change::Absent => None,
            };
        }
        change
    }
}

/// What an event tells; `version` moves on.
fn seen(event: WatchEvent<Value>, version: &mut String) -> Result<Option<Change>, Failure> {
    let mut object = |value: Value| {
        let object = Object::of(value).map_err(Failure::Wrong)?;
        if let Some(newer) = object.word("/metadata/resourceVersion") {
            *version = newer;
        }
        Ok(object)
    };
    match event {
        WatchEvent::Added(value) | WatchEvent::Modified(value) => {
            object(value).map(|object| Some(Change::Present(object)))
        }
        WatchEvent::Deleted(value) => object(value).map(|object| Some(Change::Deleted(object))),
        WatchEvent::Bookmark(bookmark) => {
            *version = bookmark.metadata.resource_version;
            Ok(None)
        }
        WatchEvent::Error(status) => Err(answer::status(&status, Asked::Objects)),
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Changes")
            .field("selection", &self.selection)
            .finish_non_exhaustive()
    }
}
