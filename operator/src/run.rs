//! Puts the parts together; from the start to the stop.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail};
use cloche_crds::cluster::SILENCE;
use cloche_identity::{Applicant, Identity};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch as channel};
use tokio_util::sync::CancellationToken;

use crate::controller::{self, MOST_EVENTS};
use crate::health;
use crate::lease::{self, Holder, Standing};
use crate::options::{Command, Options};
use crate::references;
use crate::signer;
use crate::uninstall;
use crate::watch;
use crate::work::Hands;

/// Runs until SIGTERM or SIGINT, or until the Lease is lost; a command to its end.
pub async fn run(options: Options) -> Result<()> {
    let client = connect(&options).await?;
    if let Some(Command::Uninstall(step)) = &options.command {
        uninstall::run(client, &options.namespace, step).await?;
        return Ok(());
    }
    let stop = CancellationToken::new();
    let (standing, stands) = channel::channel(Standing {
        leads: false,
        answers: true,
    });
    let (synced, listed) = channel::channel(false);
    let health = async {
        match options.health {
            Some(address) => {
                let listener = TcpListener::bind(address)
                    .await
                    .with_context(|| format!("serve health at {address}"))?;
                health::serve(listener, listed).await;
                bail!("health is not served any more")
            }
            None => std::future::pending().await,
        }
    };
    let answers = async {
        match options.listen {
            Some(address) => answer(address, client.clone(), options.namespace.clone()).await,
            None => std::future::pending().await,
        }
    };
    let (events, taken) = mpsc::channel(MOST_EVENTS);
    let holder = Holder {
        client: client.clone(),
        namespace: options.namespace.clone(),
        identity: identity(),
    };
    let signer = signer::serve(client.clone(), options.namespace.clone(), stands.clone());
    let controller = controller::run(Hands::new(client.clone()), taken, stands, synced);
    let mut ended = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupted = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    tracing::info!(
        namespace = options.namespace,
        identity = holder.identity,
        "started"
    );
    // Dropped arms leave nothing half: every write is one request.
    tokio::select! {
        held = lease::hold(&holder, &standing, &stop) => held?,
        done = controller => {
            done?;
            bail!("the watches ended");
        }
        () = watch::follow_all(&client, &options.namespace, &events) => bail!("a watch ended"),
        served = health => return served,
        answered = answers => return answered,
        () = signer => bail!("the signer ended"),
        _ = ended.recv() => {}
        _ = interrupted.recv() => {}
    }
    stop.cancel();
    lease::hold(&holder, &standing, &stop).await?;
    tracing::info!("stopped");
    Ok(())
}

/// Answers agents, as long as it goes well.
async fn answer(address: SocketAddr, client: Client, namespace: String) -> Result<()> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listen for agents at {address}"))?;
    let (certificate, credentials) = channel::channel(None);
    let applicant = Applicant {
        client: client.clone(),
        identity: Identity::Operator,
        namespace: namespace.clone(),
    };
    tokio::select! {
        () = cloche_identity::keep(applicant, None, certificate) => bail!("the renewal of certificates ended"),
        served = references::serve(listener, client, namespace, credentials) => served.context("answer agents")?,
    }
    bail!("agents are not answered any more")
}

async fn connect(options: &Options) -> Result<Client> {
    let mut config = match &options.kubeconfig {
        Some(path) => {
            let file =
                Kubeconfig::read_from(path).with_context(|| format!("read {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("use {}", path.display()))?
        }
        None => Config::infer().await.context("find the apiserver")?,
    };
    config.read_timeout = Some(SILENCE);
    Client::try_from(config).context("make a client of the apiserver")
}

/// The pod's name, and what tells this process from the one before in the same pod.
fn identity() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let unique = RandomState::new().hash_one(std::process::id());
    format!("{}_{unique:016x}", host.trim())
}
