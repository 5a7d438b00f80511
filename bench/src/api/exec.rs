//! `true` in a sandbox and in pods that run, by a client that is connected.

use std::borrow::Cow;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::cluster::{SUBRESOURCES_GROUP, VERSION};
use cloche_e2e::deadline::within;
use cloche_e2e::process::{self, Built};
use futures::try_join;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, AttachParams, Execute};
use kube::core::{NamespaceResourceScope, ObjectMeta};
use serde::de::DeserializeOwned;

use super::object::Kind;
use super::scene::Scene;
use super::session;
use crate::clock::Stopwatch;
use crate::exec::succeeded;
use crate::figure::{Figure, Goal, Samples};

/// Samples, and how many of them are followed by one of what takes longer.
const ROUNDS: usize = 100;
const OTHERS_EVERY: usize = 5;
/// Runs before the first sample: the first ones read the program from disk, and connect the gateway to the agent.
const WARM: usize = 5;
const LIMIT: Duration = Duration::from_secs(30);
const TRUE: [&str; 1] = ["true"];

/// A sandbox, as kube's client asks for its `exec`.
#[derive(Clone, Debug, serde::Deserialize)]
struct Reached {
    metadata: ObjectMeta,
}

impl Execute for Reached {}

impl kube::Resource for Reached {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Sandbox".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        SUBRESOURCES_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "sandboxes".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[derive(Default)]
struct Times {
    session: Vec<f64>,
    remote: Vec<f64>,
    plugin: Vec<f64>,
    pods: [Vec<f64>; 2],
}

pub(super) async fn measure(scene: &mut Scene) -> Result<Vec<Figure>> {
    let sandbox = scene.start_sandbox().await?.0;
    let [runc, gvisor] = Kind::PODS;
    let pods = [
        scene.start_pod(runc).await?.0,
        scene.start_pod(gvisor).await?.0,
    ];
    for _ in 0..WARM {
        round(&scene.client, &sandbox, &pods, true, &mut Times::default()).await?;
    }
    let mut times = Times::default();
    for at in 0..ROUNDS {
        let all = at % OTHERS_EVERY == 0;
        round(&scene.client, &sandbox, &pods, all, &mut times).await?;
    }
    for (kind, pod) in Kind::PODS.into_iter().zip(pods) {
        scene.remove(kind, &[pod]).await?;
    }
    scene.remove(Kind::Sandbox, &[sandbox]).await?;

    let Times {
        session,
        remote,
        plugin,
        pods: [runc, gvisor],
    } = times;
    let raw = Samples::new(gvisor.clone())?;
    let figure = |name, measured, goal| {
        anyhow::Ok(Figure {
            name,
            unit: "ms",
            measured: Samples::new(measured)?,
            raw: matches!(goal, Goal::AtMost(_)).then(|| raw.clone()),
            goal,
        })
    };
    Ok(vec![
        figure("api.exec.true", session, Goal::AtMost(15.0))?,
        figure("api.exec.true.v5", remote, Goal::None)?,
        figure("api.exec.true.kubectl-sandbox", plugin, Goal::None)?,
        figure("api.exec.true.pod-runc", runc, Goal::None)?,
        figure("api.exec.true.pod-gvisor", gvisor, Goal::None)?,
    ])
}

/// One sample of the session; with `all` one of each, in turns.
async fn round(
    client: &Client,
    sandbox: &str,
    pods: &[String; 2],
    all: bool,
    times: &mut Times,
) -> Result<()> {
    connect(client).await?;
    times.session.push(by_session(client, sandbox).await?);
    if all {
        connect(client).await?;
        times
            .remote
            .push(by_remote::<Reached>(client, sandbox).await?);
        times.plugin.push(by_plugin(sandbox).await?);
        for (pod, times) in pods.iter().zip(&mut times.pods) {
            connect(client).await?;
            times.push(by_remote::<Pod>(client, pod).await?);
        }
    }
    Ok(())
}

/// Sees to it that the client has a connection to the apiserver that is free. Each command uses one up: over HTTP/1.1 the stream takes
/// its place.
async fn connect(client: &Client) -> Result<()> {
    try_join!(client.apiserver_version(), client.apiserver_version())
        .map(drop)
        .context("connect to the apiserver")
}

async fn by_session(client: &Client, sandbox: &str) -> Result<f64> {
    let watch = Stopwatch::start();
    let exit = within(
        LIMIT,
        "the command ends",
        session::run(client, sandbox, &TRUE),
    )
    .await?;
    let time = watch.millis();
    ensure!(exit.code == 0, "true ended with {exit:?}");
    Ok(time)
}

/// By `v5.channel.k8s.io`, as kubectl does it.
async fn by_remote<K>(client: &Client, name: &str) -> Result<f64>
where
    K: Execute + kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + DeserializeOwned,
{
    let objects: Api<K> = Api::default_namespaced(client.clone());
    let params = AttachParams::default();
    let watch = Stopwatch::start();
    let ended = within(LIMIT, "the command ends", async {
        let mut process = objects.exec(name, TRUE, &params).await.context("exec")?;
        let status = process.take_status().context("its status")?;
        status.await.context("how it ended")
    })
    .await?;
    let time = watch.millis();
    ensure!(
        ended.status.as_deref() == Some("Success"),
        "true in {name} ended with {ended:?}"
    );
    Ok(time)
}

/// The plugin, its start and its own connection included.
async fn by_plugin(sandbox: &str) -> Result<f64> {
    let mut command = process::command(Built::Cli.path()?);
    command.args(["exec", sandbox, "--", "true"]);
    let watch = Stopwatch::start();
    let output = command.output().await.context("run kubectl-sandbox")?;
    let time = watch.millis();
    succeeded(&output)?;
    Ok(time)
}
