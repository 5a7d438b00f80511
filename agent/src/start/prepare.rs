//! From options and disk to a node that drives its sandboxes.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use cloche_crds::quantity::Quantity;
use cloche_crds::sandbox::RuntimeStatus;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::options::{beside_us, budget, mirrors, process_budget, targets, watermarks};
use super::resume::{kill_unclaimed, resume};
use super::{Locks, Options};
use crate::api::Streams;
use crate::board::Board;
use crate::cgroup::{self, Cgroups, Groups};
use crate::cluster::References;
use crate::image::{ImageStore, Limits, Registries, StoreConfig};
use crate::instance::pool::Pool;
use crate::instance::{InstanceRecord, Workshop};
use crate::ledger::Ledger;
use crate::node::{Node, Outlook};
use crate::runsc::Profile;
use crate::sandbox::SandboxRecord;
use crate::settled::Settled;
use crate::snapshot::Store;
use crate::supervisor::Supervisor;
use crate::sys::orphan;
use crate::usage::{Sampler, Space};
use crate::{clock, preflight};

/// Sandboxes whose files are kept at the same time.
const KEEPERS: usize = 2;

/// Says what the host lacks, and refuses to go on without what sandboxes cannot do without.
async fn check_host(options: &Options, runsc: &Path) -> Result<()> {
    let wanted = preflight::Wanted {
        runsc: runsc.to_owned(),
        mkfs_erofs: "mkfs.erofs".into(),
        state: options.state.clone(),
        run: options.run.clone(),
        cgroup_parent: options.cgroup_parent.clone(),
    };
    let problems = preflight::report(
        &preflight::probe(&wanted)
            .await
            .context("look at the host")?,
        &wanted,
    );
    for problem in &problems {
        tracing::warn!("{problem}");
    }
    let fatal: Vec<String> = problems
        .iter()
        .filter(|problem| problem.fatal)
        .map(ToString::to_string)
        .collect();
    if fatal.is_empty() {
        Ok(())
    } else {
        bail!("this host cannot run sandboxes:\n{}", fatal.join("\n"))
    }
}

fn images(options: &Options) -> Result<ImageStore> {
    Ok(ImageStore::open(StoreConfig {
        directory: options.state.join("images"),
        local_images: options.images.clone(),
        registries: Registries {
            mirrors: mirrors(&options.registry_mirror)?,
            insecure: options.insecure_registry.iter().cloned().collect(),
        },
        limits: Limits::default(),
        program: PathBuf::from("/proc/self/exe"),
    })?)
}

fn private_folder(path: PathBuf) -> std::io::Result<PathBuf> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&path)?;
    Ok(path)
}

/// Where the sandboxes of a node come from, as far as the node's parts must know.
#[derive(Clone, Debug)]
pub enum Regime {
    /// Manifests.
    Standalone {
        /// The node's name.
        host: String,
    },
    /// Objects of an apiserver.
    Cluster {
        /// The node's name.
        node: String,
        /// Hears of what the apiserver has been told.
        settled: Settled,
        /// Tells what sandboxes take from Secrets and `ConfigMap`s.
        references: References,
    },
}

impl Regime {
    /// What is a manifest's can never be an object's: this agent would not find it where it looks, and would delete it.
    fn check(&self, records: &[(String, SandboxRecord)], state: &Path) -> Result<()> {
        let of_manifests = matches!(self, Self::Standalone { .. });
        // Only an apiserver gives an object a UID.
        let strange = records
            .iter()
            .find(|(_, record)| record.object.metadata.uid.is_none() != of_manifests);
        let Some((_, record)) = strange else {
            return Ok(());
        };
        let of = if of_manifests {
            "an object of a cluster"
        } else {
            "a manifest"
        };
        bail!(
            "{} has the sandbox {} of {of}, which this agent would end: give it another --state folder, or end that sandbox by an agent of its kind",
            state.display(),
            record.name
        )
    }
}

/// A node that drives what it had.
pub struct Prepared {
    /// The node.
    pub node: Arc<Node>,
    /// Its drivers.
    pub supervisor: Supervisor,
    /// UIDs of sandboxes whose records cannot be read any more: nobody knows how far they had come.
    pub lost: Vec<String>,
}

/// Makes the node of what stands on the machine, and goes on with every sandbox that it had. Whoever has the [`Locks`] is alone there.
pub async fn prepare(_locks: &Locks, options: &Options, regime: Regime) -> Result<Prepared> {
    orphan::become_subreaper().context("adopt orphans")?;
    let runsc = beside_us(options.runsc.as_deref(), "runsc", "cargo xtask artifacts")?;
    let init = beside_us(
        options.init.as_deref(),
        "cloche-init",
        "cargo xtask artifacts",
    )?;
    check_host(options, &runsc).await?;
    let boot_id = clock::boot_id().context("read the boot id")?;
    let budget = budget(options)?;
    let cgroups: Arc<dyn Cgroups> = Arc::new(Groups::open(&options.cgroup_parent)?);
    cgroups.set_budget(&cgroup::Budget {
        memory: budget.memory,
        pids: Some(process_budget()?),
        cpu_request_millis: None,
    })?;

    let instances = Ledger::<InstanceRecord>::open(&options.state.join("instances"))?;
    let sandboxes = Ledger::<SandboxRecord>::open(&options.state.join("sandboxes"))?;
    let known_instances = instances.load()?;
    let known = sandboxes.load()?;
    regime.check(&known.records, &options.state)?;
    for bad in known_instances.quarantined.iter().chain(&known.quarantined) {
        tracing::error!(id = bad.id, moved_to = %bad.moved_to.display(), error = &bad.error as &dyn std::error::Error, "unreadable record");
    }

    let profile = Profile::install(&options.state, &runsc, &init).await?;
    let run = private_folder(options.run.join("i"))?;
    let scratch = private_folder(options.state.join("scratch"))?;
    let tasks = TaskTracker::new();
    let workshop = Arc::new(Workshop {
        tasks: tasks.clone(),
        cgroups: Arc::clone(&cgroups),
        ledger: instances,
        profile: profile.clone(),
        run,
        boot_id: boot_id.clone(),
    });
    kill_unclaimed(&workshop, &known_instances.records, &known.records).await?;

    let images = images(options)?;
    let outlook = watch::Sender::new(Outlook {
        is_known: matches!(regime, Regime::Standalone { .. }),
        leaving: None,
    });
    let (name, settled, references) = match regime {
        Regime::Standalone { host } => (host, None, None),
        Regime::Cluster {
            node,
            settled,
            references,
        } => (node, Some(settled), Some(references)),
    };
    let space = Space {
        watermarks: watermarks(options, &scratch)?,
        folder: scratch.clone(),
        pressed: watch::Sender::default(),
    };
    let disk_pressed = space.pressed.clone();
    let sampler = Sampler::new(Arc::clone(&cgroups), Some(budget.memory), space);
    let node = Arc::new(Node {
        name,
        settled,
        references,
        boot_id,
        scratch,
        cgroups,
        images,
        snapshots: Store::open(&options.state.join("snapshots"))?,
        keepers: Semaphore::new(KEEPERS),
        pool: Pool::new(Arc::clone(&workshop), targets(&options.pool)?),
        workshop,
        sandboxes,
        board: Board::default(),
        streams: Streams::default(),
        sampler,
        budget,
        outlook,
        disk_pressed,
        room_wanted: Notify::new(),
        image_budget: Quantity(options.image_budget.clone())
            .bytes()
            .context("--image-budget")?
            .0,
        runtime: RuntimeStatus {
            name: "runsc".to_owned(),
            version: profile.version().await?,
            platform: "systrap".to_owned(),
            profile: profile.hash().to_owned(),
        },
        cancel: CancellationToken::new(),
        tasks,
    });
    let supervisor = resume(&node, known.records, &known_instances.records).await?;
    let lost = known.quarantined.into_iter().map(|bad| bad.id).collect();
    Ok(Prepared {
        node,
        supervisor,
        lost,
    })
}
