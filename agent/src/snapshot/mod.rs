//! What sandboxes are brought back from: files, named by their content, and manifests that name those.
//!
//! ```text
//!   snapshots/tmp/N/         being made; nothing of it counts
//!   snapshots/blobs/HEX      a file, named by its sha256
//!   snapshots/manifests/HEX  a manifest, named by its own: written last, so that what it names is there, whole and on disk
//! ```
//!
//! **Restart contract.** Killed anywhere, the next [`Store::open`] empties `tmp`, and the first [`Store::collect`] removes what nothing names.
//! Pins are in memory only: whoever starts pins what its records name, before it collects.

mod manifest;
mod store;

pub use manifest::{Content, Entry, Manifest, Role};
pub use store::{Error, Info, Staging, Store};
