//! A pause and its end, from the manifest to what Watch tells, beside the two calls to the sentry.

use anyhow::{Context as _, Result};
use cloche_agent::runsc::Sentry;
use cloche_e2e::{Agent, trial};

use crate::clock::Stopwatch;
use crate::figure::{Figure, Goal, Samples};
use crate::scene::{MIB, Scene, images, options};

/// Samples of each.
const ROUNDS: usize = 200;
/// The sandboxes' memory, in mebibytes.
const MEMORY: u64 = 64;

pub(crate) async fn measure() -> Result<Vec<Figure>> {
    let images = images()?;
    let mut figures = Vec::new();
    trial::run(options(&images), async |agent| {
        figures = in_turns(agent).await?;
        Ok(())
    })
    .await
    .context("measure pauses")?;
    Ok(figures)
}

async fn in_turns(agent: &Agent) -> Result<Vec<Figure>> {
    let (mut scene, raw) = Scene::open(agent).await?;
    let sandbox = scene.start(MEMORY).await?.name;
    let instance = raw.prepare(MEMORY * MIB)?;
    raw.create(&instance).await?;
    raw.start_root(&instance).await?;
    let channel = raw.claim_asleep(&instance).await?;
    let mut sentry = Sentry::connect(&instance.paths).await?;

    let (mut pauses, mut resumes) = (Vec::new(), Vec::new());
    let (mut bare_pauses, mut bare_resumes) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        pauses.push(scene.set_state(&sandbox, MEMORY, "Paused").await?);
        let watch = Stopwatch::start();
        sentry.pause().await?;
        bare_pauses.push(watch.millis());
        resumes.push(scene.set_state(&sandbox, MEMORY, "Running").await?);
        let watch = Stopwatch::start();
        sentry.resume().await?;
        bare_resumes.push(watch.millis());
    }
    drop((sentry, channel));
    raw.destroy(instance).await?;
    scene.remove(&[sandbox]).await?;
    let figure = |name, measured, raw| {
        Ok::<_, anyhow::Error>(Figure {
            name,
            unit: "ms",
            measured: Samples::new(measured)?,
            raw: Some(Samples::new(raw)?),
            goal: Goal::AboveRaw(3.0),
        })
    };
    Ok(vec![
        figure("lifecycle.pause", pauses, bare_pauses)?,
        figure("lifecycle.resume", resumes, bare_resumes)?,
    ])
}
