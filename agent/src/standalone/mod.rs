//! The agent without Kubernetes: a manifest directory is the desired state, status is written beside it.
//!
//! All but that is [`start`]'s. Stop: the API breaks off, the pool is emptied, sandboxes go on; the next start finds them.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};

use crate::api;
use crate::mirror::Mirror;
use crate::source::ManifestDirectory;
use crate::start::{self, Crew, Prepared, Regime};
use crate::status::{Publisher, StatusFiles};

/// How `cloche-agent standalone` is run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Folder of manifests: each Sandbox in it is run; its status is written beside it
    #[arg(long, default_value = "/etc/cloche/manifests")]
    pub manifests: PathBuf,
    /// What every agent has.
    #[command(flatten)]
    pub node: start::Options,
}

/// Runs until SIGTERM or SIGINT.
pub async fn run(options: Options) -> Result<()> {
    expect_manifests(&options)?;
    let locks = start::lock(&options.node, Some(&options.manifests)).await?;
    let regime = Regime::Standalone { host: host_name()? };
    let prepared = start::prepare(&locks, &options.node, regime).await?;
    let Prepared {
        node, supervisor, ..
    } = prepared;
    let socket = options.node.socket();
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

    let mut crew = Crew::new(&node)?;
    tracing::info!(socket = %socket.display(), manifests = %options.manifests.display(), "serving");
    let stop = || node.cancel.child_token();
    let api = api::serve(listener, Arc::clone(&node), Some(Arc::clone(&manifests)));
    crew.join("API", api);
    crew.join("manifest source", manifests.run(stop()));
    crew.join("supervisor", supervisor.run(desired));
    crew.join("status mirror", mirror.run(stop()));
    crew.join("status writer", publisher.run(files, stop()));
    crew.run().await
}

fn host_name() -> Result<String> {
    let name = nix::unistd::gethostname().context("read the host name")?;
    Ok(name.to_string_lossy().into_owned())
}

/// An empty directory means that every sandbox was deleted: one that is not there must not mean the same.
fn expect_manifests(options: &Options) -> Result<()> {
    let known = options.node.state.join("sandboxes");
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
    Ok(())
}
