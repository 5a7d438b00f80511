//! Options of the program.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use cloche_crds::cluster::NAMESPACE;

use crate::uninstall::Step;

/// Binds sandboxes to nodes, judges nodes, and signs the certificates of agents and gateways.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Options {
    /// The namespace where Cloche is installed
    #[arg(long, global = true, default_value = NAMESPACE)]
    pub namespace: String,
    /// How to reach the apiserver; default: as a pod, else as kubectl does
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Where to serve /healthz and /readyz over HTTP; default: nowhere
    #[arg(long, value_name = "ADDRESS")]
    pub health: Option<SocketAddr>,
    /// Where agents ask, by mTLS, for what their sandboxes take from Secrets and config maps; default: nowhere
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// What to do instead
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What the program does instead of its work.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Prepare the removal of Cloche, and clear up after it; the chart does so
    #[command(subcommand)]
    Uninstall(Step),
}
