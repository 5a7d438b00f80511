//! Images: from a reference to one read-only EROFS file on this node.
//!
//! ```text
//!   reference ──► source: registry | local (layout, archive, rootfs tar) ──► manifest ──► cache: there already? ──► Image
//!                    │                                                          no │                                 ▲
//!                    └──► transfer: blobs into a staging directory, verified ◄─────┘                                 │
//!                                    └──► unpack: a child that can do nothing else ──► EROFS ──► cache (rename) ─────┘
//! ```
//!
//! [`ImageStore`] is the only door. It owns its directory (one agent at a time: a lock), the pulls in flight (callers that want the
//! same image share one; it ends when the last of them goes away) and the pins.
//!
//! **Restart contract.** An image is there wholly or not at all: its EROFS file is synced and renamed, then its record is written.
//! Everything else in the directory is deleted by [`ImageStore::open`]. Pins live in memory: the caller pins again, from its own
//! records, before the first [`ImageStore::collect`].

mod access;
mod cache;
mod challenge;
mod digest;
mod error;
mod local;
mod manifest;
mod registry;
mod source;
mod store;
mod transfer;
pub mod unpack;

pub use access::{Access, Login};
pub use cache::OpenError;
pub use cloche_crds::ImageRef;
pub use cloche_crds::sandbox::PullPolicy;
pub use digest::{Digest, DigestError};
pub use error::ImageError;
pub(crate) use manifest::architecture;
pub use registry::Registries;
pub use store::{ImageStore, Limits, Progress, StoreConfig};

use std::path::PathBuf;
use std::sync::Arc;

/// An image that is ready on this node. It is not collected while a clone of this is alive, nor while it is pinned.
#[derive(Clone, Debug)]
pub struct Image {
    /// The digest of the image's manifest for this platform; of a rootfs tar, the digest of the file.
    pub digest: Digest,
    /// The EROFS file. Read-only, never rewritten.
    pub erofs: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// What the image says of how to run it.
    pub config: ImageConfig,
    /// Held, never read.
    #[allow(dead_code)]
    lease: Lease,
}

/// Keeps an image from being collected for as long as it lives.
#[derive(Clone, Debug)]
struct Lease(#[allow(dead_code)] Arc<()>);

/// The part of an OCI image configuration that decides how its command runs. Checked: no NUL bytes, bounded sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageConfig {
    /// `NAME=value`; the name is not empty.
    #[serde(default)]
    pub env: Vec<String>,
    /// Program and first arguments.
    #[serde(default)]
    pub entrypoint: Vec<String>,
    /// Arguments, or the command where there is no entrypoint.
    #[serde(default)]
    pub cmd: Vec<String>,
    /// Absolute; empty means `/`.
    #[serde(default)]
    pub working_dir: String,
    /// `uid[:gid]` or `name[:group]`; empty means root.
    #[serde(default)]
    pub user: String,
}
