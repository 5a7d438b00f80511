//! The agent killed at every named point of its work, and started again: it ends up as if it had not been killed.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cloche_e2e::audit::Ledger;
use cloche_e2e::deadline::{until, within};
use cloche_e2e::points::During::{
    self, Claim, Deadline, Delete, Image, Life, Pause, Pool, Release, Stop, Tell, Wake,
};
use cloche_e2e::points::{POINTS, points};
use cloche_e2e::{Agent, audit, trial};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::subject::{
    Images, LIMIT, drop_want, ended_as, ends, has_ended, ran_once, ran_twice, stands, stays, want,
};

/// Kills the agent at each point of `during`, one after the other on the same state; `prepare` is done before it is started with
/// the point armed, `provoke` once it serves, and `judge` when it was killed and started again.
async fn at_each_point(
    during: During,
    prepare: impl AsyncFn(&mut Agent, &str) -> Result<()>,
    provoke: impl AsyncFn(&mut Agent) -> Result<()>,
    judge: impl AsyncFn(&Agent) -> Result<()>,
) {
    let images = points(Image)
        .map(str::to_lowercase)
        .chain(["busybox".to_owned()]);
    let images = Images::new(images).unwrap();
    let options = match during {
        Pool | Claim => images
            .options()
            .pool("cpu=1,memory=64Mi,created=1,started=1"),
        Life | Image | Delete | Deadline | Pause | Stop | Wake | Tell | Release => images.options(),
    };
    let whole = trial::run(options, async |agent| {
        for point in points(during) {
            let begun = Instant::now();
            agent.kill().await?;
            let whole = async {
                prepare(agent, point).await?;
                agent.restart_with_fault(Some(point))?;
                provoke(agent).await?;
                agent.wait_for_fault().await?;
                agent.restart().await?;
                judge(agent).await?;
                let mut client = agent.client().await?;
                for object in client.list().await? {
                    let name = object["metadata"]["name"]
                        .as_str()
                        .context("a name")?
                        .to_owned();
                    drop_want(agent, &name)?;
                    agent.wait_gone(&name, LIMIT).await?;
                }
                audit::idle(agent).await
            };
            within(2 * LIMIT, "the agent recovers", whole)
                .await
                .with_context(|| format!("killed at {point} during {during:?}"))?;
            println!("{during:?} {point}: {:?}", begun.elapsed());
        }
        Ok(())
    });
    // Large, for its bodies are in it.
    Box::pin(whole).await.unwrap();
}

#[tokio::test]
async fn killed_during_a_sandboxs_life() {
    let prepare = async |agent: &mut Agent, _: &str| {
        want(agent, "stays", &stays())?;
        want(agent, "ends", &ends())
    };
    let judge = async |agent: &Agent| {
        stands(agent, "stays").await?;
        has_ended(agent, "ends").await
    };
    at_each_point(Life, prepare, async |_| Ok(()), judge).await;
}

#[tokio::test]
async fn killed_while_an_image_comes() {
    let prepare = async |agent: &mut Agent, point: &str| {
        let mut spec = stays();
        spec["image"] = Value::from(format!("oci:{}", point.to_lowercase()));
        want(agent, "stays", &spec)
    };
    let judge = async |agent: &Agent| stands(agent, "stays").await;
    at_each_point(Image, prepare, async |_| Ok(()), judge).await;
}

#[tokio::test]
async fn killed_while_the_pool_is_filled() {
    let nothing = async |_: &mut Agent, _: &str| Ok(());
    let judge = async |agent: &Agent| {
        want(agent, "stays", &stays())?;
        stands(agent, "stays").await
    };
    at_each_point(Pool, nothing, async |_| Ok(()), judge).await;
}

#[tokio::test]
async fn killed_while_an_instance_of_the_pool_is_claimed() {
    let provoke = async |agent: &mut Agent| {
        agent.serves().await?;
        until(LIMIT, "the pool is full", async || {
            let made = Ledger::read(&agent.state())?.made.len();
            Ok((made == 2).then_some(()))
        })
        .await?;
        want(agent, "stays", &stays())
    };
    let judge = async |agent: &Agent| stands(agent, "stays").await;
    at_each_point(Claim, async |_, _| Ok(()), provoke, judge).await;
}

#[tokio::test]
async fn killed_while_a_sandbox_is_deleted() {
    let provoke = async |agent: &mut Agent| {
        agent.serves().await?;
        want(agent, "stays", &stays())?;
        stands(agent, "stays").await?;
        drop_want(agent, "stays")
    };
    let judge = async |agent: &Agent| agent.wait_gone("stays", LIMIT).await;
    at_each_point(Delete, async |_, _| Ok(()), provoke, judge).await;
}

#[tokio::test]
async fn killed_while_a_sandbox_comes_to_its_deadline() {
    let prepare = async |agent: &mut Agent, _: &str| {
        let mut spec = stays();
        spec["lifecycle"] = json!({"ttlSeconds": 1, "terminationGracePeriodSeconds": 600});
        want(agent, "over", &spec)
    };
    let judge = async |agent: &Agent| {
        // Long before the grace is over: it was told to end, whatever became of who told it.
        let seen = agent.wait_finished("over", LIMIT).await?;
        ended_as(&seen, "DeadlineExceeded", Some(0))?;
        ran_once(agent, "over", "told to end\n").await.map(drop)
    };
    at_each_point(Deadline, prepare, async |_| Ok(()), judge).await;
}

/// What the sandbox is to be. Each wish has a number of its own, so that what is seen can be told from what was wished before.
fn wish(desired: &str, number: u32) -> Value {
    let mut spec = stays();
    spec["lifecycle"] = json!({"desiredState": desired, "terminationGracePeriodSeconds": number});
    spec
}

/// The object, if it is as was wished.
async fn is_granted(agent: &Agent, phase: &str, number: u32) -> Result<Option<Value>> {
    let seen = agent.client().await?.get("stays").await?;
    Ok(seen.filter(|object| {
        object["status"]["phase"] == phase
            && object["spec"]["lifecycle"]["terminationGracePeriodSeconds"] == number
            && (phase != "Running" || is_ready(object))
    }))
}

async fn granted(agent: &Agent, phase: &str, number: u32) -> Result<()> {
    let what = format!("it is {phase} ({number})");
    let seen = until(LIMIT, &what, async || {
        is_granted(agent, phase, number).await
    });
    seen.await.map(drop)
}

#[tokio::test]
async fn killed_while_a_sandbox_is_stopped() {
    let provoke = async |agent: &mut Agent| {
        agent.serves().await?;
        want(agent, "stays", &stays())?;
        stands(agent, "stays").await?;
        want(agent, "stays", &wish("Stopped", 11))
    };
    let judge = async |agent: &Agent| {
        granted(agent, "Stopped", 11).await?;
        want(agent, "stays", &wish("Running", 12))?;
        granted(agent, "Running", 12).await?;
        ran_twice(agent, "stays").await
    };
    at_each_point(Stop, async |_, _| Ok(()), provoke, judge).await;
}

#[tokio::test]
async fn killed_while_a_sandbox_is_brought_back() {
    let prepare = async |agent: &mut Agent, _: &str| {
        agent.restart().await?;
        want(agent, "stays", &stays())?;
        stands(agent, "stays").await?;
        want(agent, "stays", &wish("Stopped", 11))?;
        granted(agent, "Stopped", 11).await?;
        agent.kill().await?;
        want(agent, "stays", &wish("Running", 12))
    };
    let judge = async |agent: &Agent| {
        granted(agent, "Running", 12).await?;
        ran_twice(agent, "stays").await
    };
    at_each_point(Wake, prepare, async |_| Ok(()), judge).await;
}

#[tokio::test]
async fn killed_while_a_sandbox_is_paused_and_goes_on() {
    let provoke = async |agent: &mut Agent| {
        agent.serves().await?;
        want(agent, "stays", &stays())?;
        stands(agent, "stays").await?;
        want(agent, "stays", &wish("Paused", 11))?;
        // It may be killed before that.
        until(LIMIT, "it is paused, or the agent killed", async || {
            if agent.exited()?.is_some() {
                return Ok(Some(()));
            }
            let seen = is_granted(agent, "Paused", 11).await;
            Ok(seen.ok().flatten().map(drop))
        })
        .await?;
        want(agent, "stays", &wish("Running", 12))
    };
    let judge = async |agent: &Agent| {
        // Whatever it was in the middle of, it can still do both.
        for (desired, number) in [("Paused", 13), ("Running", 14)] {
            want(agent, "stays", &wish(desired, number))?;
            granted(agent, desired, number).await?;
        }
        stands(agent, "stays").await
    };
    at_each_point(Pause, async |_, _| Ok(()), provoke, judge).await;
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| {
        all.iter()
            .any(|one| one["type"] == "Ready" && one["status"] == "True")
    })
}

/// Names in the source: those written at `fault::point`, and for the one that is not written there, the names of states.
fn in_source(folder: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            in_source(&path, found)?;
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        for call in text.split("fault::point(").skip(1) {
            let argument = call.split_once(')').context("an open call")?.0;
            let literal = argument
                .strip_prefix('"')
                .and_then(|rest| rest.strip_suffix('"'));
            if let Some(name) = literal {
                ensure!(found.insert(name.to_owned()), "{name} names two points");
                continue;
            }
            ensure!(
                argument == "self.record.state.name(",
                "unknown point {argument}"
            );
            let states = std::fs::read_to_string(folder.join("record.rs"))?;
            let names = states.split_once("fn name(").context("names of states")?.1;
            let names = names.split_once("\n    }").context("its end")?.0;
            found.extend(names.split('"').skip(1).step_by(2).map(str::to_owned));
        }
    }
    Ok(())
}

#[test]
fn every_point_of_the_source_is_tested() {
    let mut found = BTreeSet::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/src");
    in_source(&source, &mut found).unwrap();
    let tested: BTreeSet<String> = POINTS
        .iter()
        .map(|(point, _)| {
            point
                .split_once(':')
                .map_or(*point, |(name, _)| name)
                .to_owned()
        })
        .collect();
    assert_eq!(tested, found);
    assert!(POINTS.iter().all(|(_, during)| !during.is_empty()));
}
