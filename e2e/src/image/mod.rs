//! OCI images made by tests: from folders, from a busybox, and hostile ones.

mod busybox;
mod layer;
mod layout;

pub use busybox::{busybox, busybox_layer};
pub use layer::{Entry, Layer, Packing};
pub use layout::{Config, Image};

/// The folder of images that `cargo xtask` makes (a Python among them), for `oci:NAME` references.
pub fn prepared() -> anyhow::Result<std::path::PathBuf> {
    crate::process::Built::Images.path()
}
