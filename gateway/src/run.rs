//! Puts the parts together; from the start to the stop.

use std::time::Duration;

use cloche_crds::cluster::SILENCE;
use cloche_identity::{Applicant, Identity, Store};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Apiserver;
use crate::agents::Agents;
use crate::options::Options;
use crate::routes::{self, Gateway};
use crate::streams::Streams;
use crate::{bundle, follow, serve};

/// How long a gateway that leaves still takes what comes: so long others may not know yet that it does.
const LEAVE: Duration = Duration::from_secs(10);
/// How long streams that nobody can take over may go on after the stop.
const GRACE: Duration = Duration::from_secs(20);
/// How long they have to tell their clients when that is over.
const FAREWELL: Duration = Duration::from_secs(5);

/// Why there is no gateway.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The way to the apiserver is not known.
    #[error("read how to reach the apiserver")]
    Kubeconfig(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It cannot be used.
    #[error("make a client of the apiserver")]
    Client(#[source] Box<kube::Error>),
    /// The address cannot be listened on.
    #[error("listen on {address}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The process cannot be told to stop.
    #[error("wait for signals")]
    Signals(#[source] std::io::Error),
    /// A part that should go on for ever ended.
    #[error("{0} has ended")]
    Ended(&'static str),
}

/// Serves until SIGTERM, and [`LEAVE`] longer, or until SIGINT.
pub async fn run(options: Options) -> Result<(), Error> {
    let failed = Error::Signals;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let stop = Stop::default();
    let asked = async {
        let leave = async {
            terminate.recv().await;
            tracing::info!("leaving");
            stop.leave.cancel();
            tokio::time::sleep(LEAVE).await;
        };
        tokio::select! {
            () = leave => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        stop.now.cancel();
        std::future::pending().await
    };
    let listener = TcpListener::bind(options.listen)
        .await
        .map_err(|source| Error::Listen {
            address: options.listen,
            source,
        })?;
    let client = client(&options).await?;
    tokio::select! {
        never = asked => never,
        ended = run_with(options, listener, client, stop.clone()) => ended,
    }
}

/// The stop of a gateway, in two steps.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// It is not ready any more, so that nobody is sent to it; whoever comes all the same is served.
    pub leave: CancellationToken,
    /// It takes nothing more, and streams that can go on elsewhere are told to.
    pub now: CancellationToken,
}

/// Serves at `listener` by `client` until `stop`, and then as long as a stop takes.
pub async fn run_with(
    options: Options,
    listener: TcpListener,
    client: kube::Client,
    stop: Stop,
) -> Result<(), Error> {
    let (certificate, credentials) = watch::channel(None);
    let (known, front_proxy) = watch::channel(None);
    let applicant = Applicant {
        client: client.clone(),
        identity: Identity::Gateway,
        namespace: options.namespace.clone(),
    };
    let store = options.credentials.map(Store::new);
    let apiserver = Apiserver::new(client.clone());
    let gateway = Gateway {
        agents: Agents::new(apiserver.clone(), credentials.clone()),
        apiserver,
        front_proxy,
        streams: Streams::new(options.max_streams, options.max_streams_per_user),
        leaving: stop.leave,
        stopping: stop.now.clone(),
        over: CancellationToken::new(),
        tracker: TaskTracker::new(),
    };
    let serving = serve::serve(
        listener,
        credentials,
        routes::router(gateway.clone()),
        options.max_streams,
        stop.now,
        gateway.tracker.clone(),
    );
    tracing::info!(address = %options.listen, namespace = options.namespace, "serving");
    // None of the others ends, nor can they fail: what they cannot do they try again. They go on while streams end, which may need them.
    tokio::select! {
        () = async { serving.await; end(&gateway).await } => Ok(()),
        () = cloche_identity::keep(applicant, store, certificate) => Err(Error::Ended("the renewal of certificates")),
        () = follow::front_proxy(client.clone(), known) => Err(Error::Ended("the watch of the front proxy")),
        () = bundle::keep(client, options.namespace) => Err(Error::Ended("the watch of the APIService")),
    }
}

/// Waits for the streams, within bounds.
async fn end(gateway: &Gateway) {
    gateway.tracker.close();
    if tokio::time::timeout(GRACE, gateway.tracker.wait())
        .await
        .is_ok()
    {
        return;
    }
    gateway.over.cancel();
    // Late or not: it was told to stop.
    drop(tokio::time::timeout(FAREWELL, gateway.tracker.wait()).await);
}

async fn client(options: &Options) -> Result<kube::Client, Error> {
    let mut config = match &options.kubeconfig {
        Some(file) => {
            let kubeconfig =
                Kubeconfig::read_from(file).map_err(|error| Error::Kubeconfig(error.into()))?;
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                .await
                .map_err(|error| Error::Kubeconfig(error.into()))?
        }
        None => Config::infer()
            .await
            .map_err(|error| Error::Kubeconfig(error.into()))?,
    };
    config.read_timeout = Some(SILENCE);
    kube::Client::try_from(config).map_err(|error| Error::Client(Box::new(error)))
}
