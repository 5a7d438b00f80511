//! A pause and its end, and a stop and its end, from the manifest to what Watch tells, beside the calls to runsc and the sentry.

use std::time::Duration;

use anyhow::{Context as _, Result};
use cloche_agent::runsc::Sentry;
use cloche_e2e::session::shell;
use cloche_e2e::trial;

use crate::clock::Stopwatch;
use crate::figure::{Figure, Goal, Samples};
use crate::raw::{Console, Raw};
use crate::scene::{MIB, Scene, images, options};

/// Samples of each.
const ROUNDS: usize = 200;
/// The same of stops, each of which writes and reads all files.
const STOPS: usize = 20;
/// What is in the sandbox's file.
const BYTES: u32 = 100_000_000;
/// How long writing that may take.
const LIMIT: Duration = Duration::from_mins(1);
/// The sandboxes' memory, in mebibytes.
const MEMORY: u64 = 64;

pub(crate) async fn measure() -> Result<Vec<Figure>> {
    let images = images()?;
    let mut figures = Vec::new();
    trial::run(options(&images), async |agent| {
        let (mut scene, raw) = Scene::open(agent).await?;
        figures = pauses(&mut scene, &raw).await?;
        figures.extend(stops(&mut scene, &raw).await?);
        Ok(())
    })
    .await
    .context("measure pauses")?;
    Ok(figures)
}

async fn pauses(scene: &mut Scene<'_>, raw: &Raw) -> Result<Vec<Figure>> {
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
    let goal = Goal::AboveRaw(3.0);
    Ok(vec![
        figure("lifecycle.pause", pauses, bare_pauses, goal)?,
        figure("lifecycle.resume", resumes, bare_resumes, goal)?,
    ])
}

async fn stops(scene: &mut Scene<'_>, raw: &Raw) -> Result<Vec<Figure>> {
    let sandbox = scene.start(MEMORY).await?.name;
    let write = format!("head -c {BYTES} /dev/urandom >/large");
    scene.agent.output(&sandbox, shell(&write), LIMIT).await?;
    let mut instance = raw.prepare(MEMORY * MIB)?;
    raw.create(&instance).await?;
    raw.start_root(&instance).await?;
    let mut channel = raw.claim_asleep(&instance).await?;
    let program = ["/bin/sh", "-c", &write];
    Console::open(&instance).await?.run(&program).await?;

    let (mut stops, mut starts) = (Vec::new(), Vec::new());
    let (mut bare_stops, mut bare_starts) = (Vec::new(), Vec::new());
    for _ in 0..STOPS {
        stops.push(scene.set_state(&sandbox, MEMORY, "Stopped").await?);
        let watch = Stopwatch::start();
        let (folder, saved) = raw.save(&instance).await?;
        drop(channel);
        raw.destroy(instance).await?;
        bare_stops.push(watch.millis());
        starts.push(scene.set_state(&sandbox, MEMORY, "Running").await?);
        let watch = Stopwatch::start();
        instance = raw.prepare(MEMORY * MIB)?;
        raw.create_with(&instance, Some(&saved)).await?;
        raw.start_root(&instance).await?;
        channel = raw.claim_asleep(&instance).await?;
        raw.files_are_back(&instance).await?;
        bare_starts.push(watch.millis());
        drop(folder);
    }
    drop(channel);
    raw.destroy(instance).await?;
    scene.remove(&[sandbox]).await?;
    Ok(vec![
        figure("lifecycle.stop", stops, bare_stops, Goal::None)?,
        figure("lifecycle.start", starts, bare_starts, Goal::None)?,
    ])
}

fn figure(name: &'static str, measured: Vec<f64>, raw: Vec<f64>, goal: Goal) -> Result<Figure> {
    Ok(Figure {
        name,
        unit: "ms",
        measured: Samples::new(measured)?,
        raw: Some(Samples::new(raw)?),
        goal,
    })
}
