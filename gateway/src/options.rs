//! What the program is told.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use cloche_crds::cluster::NAMESPACE;

/// Serves sessions and logs of sandboxes through the Kubernetes API.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Options {
    /// Where Cloche is installed
    #[arg(long, default_value = NAMESPACE)]
    pub namespace: String,
    /// How to reach the apiserver; default: as a pod does, else as kubectl does
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Where to serve
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:6443")]
    pub listen: SocketAddr,
    /// Where to keep key and certificate, so that a gateway that is started again serves at once [default: nowhere]
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<PathBuf>,
    /// Most streams at a time; one takes 3 MiB at most, and next to nothing while both its ends read
    // Of a client that does its worst: a message of 384 KiB and a frame of another while they come, one that waits, one on its way to
    // the agent, one in HTTP/2 (or in the remote-command protocol 512 KiB while they come and 1 MiB of stdin), that is 1920 KiB; of an
    // agent's output, when the client does not read, 256 KiB in HTTP/2 and a piece of 128 KiB each that comes, waits, is written and
    // encrypted: 768 KiB. 1024 of them take 3 GiB of the 4 GiB that the chart allows, and what one user may have takes half of it.
    #[arg(long, value_name = "NUMBER", default_value_t = 1024)]
    pub max_streams: usize,
    /// Most streams of one user at a time
    #[arg(long, value_name = "NUMBER", default_value_t = 512)]
    pub max_streams_per_user: usize,
}
