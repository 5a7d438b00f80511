//! What the operator takes with many Sandboxes.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::object::{is_unschedulable, nowhere};
use super::process;
use super::scene::Scene;
use super::watched::create;
use crate::figure::{Figure, Goal, Samples};
use crate::memory::{calm, rollup};

/// Objects.
const MANY: u32 = 1000;
/// Looks at the operator, before and with them.
const LOOKS: usize = 5;
const LOOK: Duration = Duration::from_secs(2);

pub(super) async fn measure(scene: &mut Scene) -> Result<Vec<Figure>> {
    let pid = process::operator(&scene.client).await?;
    let before = look(pid).await?;
    let names = scene.names(MANY);
    let objects = names.iter().map(|name| nowhere(name)).collect();
    let api = scene.sandboxes.api.clone();
    futures::try_join!(
        create(&api, objects),
        scene.sandboxes.until(
            "all are told that no node takes them",
            &names,
            is_unschedulable
        )
    )?;
    let with = look(pid).await?;
    scene.sandboxes.remove(&names).await?;
    let figure = |name, measured, raw| {
        anyhow::Ok(Figure {
            name,
            unit: "MiB",
            measured: Samples::new(measured)?,
            raw: Some(Samples::new(raw)?),
            goal: Goal::None,
        })
    };
    Ok(vec![
        figure("api.operator-1000.rss", with.rss, before.rss)?,
        figure("api.operator-1000.pss", with.pss, before.pss)?,
    ])
}

struct Looks {
    rss: Vec<f64>,
    pss: Vec<f64>,
}

async fn look(pid: i32) -> Result<Looks> {
    calm(|| rollup(pid, "Pss")).await?;
    let (mut rss, mut pss) = (Vec::new(), Vec::new());
    for _ in 0..LOOKS {
        sleep(LOOK).await;
        rss.push(rollup(pid, "Rss")?);
        pss.push(rollup(pid, "Pss")?);
    }
    Ok(Looks { rss, pss })
}
