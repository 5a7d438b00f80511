//! From an object to Ready: one from the pool, and many at once.

use anyhow::Result;

use super::object::Kind;
use super::scene::Scene;
use crate::figure::{Figure, Goal, Samples};

/// Samples, and how many of them are followed by one of each pod.
const ROUNDS: usize = 40;
const PODS_EVERY: usize = 4;
/// Samples of many at once.
const BURSTS: usize = 3;
/// How many that is: sandboxes, and pods of a kind.
const MANY: u32 = 50;
const MANY_PODS: u32 = 10;

pub(super) async fn one_by_one(scene: &mut Scene) -> Result<Vec<Figure>> {
    let mut steps = Vec::new();
    let mut pods: [Vec<f64>; 2] = Default::default();
    for round in 0..ROUNDS {
        let (name, taken) = scene.start_sandbox().await?;
        steps.push(taken);
        scene.remove(Kind::Sandbox, &[name]).await?;
        if round % PODS_EVERY == 0 {
            for (kind, times) in Kind::PODS.into_iter().zip(&mut pods) {
                let (name, time) = scene.start_pod(kind).await?;
                times.push(time);
                scene.remove(kind, &[name]).await?;
            }
        }
    }
    let [runc, gvisor] = pods;
    let of = |step: fn(&super::scene::Steps) -> f64| steps.iter().map(step).collect();
    let goal = Goal::Within {
        median: 60.0,
        p95: 120.0,
    };
    let raw = Some(Samples::new(gvisor.clone())?);
    Ok(vec![
        figure("api.ready", of(|steps| steps.ready), raw, goal)?,
        figure(
            "api.ready.created",
            of(|steps| steps.created),
            None,
            Goal::None,
        )?,
        figure("api.ready.bound", of(|steps| steps.bound), None, Goal::None)?,
        figure(
            "api.ready.running",
            of(|steps| steps.running),
            None,
            Goal::None,
        )?,
        figure("api.ready.pod-runc", runc, None, Goal::None)?,
        figure("api.ready.pod-gvisor", gvisor, None, Goal::None)?,
    ])
}

pub(super) async fn at_once(scene: &mut Scene) -> Result<Vec<Figure>> {
    let mut sandboxes = Vec::new();
    let mut pods: [Vec<f64>; 2] = Default::default();
    for _ in 0..BURSTS {
        let (names, time) = scene.start_all(Kind::Sandbox, MANY).await?;
        sandboxes.push(time);
        scene.remove(Kind::Sandbox, &names).await?;
        for (kind, times) in Kind::PODS.into_iter().zip(&mut pods) {
            let (names, time) = scene.start_all(kind, MANY_PODS).await?;
            times.push(time);
            scene.remove(kind, &names).await?;
        }
    }
    let [runc, gvisor] = pods;
    let goal = Goal::AtMost(3000.0);
    Ok(vec![
        figure("api.50-at-once", sandboxes, None, goal)?,
        figure("api.10-pods-at-once.runc", runc, None, Goal::None)?,
        figure("api.10-pods-at-once.gvisor", gvisor, None, Goal::None)?,
    ])
}

fn figure(
    name: &'static str,
    measured: Vec<f64>,
    raw: Option<Samples>,
    goal: Goal,
) -> Result<Figure> {
    Ok(Figure {
        name,
        unit: "ms",
        measured: Samples::new(measured)?,
        raw,
        goal,
    })
}
