//! A command in a quiet sandbox while its neighbour does its worst: how much slower it gets.

use anyhow::{Context as _, Result};
use cloche_e2e::{Agent, trial};

use crate::exec::by_api;
use crate::figure::{Figure, Goal, Samples};
use crate::scene::{Scene, images, options};

/// Samples with each neighbour, and runs before the first.
const ROUNDS: usize = 150;
const WARM: usize = 10;
/// The quiet sandbox's memory, in mebibytes.
const MEMORY: u64 = 128;
/// In milliseconds; and how much slower than beside nobody.
const TAIL: f64 = 50.0;
const SLOWER: f64 = 1.5;

/// What a neighbour does, for ever, within its limits.
const NEIGHBOURS: [(&str, &str); 7] = [
    ("neighbours.processor", "while :; do :; done"),
    (
        "neighbours.processes",
        "while :; do i=0; while [ $i -lt 150 ]; do sleep 1 & i=$((i+1)); done; wait; done",
    ),
    (
        "neighbours.memory",
        "while :; do head -c 120000000 /dev/zero | tail -c 100000000 >/dev/null; done",
    ),
    (
        "neighbours.tmpfs",
        "while :; do head -c 150000000 /dev/zero >/dev/shm/x; rm /dev/shm/x; done",
    ),
    (
        "neighbours.disk",
        "while :; do head -c 900000000 /dev/zero >/x; rm /x; done",
    ),
    (
        "neighbours.inodes",
        "i=0; while :; do i=$((i+1)); : >/tmp/$((i % 20000)); done",
    ),
    (
        "neighbours.output",
        "while :; do head -c 10000000 /dev/zero; done",
    ),
];

pub(crate) async fn measure() -> Result<Vec<Figure>> {
    let images = images()?;
    let mut figures = Vec::new();
    trial::run(options(&images), async |agent| {
        figures = one_after_the_other(agent).await?;
        Ok(())
    })
    .await
    .context("measure beside neighbours")?;
    Ok(figures)
}

async fn one_after_the_other(agent: &Agent) -> Result<Vec<Figure>> {
    let (mut scene, _) = Scene::open(agent).await?;
    let quiet = scene.start(MEMORY).await?.name;
    let alone = sample(&mut scene, &quiet).await?;
    let goal = Goal::Within {
        median: alone.median() * SLOWER,
        p95: TAIL,
    };
    let mut figures = vec![Figure {
        name: "neighbours.none",
        unit: "ms",
        measured: alone,
        raw: None,
        goal: Goal::None,
    }];
    for (name, does) in NEIGHBOURS {
        let neighbour = scene.start_running(does).await?;
        let measured = sample(&mut scene, &quiet)
            .await
            .with_context(|| format!("beside {does:?}"))?;
        scene.remove(&[neighbour]).await?;
        figures.push(Figure {
            name,
            unit: "ms",
            measured,
            raw: None,
            goal,
        });
    }
    scene.remove(&[quiet]).await?;
    Ok(figures)
}

async fn sample(scene: &mut Scene<'_>, quiet: &str) -> Result<Samples> {
    for _ in 0..WARM {
        by_api(&mut scene.client, quiet).await?;
    }
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        times.push(by_api(&mut scene.client, quiet).await?);
    }
    Samples::new(times)
}
