//! Images: from a reference to one read-only EROFS file on this node.
//!
//! Interface that the rest of the agent builds on (the owner of this folder fills it in and may refine it):
//!
//! - `ImageStore::open(config) -> ImageStore`: under `/var/lib/cloche/images`; deletes temporary blobs of a killed agent.
//! - `ImageStore::ensure(&self, &ImageRef, PullPolicy, progress) -> Result<Image, ImageError>`: cancel safe, one pull per digest.
//! - `ImageStore::pin(&Digest, holder)` / `unpin(&Digest, holder)`: pinned images are never collected.
//! - `ImageError::reason(&self) -> Reason` and a message that says what to do.

use std::path::PathBuf;

/// An image that is ready on this node.
#[derive(Clone, Debug)]
pub struct Image {
    /// `sha256:` and 64 hex digits: the digest of the image's manifest.
    pub digest: String,
    /// The EROFS file. Read-only, never rewritten.
    pub erofs: PathBuf,
    /// What the image says of how to run it.
    pub config: ImageConfig,
}

/// The part of an OCI image configuration that decides how its command runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageConfig {
    /// `NAME=value`.
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
