//! Many idle sandboxes on one node: how long it takes to make and to delete them, what each costs, and starts one after the other for a minute.

use std::time::Duration;

use anyhow::{Context as _, Result};
use cloche_agent::cgroup::{Cgroups as _, Groups};
use cloche_e2e::{Agent, trial};
use tokio::time::sleep;

use crate::clock::Stopwatch;
use crate::figure::{Figure, Goal, Samples};
use crate::memory::{calm, of_group, processor_time, rollup};
use crate::scene::{Scene, images, options};
use crate::start::many_raw;

/// Idle sandboxes, and how many of them are there when their processor time is looked at.
const MANY: u32 = 500;
const SOME: u32 = 100;
/// The sandboxes' limit, in mebibytes.
const MEMORY: u64 = 64;
/// A look at processor time, in which every sandbox is sampled several times; so many make the figure.
const LOOK: Duration = Duration::from_secs(20);
const LOOKS: usize = 3;
/// Starts at a time, and for how long, in milliseconds.
const BATCH: u32 = 8;
const SUSTAINED: f64 = 60_000.0;

pub(crate) async fn measure() -> Result<Vec<Figure>> {
    let images = images()?;
    let mut figures = Vec::new();
    trial::run(options(&images), async |agent| {
        figures = many(agent).await?;
        Ok(())
    })
    .await
    .context("measure many idle sandboxes")?;
    Ok(figures)
}

async fn many(agent: &Agent) -> Result<Vec<Figure>> {
    let (mut scene, raw) = Scene::open(agent).await?;
    let groups = Groups::open(agent.group())?;
    let pid = agent.pid()?;

    let mut each = Vec::new();
    let watch = Stopwatch::start();
    while watch.millis() < SUSTAINED {
        let (names, time) = scene.start_all(BATCH, MEMORY).await?;
        each.push(time / f64::from(BATCH));
        scene.remove(&names).await?;
    }

    let (mut names, first) = scene.start_all(SOME, MEMORY).await?;
    calm(|| rollup(pid.as_raw(), "Pss")).await?;
    let mut busy = Vec::new();
    for _ in 0..LOOKS {
        let used = || -> Result<Duration> {
            Ok(processor_time(pid)? + Duration::from_micros(groups.total()?.cpu_usec))
        };
        let (before, watch) = (used()?, Stopwatch::start());
        sleep(LOOK).await;
        let spent = used()?.saturating_sub(before);
        busy.push(spent.as_secs_f64() * 1000.0 / watch.millis() * 100.0);
    }

    let (more, rest) = scene.start_all(MANY - SOME, MEMORY).await?;
    names.extend(more);
    let made = first + rest;
    let of_agent = rollup(pid.as_raw(), "Pss")? / f64::from(MANY);
    let sizes = groups
        .list()?
        .iter()
        .map(|id| of_group(&groups, id).map(|own| own + of_agent))
        .collect::<Result<Vec<f64>>>()?;
    let watch = Stopwatch::start();
    scene.remove(&names).await?;
    let removed = watch.millis();
    let (raw_made, raw_removed) = many_raw(&raw, MANY as usize, 0).await?;

    let figure = |name, unit, measured, raw: Option<f64>, goal| {
        Ok::<_, anyhow::Error>(Figure {
            name,
            unit,
            measured: Samples::new(measured)?,
            raw: raw.map(|raw| Samples::new(vec![raw])).transpose()?,
            goal,
        })
    };
    Ok(vec![
        figure(
            "density.500.create",
            "ms",
            vec![made],
            Some(raw_made),
            Goal::None,
        )?,
        figure(
            "density.500.delete",
            "ms",
            vec![removed],
            Some(raw_removed),
            Goal::None,
        )?,
        figure("density.500.pss", "MiB", sizes, None, Goal::None)?,
        figure("density.100.cpu", "% core", busy, None, Goal::AtMost(5.0))?,
        figure("density.start-each", "ms", each, None, Goal::None)?,
    ])
}
