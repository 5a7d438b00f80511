//! From verified layer blobs to one EROFS file, in a child process that can do nothing else.
//!
//! ```text
//!   agent ── job (JSON, stdin) ──► cloche-agent unpack ── outcome (JSON, stdout) ──► agent
//!                                   1. opens the blobs, the spool and the output in the staging directory
//!                                   2. gives up everything: network, file system, ids, capabilities (`confine`)
//!                                   3. only now reads hostile bytes: layer -> tree + spool -> EROFS
//! ```
//!
//! Nothing of an image is ever a file of its own on the host: names, owners, modes and links live in a [`tree`] in memory, contents
//! in one unlinked-by-name spool file. So no name can escape, no symbolic link can be followed and no setuid program can lie on the
//! node, whatever a layer says. A child that hostile bytes took over can spoil the one image that it was given, no more.
//!
//! What is kept: names, kinds, contents, owners, modes (setuid too), modification times, hard links, pipes. What is not: extended
//! attributes (gVisor refuses inodes that have one), device nodes (left out: a sandbox has its own `/dev`). What is refused: `..`,
//! a name or hard link that goes through a symbolic link, a hard link to nothing, anything but directories at the mount points of
//! a sandbox, anything below `/.cloche`. Absolute names and hard-link targets mean the image's root. Absolute or climbing targets
//! of *symbolic* links are kept as they are: they are resolved in the sandbox, whose root is the image.

mod child;
mod erofs;
mod fault;
mod layer;
mod parent;
mod path;
mod tree;

pub use child::child_main;
pub(super) use fault::{Fault, shown};
pub(super) use layer::{Bounds, Compression};
pub(super) use parent::{Unpacker, unpack};

use serde::{Deserialize, Serialize};

use super::digest::Digest;

/// Block size of the EROFS files. gVisor wants a multiple of the page size.
const BLOCK: u64 = BLOCK_BYTES as u64;
const BLOCK_BYTES: usize = 4096;
/// Changes whenever equal layers give other bytes than before: then every image is made again.
pub(super) const CONVERTER_VERSION: u32 = 1;
/// Name of the result in the staging directory.
pub(super) const OUTPUT: &str = "image.erofs";
/// Name of the file for contents in the staging directory.
const SPOOL: &str = "spool";

/// Name of the blob of layer `index` (from 0, lowest first) in the staging directory.
pub(super) fn blob_name(index: usize) -> String {
    format!("layer-{index}")
}

/// What the child is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Job {
    /// Lowest first.
    pub(super) layers: Vec<Layer>,
    pub(super) bounds: Bounds,
    /// Address space of the child, in bytes.
    pub(super) memory: u64,
    /// Processor time of the child, in seconds.
    pub(super) cpu_seconds: u64,
}

/// One layer of a [`Job`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Layer {
    pub(super) compression: Compression,
    /// What the uncompressed bytes must hash to, where that is known.
    pub(super) diff_id: Option<Digest>,
}

/// What the child made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Unpacked {
    /// Bytes of the EROFS file.
    pub(super) size: u64,
    /// Device nodes that were left out.
    pub(super) devices: u64,
}
