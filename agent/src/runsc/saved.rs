//! The files that the sentry makes of the writable layer of `main`, and makes one of again.
//!
//! A checkpoint of file systems (`FSSave`): names, owners, modes, times to the nearest second, links, and the pages of what was written, holes
//! left out. Unlike a tar of the layer, which holds whole files in the sentry's memory (ADR 0014), it takes memory for names alone.

use std::path::PathBuf;

/// Under which names runsc looks for them, in the order of the call that makes them.
pub const NAMES: [&str; 4] = [
    "fscheckpoint.pb",
    "multitar.img",
    "pages_meta.img",
    "pages.img",
];

/// The folder in which they are, under [`NAMES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedFiles(pub PathBuf);
