//! Sandboxes of other shapes than the usual one: made on demand, or from a pool of their own and no other.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::Reason;
use cloche_e2e::audit::Ledger;
use cloche_e2e::deadline::until;
use cloche_e2e::{Agent, trial};
use serde_json::{Value, json};

use crate::scene::{self, LIMIT, group_value, images, options, output};
use crate::verdict::Verdict;

const MIB: u64 = 1 << 20;
/// What an instance may use beside what its guest sees, in MiB: the sentry's own.
const OVERHEAD: u64 = 32;

/// Thousandths of a core and MiB.
type Shape = (u64, u64);

/// The instances that stand, and what each was made as.
fn shapes(agent: &Agent) -> Result<BTreeMap<String, Shape>> {
    let ledger = Ledger::read(&agent.state())?;
    let read = |id: &String| {
        let path = agent.state().join("instances").join(id).join("record.json");
        let text = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let file: Value = serde_json::from_slice(&text).context("read a record")?;
        let shape = &file["record"]["shape"];
        let cpu = shape["cpuMillis"].as_u64().context("no cpu")?;
        let memory = shape["memory"].as_u64().context("no memory")?;
        anyhow::Ok((id.clone(), (cpu, memory / MIB)))
    };
    ledger.made.iter().map(read).collect()
}

/// Waits until the instances of the pool are those of `wanted`.
async fn pool(agent: &Agent, wanted: &[Shape], used: &[&str]) -> Result<BTreeMap<String, Shape>> {
    let mut last = BTreeMap::new();
    until(LIMIT, "the pool is full", async || {
        // One that is being removed at this moment has no record to read.
        last = shapes(agent).unwrap_or_default();
        last.retain(|id, _| !used.contains(&id.as_str()));
        let mut found: Vec<Shape> = last.values().copied().collect();
        found.sort_unstable();
        Ok((found == wanted).then_some(()))
    })
    .await
    .with_context(|| format!("in the pool: {last:?}"))?;
    Ok(last)
}

/// A sandbox of a shape, that requests little and may have `pids` processes.
fn spec((cpu, memory): Shape, pids: u32) -> Value {
    json!({"resources": {
        "requests": {"cpu": "100m", "memory": "32Mi"},
        "limits": {"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")},
        "pids": pids,
    }})
}

/// Its limits are those of its spec: by the kernel's files, and as its guest sees them. Returns its instance.
async fn is_right(agent: &Agent, name: &str, (cpu, memory): Shape, pids: u64) -> Result<String> {
    let instance = scene::instance(agent, name)?;
    let value = |file: &str| group_value(agent, &instance, file);
    let either = |one: &str, two: &str| value(one)?.map_or_else(|| value(two), |it| Ok(Some(it)));
    let quota = cpu * 100;
    let found = [
        either("memory.limit_in_bytes", "memory.max")?,
        either("cpu.cfs_quota_us", "cpu.max")?
            .map(|quota| quota.split(' ').next().unwrap_or_default().to_owned()),
        either("cpu.shares", "cpu.weight")?,
        value("pids.max")?,
    ];
    let share = match value("cpu.shares")? {
        Some(_) => 102,
        None => 10,
    };
    let wanted = [(memory + OVERHEAD) * MIB, quota, share, pids * 4 + 256];
    ensure!(
        found == wanted.map(|number| Some(number.to_string())),
        "{name}: {found:?} is not {wanted:?}"
    );
    let seen = output(
        agent,
        name,
        "nproc; awk '/^MemTotal/ {print $2}' /proc/meminfo; ulimit -u; echo $((6 * 7))",
    )
    .await?;
    // gVisor rounds up, has no guest with one processor, and none with more than the machine.
    let machine = std::thread::available_parallelism().context("count the cores")?;
    let cores = cpu.div_ceil(1000).max(2).min(machine.get() as u64);
    let wanted = format!("{cores}\n{}\n{pids}\n42", memory * 1024);
    ensure!(seen == wanted, "{name} sees {seen:?} and not {wanted:?}");
    Ok(instance)
}

#[tokio::test]
async fn every_shape_has_its_own_instances() {
    const STARTED: Shape = (500, 64);
    const CREATED: Shape = (2500, 96);
    let folder = images().unwrap();
    let options = options(&folder)
        .pool("cpu=500m,memory=64Mi,created=0,started=1")
        .pool("cpu=2500m,memory=96Mi,created=1,started=0");
    trial::run(options, async |agent| {
        let full = [STARTED, CREATED];
        let before = pool(agent, &full, &[]).await?;
        // As one of the pool's in one respect, and not in the other.
        let mut used = Vec::new();
        for (name, shape, pids) in [
            ("less", (500, 48), 50),
            ("more", (1000, 64), 60),
            ("other", (1500, 128), 70),
        ] {
            scene::run(agent, name, spec(shape, pids)).await?;
            let instance = is_right(agent, name, shape, pids.into()).await?;
            ensure!(!before.contains_key(&instance), "{name} is of the pool");
            ensure!(shapes(agent)?.get(&instance) == Some(&shape), "{name}");
            used.push(instance);
        }
        let names: Vec<&str> = used.iter().map(String::as_str).collect();
        let after = pool(agent, &full, &names).await?;
        ensure!(before == after, "the pool {before:?} became {after:?}");

        for (name, shape, pids) in [("started", STARTED, 80), ("created", CREATED, 90)] {
            scene::run(agent, name, spec(shape, pids)).await?;
            let instance = is_right(agent, name, shape, pids.into()).await?;
            ensure!(
                before.get(&instance) == Some(&shape),
                "{name} has {instance} and not one of {before:?}"
            );
            used.push(instance);
        }
        // What was taken is made anew.
        let names: Vec<&str> = used.iter().map(String::as_str).collect();
        pool(agent, &full, &names).await?;

        // Its limit holds, and not that of another shape.
        for (name, (_, memory)) in [("other", (1500, 128)), ("created", CREATED)] {
            let within = format!("dd if=/dev/zero of=/dev/null bs={}M count=1", memory - 24);
            output(agent, name, &within).await?;
            let beyond = format!("dd if=/dev/zero of=/dev/null bs={}M count=1", memory + 40);
            let done = scene::sh(agent, name, &beyond).await?;
            ensure!(done.exit.sandbox_reason == "OOMKilled", "{name}: {done:?}");
            Verdict::new(Reason::OOMKilled)
                .says(&(memory * MIB).to_string())
                .wait(agent, name)
                .await?;
        }
        Ok(())
    })
    .await
    .unwrap();
}
