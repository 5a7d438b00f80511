//! Objects of one kind, as a watcher of the apiserver sees them.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cloche_e2e::deadline::within;
use futures::{Stream, StreamExt as _, TryStreamExt as _, future, stream};
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::Value;

use super::object::end;

/// How long anything may take before the measurement has failed.
pub(super) const LIMIT: Duration = Duration::from_mins(3);
/// Requests at a time where many objects are made or deleted.
const AT_A_TIME: usize = 8;

type Events = Pin<Box<dyn Stream<Item = watcher::Result<Event<DynamicObject>>> + Send>>;

/// All objects of a kind in the namespace `default`.
pub(super) struct Watched {
    pub(super) api: Api<DynamicObject>,
    events: Events,
}

impl Watched {
    /// Watches from now on.
    pub(super) fn new(client: &Client, resource: &ApiResource) -> Self {
        let api = Api::default_namespaced_with(client.clone(), resource);
        let events = Box::pin(watcher(api.clone(), watcher::Config::default()));
        Self { api, events }
    }

    /// Reads what is told until `done`, which gets the object and whether it is gone.
    async fn follow(
        &mut self,
        what: &str,
        mut done: impl FnMut(&DynamicObject, bool) -> Result<bool>,
    ) -> Result<()> {
        within(LIMIT, what, async {
            loop {
                let event = self.events.try_next().await.context("watch")?;
                let is_done = match event.context("the watch ended")? {
                    Event::Apply(object) | Event::InitApply(object) => done(&object, false)?,
                    Event::Delete(object) => done(&object, true)?,
                    Event::Init | Event::InitDone => false,
                };
                if is_done {
                    return Ok(());
                }
            }
        })
        .await
    }

    /// Reads on until all of `names` have been told so.
    pub(super) async fn until(
        &mut self,
        what: &str,
        names: &[String],
        mut holds: impl FnMut(&DynamicObject) -> bool,
    ) -> Result<()> {
        let mut left: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        self.follow(what, |object, _| {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            if !left.contains(name) {
                return Ok(false);
            }
            if let Some(end) = end(object) {
                bail!("{name} ended: {end}");
            }
            if holds(object) {
                left.remove(name);
            }
            Ok(left.is_empty())
        })
        .await
    }

    /// Deletes them, and waits until they are gone.
    pub(super) async fn remove(&mut self, names: &[String]) -> Result<()> {
        let params = DeleteParams::default();
        let api = &self.api;
        stream::iter(names)
            .map(|name| api.delete(name, &params))
            .buffer_unordered(AT_A_TIME)
            .try_for_each(|_| future::ready(Ok(())))
            .await
            .context("delete")?;
        let mut left: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        self.follow("what was deleted is gone", |object, is_gone| {
            if is_gone {
                left.remove(object.metadata.name.as_deref().unwrap_or_default());
            }
            Ok(left.is_empty())
        })
        .await
    }
}

/// Makes objects, a few requests at a time.
pub(super) async fn create(api: &Api<DynamicObject>, manifests: Vec<Value>) -> Result<()> {
    let params = PostParams::default();
    stream::iter(manifests)
        .map(|manifest| {
            let params = &params;
            async move {
                let object = serde_json::from_value(manifest).context("write an object")?;
                api.create(params, &object).await.context("create")
            }
        })
        .buffer_unordered(AT_A_TIME)
        .try_for_each(|_| future::ready(Ok(())))
        .await
}
