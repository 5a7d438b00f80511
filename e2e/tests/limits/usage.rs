//! What a sandbox uses, as it is told while it runs and when it has ended.

use anyhow::{Context as _, Result, ensure};
use cloche_e2e::client::key;
use cloche_e2e::deadline::until;
use cloche_e2e::level::{Look, Seen};
use cloche_e2e::session::{Session, shell};
use cloche_e2e::{Agent, trial};
use cloche_proto::agent::v1alpha1::{Open, UsageRequest, UsageResponse};
use serde_json::json;

use crate::scene::{LIMIT, images, options, output, run};

const MIB: u64 = 1 << 20;

async fn usage(agent: &Agent, name: &str) -> Result<UsageResponse, tonic::Status> {
    let request = UsageRequest {
        key: Some(key(name)),
        uid: String::new(),
    };
    let mut client = agent
        .client()
        .await
        .map_err(|error| tonic::Status::internal(error.to_string()))?;
    client
        .grpc()
        .usage(request)
        .await
        .map(tonic::Response::into_inner)
}

/// Waits until what it uses is as wanted.
async fn uses(
    agent: &Agent,
    name: &str,
    what: &str,
    is_so: impl Fn(&UsageResponse) -> bool,
) -> Result<()> {
    let mut last = None;
    until(LIMIT, what, async || {
        let used = usage(agent, name).await?;
        last = Some(used);
        Ok(last.filter(|used| is_so(used)).map(drop))
    })
    .await
    .with_context(|| format!("{last:?}"))
}

async fn condition(agent: &Agent, name: &str, kind: &str, status: &str) -> Result<Seen> {
    let what = format!("{kind}={status}");
    agent
        .wait_for(name, &what, LIMIT, |seen| match seen {
            Some(seen) if !seen.is_running() => Look::Never(format!("it is {}", seen.phase())),
            Some(seen) => {
                let all = seen.0["status"]["conditions"].as_array();
                let is_so = all.is_some_and(|all| {
                    all.iter()
                        .any(|one| one["type"] == kind && one["status"] == status)
                });
                if is_so {
                    Look::Reached(seen.clone())
                } else {
                    Look::NotYet
                }
            }
            None => Look::NotYet,
        })
        .await
}

#[tokio::test]
async fn what_is_used_is_told_and_the_most_of_it_kept_for_the_end() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        let spec = json!({
            "command": ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"],
            "resources": {"limits": {"cpu": "500m", "memory": "128Mi", "ephemeral-storage": "256Mi"}},
        });
        run(agent, "u", spec).await?;
        let at_first = usage(agent, "u").await?;
        ensure!(at_first.disk_bytes.is_some_and(|disk| disk < MIB), "{at_first:?}");
        ensure!(at_first.memory_bytes > 0 && at_first.processes > 0, "{at_first:?}");

        output(agent, "u", "head -c 67108864 /dev/urandom >/data; sync").await?;
        uses(agent, "u", "64 MiB on disk", |used| {
            used.disk_bytes.is_some_and(|disk| (64 * MIB..72 * MIB).contains(&disk))
        })
        .await?;
        let top = agent.kubectl(&["top", "u"]).await?;
        let text = String::from_utf8_lossy(&top.stdout).into_owned();
        ensure!(top.status.success() && text.starts_with("NAME"), "{top:?}");
        let line = text.lines().nth(1).context("one line")?;
        let disk = line.split_whitespace().nth(5).context("its disk")?;
        let percent = line.split_whitespace().nth(6).context("its share")?;
        ensure!(disk.ends_with("Mi") && percent.ends_with('%'), "{text}");
        ensure!(
            (25..=28).contains(&percent.trim_end_matches('%').parse::<u64>()?),
            "{text}"
        );

        output(agent, "u", "head -c 33554432 /dev/urandom >/dev/shm/m").await?;
        uses(agent, "u", "32 MiB in memory", |used| used.memory_bytes > 32 * MIB).await?;
        output(agent, "u", "rm /data /dev/shm/m").await?;
        uses(agent, "u", "all is free again", |used| {
            used.disk_bytes.is_some_and(|disk| disk < MIB) && used.peak_memory_bytes > used.memory_bytes
        })
        .await?;

        let open = Open { command: Some(shell("while :; do :; done")), ..Open::default() };
        let busy = Session::open(agent, "u", open).await??;
        uses(agent, "u", "half a core", |used| {
            used.cpu_millicores.is_some_and(|millis| (400..=600).contains(&millis))
        })
        .await?;
        drop(busy);

        // The agent's end forgets none of it that was kept.
        let is_kept = async || {
            let uid = agent.client().await?.get("u").await?.context("u")?["metadata"]["uid"].clone();
            let folder = agent.state().join("sandboxes").join(uid.as_str().context("a uid")?);
            let text = std::fs::read(folder.join("usage.json")).unwrap_or_default();
            let kept: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
            Ok((kept["peakMemory"].as_u64() > Some(32 * MIB)).then_some(()))
        };
        until(LIMIT, "its peak is kept", is_kept).await?;
        agent.kill().await?;
        agent.restart().await?;
        let seen = until(LIMIT, "it is there again", async || agent.client().await?.get("u").await);
        ensure!(seen.await?["status"]["phase"] == "Running");
        agent.client().await?.delete("u").await?;
        let last = agent
            .wait_for("u", "ended", LIMIT, |seen| match seen {
                Some(seen) if seen.is_finished() => Look::Reached(Some(seen.clone())),
                Some(_) => Look::NotYet,
                None => Look::Reached(None),
            })
            .await?;
        let end = last.context("its end was not seen")?.0["status"]["termination"].clone();
        let number = |field: &str| end[field].as_u64().with_context(|| format!("{field} in {end}"));
        ensure!((64 * MIB..72 * MIB).contains(&number("writtenBytes")?), "{end}");
        ensure!(number("peakMemoryBytes")? > 32 * MIB, "{end}");
        let gone = usage(agent, "u").await.unwrap_err();
        ensure!(
            matches!(gone.code(), tonic::Code::FailedPrecondition | tonic::Code::NotFound),
            "{gone}"
        );
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn what_it_is_short_of_is_a_condition_and_no_end() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        let spec = json!({"resources": {
            "limits": {"cpu": "200m", "memory": "128Mi", "ephemeral-storage": "64Mi"},
        }});
        run(agent, "short", spec).await?;
        output(agent, "short", "head -c 65000000 /dev/zero >/data").await?;
        condition(agent, "short", "DiskPressure", "True").await?;
        output(agent, "short", "rm /data").await?;
        condition(agent, "short", "DiskPressure", "False").await?;
        let open = Open {
            command: Some(shell("while :; do :; done")),
            ..Open::default()
        };
        let busy = Session::open(agent, "short", open).await??;
        condition(agent, "short", "CPUThrottled", "True").await?;
        busy.kill().await?;
        condition(agent, "short", "CPUThrottled", "False").await?;
        ensure!(output(agent, "short", "echo well").await? == "well");
        Ok(())
    })
    .await
    .unwrap();
}

/// The sentry has no rights on the node: by what the kernel says of every process of the instance.
#[tokio::test]
async fn a_sentry_has_neither_rights_nor_files_of_the_node() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        run(agent, "s", crate::scene::line("sleep 1000")).await?;
        let group = crate::scene::instance(agent, "s")?;
        let files = crate::scene::group_files(agent, &group, "cgroup.procs")?;
        let text = std::fs::read_to_string(files.first().context("no group")?)?;
        let pids: Vec<i32> = text.lines().map(str::parse).collect::<Result<_, _>>()?;
        ensure!(pids.len() > 1, "{pids:?}");
        for pid in &pids {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
            let line = |name: &str| {
                let found = status.lines().find_map(|line| line.strip_prefix(name));
                found
                    .map(str::trim)
                    .with_context(|| format!("{name} of {pid}"))
            };
            ensure!(
                !line("Uid:")?.split_whitespace().any(|id| id == "0"),
                "{status}"
            );
            for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
                ensure!(
                    line(set)?.chars().all(|digit| digit == '0'),
                    "{set} {status}"
                );
            }
            ensure!(
                line("NoNewPrivs:")? == "1" && line("Seccomp:")? == "2",
                "{status}"
            );
            let own = std::fs::read_link("/proc/self/ns/user")?;
            ensure!(
                std::fs::read_link(format!("/proc/{pid}/ns/user"))? != own,
                "{pid}"
            );
        }
        let sentry = pids[0];
        let mut strange = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/{sentry}/fd"))? {
            let entry = entry?;
            let target = std::fs::read_link(entry.path())?;
            if !is_expected(&target.to_string_lossy(), agent) {
                strange.push((entry.file_name(), target));
            }
        }
        ensure!(strange.is_empty(), "{strange:?}");
        Ok(())
    })
    .await
    .unwrap();
}

/// What a sentry may have open: what it was given for this sandbox, and what it makes for itself.
fn is_expected(target: &str, agent: &Agent) -> bool {
    let run = agent.run().to_string_lossy().into_owned();
    let state = agent.state().to_string_lossy().into_owned();
    let own = target.starts_with(&run)
        || target.starts_with("/memfd:")
        || target.starts_with("anon_inode:");
    // Its image, its init, its writable layer; pipes and sockets of its channel and of its control.
    let given = [".erofs", "/scratch/"]
        .iter()
        .any(|part| target.contains(part))
        && target.starts_with(&state);
    let channel =
        target.starts_with("pipe:") || target.starts_with("socket:") || target == "/dev/null";
    own || given || channel
}
