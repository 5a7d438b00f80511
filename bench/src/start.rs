//! From a manifest to a running sandbox: from the pool, on demand, and many at once.

use anyhow::{Context as _, Result};
use cloche_agent::instance::pool::MAKERS;
use cloche_e2e::{Agent, trial};
use futures::future::try_join_all;
use tokio::sync::Semaphore;

use crate::clock::Stopwatch;
use crate::figure::{Figure, Goal, Samples};
use crate::raw::{Instance, Raw};
use crate::scene::{MIB, Scene, images, options};

/// Samples of each kind of start.
const ROUNDS: usize = 50;
/// Samples of many at once.
const BURSTS: usize = 5;
/// How many that is, and how many of them the pool holds.
const MANY: u32 = 50;
const POOLED: usize = 8;

/// Shapes, in mebibytes: one with started instances, one with created ones alone, one that is not pooled.
const STARTED: u64 = 512;
const CREATED: u64 = 384;
const DEMANDED: u64 = 256;
/// The shape of many at once.
const BURST: u64 = 64;

pub(crate) async fn measure() -> Result<Vec<Figure>> {
    let images = images()?;
    let mut figures = Vec::new();
    // The agent's default pool, and one that is never started.
    let pooled = options(&images)
        .pool(&format!("cpu=1,memory={STARTED}Mi,created=1,started=2"))
        .pool(&format!("cpu=1,memory={CREATED}Mi,created=1,started=0"));
    trial::run(pooled, async |agent| {
        figures.extend(one_by_one(agent).await?);
        Ok(())
    })
    .await
    .context("measure single starts")?;
    let pooled = options(&images).pool(&format!("cpu=1,memory={BURST}Mi,started={POOLED}"));
    trial::run(pooled, async |agent| {
        figures.push(at_once(agent).await?);
        Ok(())
    })
    .await
    .context("measure many starts at once")?;
    Ok(figures)
}

#[derive(Default)]
struct Times {
    running: Vec<f64>,
    output: Vec<f64>,
    raw_running: Vec<f64>,
    raw_output: Vec<f64>,
}

/// What is done before the clock starts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    Started,
    Created,
    Nothing,
}

async fn one_by_one(agent: &Agent) -> Result<Vec<Figure>> {
    let (mut scene, raw) = Scene::open(agent).await?;
    let kinds = [
        (Begin::Started, STARTED),
        (Begin::Created, CREATED),
        (Begin::Nothing, DEMANDED),
    ];
    let mut times: [Times; 3] = Default::default();
    for _ in 0..ROUNDS {
        for ((begin, mebibytes), times) in kinds.iter().zip(&mut times) {
            scene
                .pool
                .filled(&[(STARTED, 1, 2), (CREATED, 1, 0)])
                .await?;
            // First: it also gives the pool the moment between an instance's start and its place on the shelf.
            let (running, output) = one_raw(&raw, *begin, *mebibytes).await?;
            times.raw_running.push(running);
            times.raw_output.push(output);
            let started = scene.start(*mebibytes).await?;
            times.running.push(started.running);
            times.output.push(started.output);
            scene.remove(&[started.name]).await?;
        }
    }
    let [started, created, demanded] = times;
    let figure = |name, measured, raw, goal| {
        Ok::<_, anyhow::Error>(Figure {
            name,
            unit: "ms",
            measured: Samples::new(measured)?,
            raw: Some(Samples::new(raw)?),
            goal,
        })
    };
    Ok(vec![
        figure(
            "start.started.running",
            started.running,
            started.raw_running,
            Goal::AboveRaw(5.0),
        )?,
        figure(
            "start.started.output",
            started.output,
            started.raw_output,
            Goal::AtMost(25.0),
        )?,
        figure(
            "start.created.running",
            created.running,
            created.raw_running,
            Goal::AboveRaw(5.0),
        )?,
        figure(
            "start.demand.running",
            demanded.running,
            demanded.raw_running,
            Goal::AboveRaw(15.0),
        )?,
    ])
}

/// Milliseconds until `main` is started, and until a program in it has printed.
async fn one_raw(raw: &Raw, begin: Begin, mebibytes: u64) -> Result<(f64, f64)> {
    let instance = raw.prepare(mebibytes * MIB)?;
    if begin != Begin::Nothing {
        raw.create(&instance).await?;
    }
    if begin == Begin::Started {
        raw.start_root(&instance).await?;
    }
    let watch = Stopwatch::start();
    if begin == Begin::Nothing {
        raw.create(&instance).await?;
    }
    if begin != Begin::Started {
        raw.start_root(&instance).await?;
    }
    let channel = raw.claim(&instance).await?;
    let running = watch.millis();
    raw.first_output(&instance).await?;
    let output = watch.millis();
    drop(channel);
    raw.destroy(instance).await?;
    Ok((running, output))
}

async fn at_once(agent: &Agent) -> Result<Figure> {
    let (mut scene, raw) = Scene::open(agent).await?;
    let (mut measured, mut raw_times) = (Vec::new(), Vec::new());
    for _ in 0..BURSTS {
        scene.pool.filled(&[(BURST, 0, POOLED)]).await?;
        raw_times.push(many_raw(&raw, MANY as usize, POOLED).await?.0);
        let (names, time) = scene.start_all(MANY, BURST).await?;
        measured.push(time);
        scene.remove(&names).await?;
    }
    Ok(Figure {
        name: "start.50-at-once",
        unit: "ms",
        measured: Samples::new(measured)?,
        raw: Some(Samples::new(raw_times)?),
        goal: Goal::AtMost(3000.0),
    })
}

/// The same with as many made at a time as the agent makes; milliseconds until all are claimed, and until all are gone.
pub(crate) async fn many_raw(raw: &Raw, many: usize, pooled: usize) -> Result<(f64, f64)> {
    let mut instances: Vec<Instance> = Vec::new();
    for at in 0..many {
        let instance = raw.prepare(BURST * MIB)?;
        if at < pooled {
            raw.create(&instance).await?;
            raw.start_root(&instance).await?;
        }
        instances.push(instance);
    }
    let makers = Semaphore::new(MAKERS);
    let watch = Stopwatch::start();
    let claimed = instances.iter().enumerate().map(|(at, instance)| {
        let makers = &makers;
        async move {
            if at >= pooled {
                let _permit = makers.acquire().await.context("take turns")?;
                raw.create(instance).await?;
                raw.start_root(instance).await?;
            }
            raw.claim(instance).await
        }
    });
    let channels = try_join_all(claimed).await?;
    let time = watch.millis();
    drop(channels);
    let watch = Stopwatch::start();
    try_join_all(instances.into_iter().map(|instance| raw.destroy(instance))).await?;
    Ok((time, watch.millis()))
}
