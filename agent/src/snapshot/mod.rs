//! What sandboxes are brought back from: files, and a manifest that names each by its sha256 and length.
//!
//! ```text
//!   snapshots/tmp/N/     being made; nothing of it counts
//!   snapshots/ID/        whole, named by one rename: `manifest`, and the files under the names by which runsc looks for them
//! ```
//! Nothing is shared between two: the sentry that made a file may hold it open as long as it lives, and is not trusted.
//!
//! **Restart contract.** Killed anywhere, the next [`Store::open`] empties `tmp`, and [`Store::retain`] removes what no record names.

mod manifest;
mod store;

pub use manifest::{Content, Entry, Manifest, Role};
pub use store::{Error, Info, Saved, Staging, Store};
