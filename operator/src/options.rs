//! Options of the program.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use cloche_crds::cluster::NAMESPACE;

/// Binds sandboxes to nodes, judges nodes, and signs the certificates of agents and gateways.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Options {
    /// The namespace where Cloche is installed
    #[arg(long, default_value = NAMESPACE)]
    pub namespace: String,
    /// How to reach the apiserver; default: as a pod, else as kubectl does
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Where to serve /healthz and /readyz over HTTP; default: nowhere
    #[arg(long, value_name = "ADDRESS")]
    pub health: Option<SocketAddr>,
}
