//! A command in a sandbox that runs: `true`, by the API on a connection that is there, and by the plugin.

use std::process::Output;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_e2e::client::Client;
use cloche_e2e::session::{Session, command};
use cloche_e2e::{Agent, trial};
use cloche_proto::agent::v1alpha1::Open;

use crate::clock::Stopwatch;
use crate::figure::{Figure, Goal, Samples};
use crate::raw::Console;
use crate::scene::{MIB, Scene, images, options};

/// Samples, and how many of them are followed by one of the plugin.
const ROUNDS: usize = 400;
const PLUGIN_EVERY: usize = 8;
/// Runs before the first sample: the first ones read the program from disk.
const WARM: usize = 10;
/// The sandboxes' memory, in mebibytes.
const MEMORY: u64 = 256;
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) async fn measure() -> Result<Vec<Figure>> {
    let images = images()?;
    let mut figures = Vec::new();
    trial::run(options(&images), async |agent| {
        figures = in_turns(agent).await?;
        Ok(())
    })
    .await
    .context("measure commands")?;
    Ok(figures)
}

async fn in_turns(agent: &Agent) -> Result<Vec<Figure>> {
    let (mut scene, raw) = Scene::open(agent).await?;
    let sandbox = scene.start(MEMORY).await?.name;
    let instance = raw.prepare(MEMORY * MIB)?;
    raw.create(&instance).await?;
    raw.start_root(&instance).await?;
    let channel = raw.claim(&instance).await?;
    let mut console = Console::open(&instance).await?;

    for _ in 0..WARM {
        by_api(&mut scene.client, &sandbox).await?;
        console.run_true().await?;
        by_plugin(agent, &sandbox).await?;
    }
    let (mut api, mut plugin, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        api.push(by_api(&mut scene.client, &sandbox).await?);
        bare.push(console.run_true().await?);
        if round % PLUGIN_EVERY == 0 {
            plugin.push(by_plugin(agent, &sandbox).await?);
        }
    }
    drop((console, channel));
    raw.destroy(instance).await?;
    scene.remove(&[sandbox]).await?;
    let raw = Samples::new(bare)?;
    Ok(vec![
        Figure {
            name: "exec.true",
            unit: "ms",
            measured: Samples::new(api)?,
            raw: Some(raw.clone()),
            goal: Goal::AtMost(5.0),
        },
        Figure {
            name: "exec.true.kubectl-sandbox",
            unit: "ms",
            measured: Samples::new(plugin)?,
            raw: Some(raw),
            goal: Goal::None,
        },
    ])
}

/// `true` by the API; milliseconds.
pub(crate) async fn by_api(client: &mut Client, sandbox: &str) -> Result<f64> {
    let open = Open {
        command: Some(command(["true"])),
        ..Open::default()
    };
    let watch = Stopwatch::start();
    let mut session = Session::open_on(client, sandbox, open).await??;
    let exit = session.end(LIMIT).await?;
    let time = watch.millis();
    ensure!(exit.code == 0, "true ended with {exit:?}");
    Ok(time)
}

async fn by_plugin(agent: &Agent, sandbox: &str) -> Result<f64> {
    let watch = Stopwatch::start();
    let output = agent.kubectl(&["exec", sandbox, "--", "true"]).await?;
    let time = watch.millis();
    succeeded(&output)?;
    Ok(time)
}

/// What the plugin says when it fails.
pub(crate) fn succeeded(output: &Output) -> Result<()> {
    ensure!(
        output.status.success(),
        "kubectl-sandbox exec ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
