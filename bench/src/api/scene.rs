//! The cluster as the measurements see it: objects in, what watches tell, the pool of its node.

use std::path::PathBuf;
use std::slice;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::Sandbox;
use cloche_e2e::client::Client as AgentClient;
use cloche_e2e::deadline::within;
use cloche_e2e::level::Seen;
use cloche_proto::agent::v1alpha1::{ListRequest, WatchEvent};
use futures::try_join;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::ApiResource;
use serde_json::Value;
use tonic::Streaming;

use super::object::{Kind, MEBIBYTES, is_bound, is_ready, manifest};
use super::watched::{LIMIT, Watched, create};
use super::{client, process};
use crate::clock::Stopwatch;
use crate::pool::Pool;

/// What the chart's default pool holds: mebibytes, created, started.
const POOL: [(u64, usize, usize); 1] = [(MEBIBYTES, 1, 2)];

pub(super) struct Scene {
    pub(super) client: Client,
    pub(super) sandboxes: Watched,
    pods: Watched,
    /// What the agent itself tells, over its local socket.
    told: Streaming<WatchEvent>,
    pool: Pool,
    count: u32,
}

/// A Sandbox's start, in milliseconds since before the request that made it.
pub(super) struct Steps {
    /// The apiserver has answered the request.
    pub(super) created: f64,
    /// The watcher has seen that it is bound to a node.
    pub(super) bound: f64,
    /// The agent has told on its own socket that it runs.
    pub(super) running: f64,
    /// The watcher has seen that it is Ready.
    pub(super) ready: f64,
}

impl Scene {
    /// Watches, and has everything started once, so that images are there.
    pub(super) async fn open() -> Result<Self> {
        let client = client::client().await?;
        let root = PathBuf::from(format!("/proc/{}/root", process::agent()?));
        let run = root.join("run/cloche");
        let mut agent = AgentClient::connect(&run.join("agent.sock")).await?;
        let told = agent.grpc().watch(ListRequest { key: None }).await;
        let mut scene = Self {
            sandboxes: Watched::new(&client, &ApiResource::erase::<Sandbox>(&())),
            pods: Watched::new(&client, &ApiResource::erase::<Pod>(&())),
            client,
            told: told.context("watch the agent")?.into_inner(),
            pool: Pool {
                state: process::var_lib()?.join("cloche"),
                run,
            },
            count: 0,
        };
        let name = scene.start_sandbox().await?.0;
        scene.remove(Kind::Sandbox, &[name]).await?;
        for kind in Kind::PODS {
            let name = scene.start_pod(kind).await?.0;
            scene.remove(kind, &[name]).await?;
        }
        Ok(scene)
    }

    pub(super) fn watched(&mut self, kind: Kind) -> &mut Watched {
        match kind {
            Kind::Sandbox => &mut self.sandboxes,
            Kind::Runc | Kind::Gvisor => &mut self.pods,
        }
    }

    pub(super) fn names(&mut self, count: u32) -> Vec<String> {
        let first = self.count;
        self.count += count;
        (first..self.count)
            .map(|at| format!("bench-{at}"))
            .collect()
    }

    /// Starts a sandbox from a started instance of the pool, and waits until it is Ready; its name.
    pub(super) async fn start_sandbox(&mut self) -> Result<(String, Steps)> {
        self.pool.filled(&POOL).await?;
        let name = self.names(1).swap_remove(0);
        let object = vec![manifest(Kind::Sandbox, &name)];
        let Self {
            sandboxes, told, ..
        } = self;
        let api = sandboxes.api.clone();
        let mut bound = None;
        let watch = Stopwatch::start();
        let (created, running, ready) = try_join!(
            timed(watch, create(&api, object)),
            timed(watch, running(told, &name)),
            timed(
                watch,
                sandboxes.until("the sandbox is Ready", slice::from_ref(&name), |object| {
                    if is_bound(object) {
                        bound.get_or_insert_with(|| watch.millis());
                    }
                    is_ready(object)
                })
            ),
        )?;
        let steps = Steps {
            created,
            bound: bound.context("a sandbox that is Ready was never bound")?,
            running,
            ready,
        };
        Ok((name, steps))
    }

    /// Starts a pod and waits until it is Ready; its name, and milliseconds.
    pub(super) async fn start_pod(&mut self, kind: Kind) -> Result<(String, f64)> {
        ensure!(kind != Kind::Sandbox, "a Sandbox is no pod");
        let (mut names, time) = self.start_all(kind, 1).await?;
        Ok((names.swap_remove(0), time))
    }

    /// Makes `count` objects and waits until all are Ready; their names, and milliseconds.
    pub(super) async fn start_all(&mut self, kind: Kind, count: u32) -> Result<(Vec<String>, f64)> {
        if kind == Kind::Sandbox {
            self.pool.filled(&POOL).await?;
        }
        let names = self.names(count);
        let objects: Vec<Value> = names.iter().map(|name| manifest(kind, name)).collect();
        let watched = self.watched(kind);
        let api = watched.api.clone();
        let watch = Stopwatch::start();
        try_join!(
            create(&api, objects),
            watched.until("all are Ready", &names, is_ready)
        )?;
        Ok((names, watch.millis()))
    }

    /// Deletes them and waits until nothing is left of them.
    pub(super) async fn remove(&mut self, kind: Kind, names: &[String]) -> Result<()> {
        self.watched(kind).remove(names).await
    }
}

/// When `work` was done.
async fn timed(watch: Stopwatch, work: impl Future<Output = Result<()>>) -> Result<f64> {
    work.await?;
    Ok(watch.millis())
}

/// Waits until the agent tells that a sandbox runs.
async fn running(told: &mut Streaming<WatchEvent>, name: &str) -> Result<()> {
    let read = async {
        loop {
            let event = told.message().await.context("watch the agent")?;
            let event = event.context("the watch of the agent ended")?;
            if event.synced {
                continue;
            }
            let object: Value = serde_json::from_slice(&event.object).context("read an object")?;
            if object["metadata"]["name"] == name && Seen(object).is_running() {
                return Ok(());
            }
        }
    };
    within(LIMIT, "the agent tells that the sandbox runs", read).await
}
