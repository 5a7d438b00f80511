//! The agent without Kubernetes: a manifest directory is the desired state, status is written beside it.
//!
//! Start, in this order, each step only after the one before: preflight; the lock on the state folder; groups and budget;
//! records; every instance that no sandbox claims is killed; runtime profile; images; each sandbox is decided and driven; only
//! then desired objects, pool and API. Stop: the API breaks off, the pool is emptied, sandboxes go on; the next start finds them.

mod options;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cloche_crds::quantity::Quantity;
use cloche_crds::sandbox::RuntimeStatus;
use futures::TryStreamExt;
use futures::stream::FuturesUnordered;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::board::Board;
use crate::cgroup::{self, Cgroups, Groups};
use crate::image::{ImageStore, Limits, Registries, StoreConfig};
use crate::instance::pool::Pool;
use crate::instance::{InstanceRecord, Workshop};
use crate::ledger::Ledger;
use crate::mirror::Mirror;
use crate::node::Node;
use crate::recovery::{self, Decision, Found};
use crate::runsc::Profile;
use crate::sandbox::{SandboxRecord, State, death};
use crate::session::main_has_ended;
use crate::source::ManifestDirectory;
use crate::status::{Publisher, StatusFiles};
use crate::supervisor::Supervisor;
use crate::sys::orphan;
use crate::usage::Sampler;
use crate::{api, clock, preflight};

pub use options::Options;
use options::{beside_us, budget, mirrors, process_budget, targets};

/// How long an earlier agent's lock is waited for, and how often it is asked for.
const LOCK_WAIT: Duration = Duration::from_secs(5);
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// How long a stop waits for what is being taken down. A process that the kernel cannot kill must not keep an agent from stopping.
const STOP_PATIENCE: Duration = Duration::from_secs(15);
/// How long a start waits for instances that nobody claims to be gone. What takes longer goes on beside it.
const UNCLAIMED_PATIENCE: Duration = Duration::from_secs(15);

/// Runs until SIGTERM or SIGINT.
pub async fn run(options: Options) -> Result<()> {
    let _locks = lock(&options).await?;
    orphan::become_subreaper().context("adopt orphans")?;
    let (node, supervisor) = prepare(&options).await?;
    let socket = options
        .socket
        .clone()
        .unwrap_or_else(|| options.run.join("agent.sock"));
    let listener = api::listen(&socket)?;

    let manifests = Arc::new(ManifestDirectory::open(
        &options.manifests,
        supervisor.remembered(),
    )?);
    let desired = manifests.desired();
    let mut files = StatusFiles::open(&options.manifests)?;
    files.sweep(desired.borrow().manifests())?;
    let publisher = Arc::new(Publisher::default());
    let mirror = Mirror::new(
        node.board.clone(),
        desired.clone(),
        supervisor.refused(),
        Arc::clone(&publisher),
    );

    let mut terminate = signal(SignalKind::terminate()).context("handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("handle SIGINT")?;
    tracing::info!(socket = %socket.display(), manifests = %options.manifests.display(), "serving");
    let api = tokio::spawn(api::serve(
        listener,
        Arc::clone(&node),
        Arc::clone(&manifests),
    ));
    let source = tokio::spawn(manifests.run(node.cancel.child_token()));
    let mut pool = tokio::spawn(node.pool.clone().run(node.cancel.child_token()));
    let sampler = tokio::spawn(node.sampler.clone().run(node.cancel.child_token()));
    let supervisor = tokio::spawn(supervisor.run(desired));
    let mirror = tokio::spawn(mirror.run(node.cancel.child_token()));
    let status = tokio::spawn(publisher.run(files, node.cancel.child_token()));
    let reaper = tokio::spawn(orphan::reap());
    // A task that ends by itself takes the process down: what it owned has no owner any more.
    let ended = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        ended = api => Err(anyhow::anyhow!("the API ended: {ended:?}")),
        ended = &mut pool => Err(anyhow::anyhow!("the pool ended: {ended:?}")),
        ended = sampler => Err(anyhow::anyhow!("the sampler ended: {ended:?}")),
        ended = supervisor => Err(anyhow::anyhow!("the supervisor ended: {ended:?}")),
        ended = source => Err(anyhow::anyhow!("the manifest source ended: {ended:?}")),
        ended = mirror => Err(anyhow::anyhow!("the status mirror ended: {ended:?}")),
        ended = status => Err(anyhow::anyhow!("the status writer ended: {ended:?}")),
        ended = reaper => Err(anyhow::anyhow!("the reaper ended: {ended:?}")),
    };
    tracing::info!("stopping; sandboxes go on");
    node.cancel.cancel();
    node.tasks.close();
    let quiet = async {
        if !pool.is_finished() {
            pool.await.context("empty the pool")?;
        }
        node.tasks.wait().await;
        anyhow::Ok(())
    };
    if let Ok(emptied) = tokio::time::timeout(STOP_PATIENCE, quiet).await {
        emptied?;
    } else {
        tracing::warn!("what is still being taken down is left to the next start");
    }
    ended
}

/// One agent per state, run and manifest folder, and per parent group: whatever it finds in them that it does not know it takes for
/// its own of old, and removes. What a killed one was about to start holds its locks until it is a program of its own (seen: some
/// milliseconds), so a lock that is held is asked for again until [`LOCK_WAIT`] is over.
async fn lock(options: &Options) -> Result<Vec<Flock<File>>> {
    let known = options.state.join("sandboxes");
    if !options.manifests.exists()
        && known
            .read_dir()
            .is_ok_and(|mut known| known.next().is_some())
    {
        bail!(
            "the manifest directory {} is not there, and {} tells of sandboxes: an empty one would end them all. Put it back, or mount it, then start the agent",
            options.manifests.display(),
            known.display()
        );
    }
    for folder in [&options.state, &options.run, &options.manifests] {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .with_context(|| format!("make the folder {}", folder.display()))?;
    }
    let group = Groups::open(&options.cgroup_parent)?.make_parent_folder()?;
    let until = clock::now().boot + LOCK_WAIT;
    let mut locks = Vec::new();
    for folder in [&options.state, &options.run, &options.manifests, &group] {
        locks.push(lock_folder(folder, until).await?);
    }
    Ok(locks)
}

async fn lock_folder(folder: &Path, until: Duration) -> Result<Flock<File>> {
    let mut file = File::open(folder).with_context(|| format!("open {}", folder.display()))?;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((unlocked, Errno::EWOULDBLOCK)) if clock::now().boot < until => file = unlocked,
            Err((_, errno)) => {
                return Err(errno).with_context(|| {
                    format!("lock {}: another agent runs on it", folder.display())
                });
            }
        }
        tokio::time::sleep(LOCK_RETRY).await;
    }
}

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

async fn prepare(options: &Options) -> Result<(Arc<Node>, Supervisor)> {
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
    for bad in known_instances.quarantined.iter().chain(&known.quarantined) {
        tracing::error!(id = bad.id, moved_to = %bad.moved_to.display(), error = &bad.error as &dyn std::error::Error, "unreadable record");
    }

    let profile = Profile::install(&options.state, &runsc, &init).await?;
    let run = options.run.join("i");
    let scratch = options.state.join("scratch");
    for folder in [&run, &scratch] {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
    }
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

    let images = ImageStore::open(StoreConfig {
        directory: options.state.join("images"),
        local_images: options.images.clone(),
        registries: Registries {
            mirrors: mirrors(&options.registry_mirror)?,
            insecure: options.insecure_registry.iter().cloned().collect(),
        },
        limits: Limits::default(),
        program: PathBuf::from("/proc/self/exe"),
    })?;
    let sampler = Sampler::new(Arc::clone(&cgroups), Some(budget.memory));
    let node = Arc::new(Node {
        name: nix::unistd::gethostname()
            .context("read the host name")?
            .to_string_lossy()
            .into_owned(),
        boot_id,
        scratch,
        cgroups,
        images,
        pool: Pool::new(Arc::clone(&workshop), targets(&options.pool)?),
        workshop,
        sandboxes,
        board: Board::default(),
        sampler,
        budget,
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
    Ok((node, supervisor))
}

/// Decides each sandbox that an earlier agent had, and drives it.
async fn resume(
    node: &Arc<Node>,
    sandboxes: Vec<(String, SandboxRecord)>,
    instances: &[(String, InstanceRecord)],
) -> Result<Supervisor> {
    let mut supervisor = Supervisor::new(Arc::clone(node));
    // All at once: a sentry that does not answer must hold up none but its own sandbox.
    let looks = sandboxes.into_iter().map(|(_, record)| async move {
        let (found, instance) = find(node, &record, instances).await?;
        anyhow::Ok((record, found, instance))
    });
    let mut looks: FuturesUnordered<_> = looks.collect();
    while let Some((record, found, instance)) = looks.try_next().await? {
        if let Some(image) = &record.image {
            node.images.pin(&image.digest, &record.uid);
        }
        match recovery::decide(&record, &found, &node.boot_id, clock::now()) {
            Decision::Resume(record) => supervisor.resume(record, instance).await,
            Decision::Restart { discard, record } => {
                // Beside what follows: nothing has run in it, and no record claims it any more.
                let workshop = Arc::clone(&node.workshop);
                node.tasks
                    .spawn(async move { workshop.demolish(&discard).await });
                supervisor.resume(record, None).await;
            }
        }
    }
    Ok(supervisor)
}

/// Kills and removes whatever no sandbox claims: records, groups and folders of instances.
async fn kill_unclaimed(
    workshop: &Arc<Workshop>,
    records: &[(String, InstanceRecord)],
    sandboxes: &[(String, SandboxRecord)],
) -> Result<()> {
    let claimed: BTreeSet<&str> = sandboxes
        .iter()
        .filter_map(|(_, record)| record.state.instance())
        .collect();
    let mut found: BTreeSet<String> = records.iter().map(|(id, _)| id.clone()).collect();
    found.extend(workshop.cgroups.list()?);
    for entry in std::fs::read_dir(&workshop.run).context("list instance folders")? {
        found.extend(entry?.file_name().into_string().ok());
    }
    let unclaimed = found
        .into_iter()
        .filter(|id| !claimed.contains(id.as_str()));
    let removals = unclaimed.map(|id| {
        let workshop = Arc::clone(workshop);
        tokio::spawn(async move {
            tracing::info!(instance = id, "removing an instance that no sandbox claims");
            workshop.demolish(&id).await;
        })
    });
    let removed = futures::future::try_join_all(removals);
    if let Ok(removed) = tokio::time::timeout(UNCLAIMED_PATIENCE, removed).await {
        removed.context("remove instances that no sandbox claims")?;
    } else {
        tracing::warn!("some instances that no sandbox claims are still being removed");
    }
    Ok(())
}

/// What is left of the instance that a record claims.
async fn find(
    node: &Arc<Node>,
    record: &SandboxRecord,
    instances: &[(String, InstanceRecord)],
) -> Result<(Found, Option<crate::instance::Instance>)> {
    let Some(id) = record.state.instance() else {
        return Ok((Found::Nothing, None));
    };
    if record.state.termination().is_some() {
        // It is torn down, whatever is left.
        return Ok((Found::Nothing, None));
    }
    let is_over = || {
        main_has_ended(&node.sandboxes.folder(&record.uid).join("sessions"))
            && !matches!(record.state, State::Claimed { .. })
    };
    let Some((_, instance)) = instances.iter().find(|(known, _)| known == id) else {
        let found = if is_over() {
            Found::MainEnded
        } else {
            Found::Nothing
        };
        return Ok((found, None));
    };
    match node.workshop.adopt(id, instance)? {
        None if is_over() => Ok((Found::MainEnded, None)),
        None => Ok((Found::Dead(death::of_sentry(node, id, record).await), None)),
        Some(instance) => match instance.main_running().await {
            Ok(main_running) => Ok((Found::Alive { main_running }, Some(instance))),
            Err(error) => Ok((Found::Dead(death::of_silence(&error)), Some(instance))),
        },
    }
}
