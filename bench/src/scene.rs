//! The agent under test as the measurements see it: manifests in its folder, what its API tells, its pool.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cloche_e2e::client::Client;
use cloche_e2e::deadline::within;
use cloche_e2e::image::busybox;
use cloche_e2e::level::Seen;
use cloche_e2e::session::Session;
use cloche_e2e::{Agent, Options};
use cloche_proto::agent::v1alpha1::{ListRequest, Open, WatchEvent};
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::Streaming;

use crate::clock::Stopwatch;
use crate::pool::Pool;
use crate::raw::Raw;

/// How long anything may take before the measurement has failed.
const LIMIT: Duration = Duration::from_mins(10);
/// With a tag that is not `latest`: that one would be looked for at each start.
const IMAGE: &str = "oci:busybox:1";
/// The sandbox's own command: it says that it runs, then waits.
const COMMAND: &str = "echo up; exec sleep 1000000";

pub(crate) const MIB: u64 = 1 << 20;

/// A folder with the only image.
pub(crate) fn images() -> Result<TempDir> {
    let folder = tempfile::Builder::new()
        .prefix("cloche-bench-")
        .tempdir()
        .context("make a folder of images")?;
    busybox()?.write(&folder.path().join("busybox"), "1")?;
    Ok(folder)
}

/// An agent with that image that admits everything which the machine can bear.
pub(crate) fn options(images: &TempDir) -> Options {
    let mut options = Options::default().images(images.path());
    options.more = vec!["--cpu-budget".into(), "1000".into()];
    options
}

/// The agent, with connections that are warm.
pub(crate) struct Scene<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) client: Client,
    pub(crate) pool: Pool,
    events: Streaming<WatchEvent>,
    count: u32,
}

impl<'a> Scene<'a> {
    /// Watches, and has the image unpacked once; then raw work finds it, too.
    pub(crate) async fn open(agent: &'a Agent) -> Result<(Self, Raw)> {
        let mut client = agent.client().await?;
        let request = ListRequest { key: None };
        let events = client.grpc().watch(request).await.context("watch")?;
        let mut scene = Self {
            agent,
            client,
            pool: Pool {
                state: agent.state(),
                run: agent.run().to_owned(),
            },
            events: events.into_inner(),
            count: 0,
        };
        let first = scene.start(64).await?;
        scene.remove(&[first.name]).await?;
        let raw = Raw::beside(agent).await?;
        Ok((scene, raw))
    }

    /// Puts manifests of `names` into place, all by renames one after the other.
    fn put(&self, names: &[String], mebibytes: u64) -> Result<()> {
        let staged = |name: &str| self.agent.scratch().join(format!("{name}.yaml"));
        for name in names {
            let text = manifest(name, mebibytes, COMMAND, "Running");
            std::fs::write(staged(name), text).context("write a manifest")?;
        }
        for name in names {
            let place = self.agent.manifests().join(format!("{name}.yaml"));
            std::fs::rename(staged(name), place).context("put a manifest into place")?;
        }
        Ok(())
    }

    fn names(&mut self, count: u32) -> Vec<String> {
        let first = self.count;
        self.count += count;
        (first..self.count)
            .map(|at| format!("bench-{at}"))
            .collect()
    }

    /// Starts a sandbox and waits until it runs and its command has printed.
    pub(crate) async fn start(&mut self, mebibytes: u64) -> Result<Started> {
        let name = self.names(1).swap_remove(0);
        // Before the clock starts: the writing of the manifest is not the agent's.
        let watch = self.place(&name, &manifest(&name, mebibytes, COMMAND, "Running"))?;
        self.running(BTreeSet::from([name.clone()])).await?;
        let running = watch.millis();
        let attach = Open {
            command_id: "main".to_owned(),
            ..Open::default()
        };
        let mut session = Session::open_on(&mut self.client, &name, attach).await??;
        session
            .until("its command prints", LIMIT, |session| {
                !session.stdout.is_empty()
            })
            .await?;
        Ok(Started {
            name,
            running,
            output: watch.millis(),
        })
    }

    /// Starts a sandbox of 256 MiB that does this, and waits until it runs; its name.
    pub(crate) async fn start_running(&mut self, does: &str) -> Result<String> {
        let name = self.names(1).swap_remove(0);
        self.place(&name, &manifest(&name, 256, does, "Running"))?;
        self.running(BTreeSet::from([name.clone()])).await?;
        Ok(name)
    }

    /// Has one of [`Self::start`] run or stand still; milliseconds until Watch tells that it does.
    pub(crate) async fn set_state(
        &mut self,
        name: &str,
        mebibytes: u64,
        state: &str,
    ) -> Result<f64> {
        let watch = self.place(name, &manifest(name, mebibytes, COMMAND, state))?;
        self.follow("its state changes", |told, _, seen| {
            Ok(told == name && seen.phase() == state)
        })
        .await?;
        Ok(watch.millis())
    }

    /// Renames a manifest into place; a stopwatch from just before.
    fn place(&self, name: &str, manifest: &str) -> Result<Stopwatch> {
        let staged = self.agent.scratch().join("staged.yaml");
        std::fs::write(&staged, manifest).context("write a manifest")?;
        let place = self.agent.manifests().join(format!("{name}.yaml"));
        let watch = Stopwatch::start();
        std::fs::rename(&staged, &place).context("put a manifest into place")?;
        Ok(watch)
    }

    /// Starts `count` sandboxes at once; their names, and milliseconds until all run.
    pub(crate) async fn start_all(
        &mut self,
        count: u32,
        mebibytes: u64,
    ) -> Result<(Vec<String>, f64)> {
        let names = self.names(count);
        let watch = Stopwatch::start();
        self.put(&names, mebibytes)?;
        self.running(names.iter().cloned().collect()).await?;
        Ok((names, watch.millis()))
    }

    /// Takes the manifests away and waits until nothing is left of their sandboxes.
    pub(crate) async fn remove(&mut self, names: &[String]) -> Result<()> {
        for name in names {
            let place = self.agent.manifests().join(format!("{name}.yaml"));
            std::fs::remove_file(place).context("take a manifest away")?;
        }
        let mut left: BTreeSet<String> = names.iter().cloned().collect();
        self.follow("sandboxes are gone", |name, deleted, _| {
            if deleted {
                left.remove(name);
            }
            Ok(left.is_empty())
        })
        .await
    }

    async fn running(&mut self, mut left: BTreeSet<String>) -> Result<()> {
        self.follow("sandboxes run", |name, _, seen| {
            if left.contains(name) && seen.is_finished() {
                bail!("{name} ended: {}: {}", seen.reason(), seen.message());
            }
            if seen.is_running() {
                left.remove(name);
            }
            Ok(left.is_empty())
        })
        .await
    }

    /// Reads what is told until `done`, which gets a name, whether it was deleted, and the object.
    async fn follow(
        &mut self,
        what: &str,
        mut done: impl FnMut(&str, bool, &Seen) -> Result<bool>,
    ) -> Result<()> {
        within(LIMIT, what, async {
            loop {
                let event = self.events.message().await.context("watch")?;
                let event = event.context("the watch ended")?;
                if event.synced {
                    continue;
                }
                let object: Value =
                    serde_json::from_slice(&event.object).context("read an object")?;
                let name = object["metadata"]["name"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                if done(&name, event.deleted, &Seen(object))? {
                    return Ok(());
                }
            }
        })
        .await
    }
}

/// One started sandbox.
pub(crate) struct Started {
    pub(crate) name: String,
    /// Milliseconds from the rename of its manifest until Watch told that it is Running.
    pub(crate) running: f64,
    /// The same until the first output of its own command was read by the API.
    pub(crate) output: f64,
}

fn manifest(name: &str, mebibytes: u64, does: &str, state: &str) -> String {
    json!({
        "apiVersion": "cloche.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": name},
        "spec": {
            "image": IMAGE,
            "command": ["/bin/sh", "-c", does],
            "lifecycle": {"desiredState": state},
            // What is requested of the processor is what is limited: raw instances have the same shares of a busy one.
            "resources": {
                "requests": {"memory": "8Mi", "ephemeral-storage": "16Mi"},
                "limits": {"cpu": "1", "memory": format!("{mebibytes}Mi")},
            },
        },
    })
    .to_string()
}

/// The machine's load averages.
pub(crate) fn load() -> Result<String> {
    let text = std::fs::read_to_string("/proc/loadavg").context("read the load")?;
    let averages: Vec<&str> = text.split(' ').take(3).collect();
    ensure!(averages.len() == 3, "/proc/loadavg is {text:?}");
    Ok(averages.join(" "))
}
