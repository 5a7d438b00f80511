//! What cargo's ordinary build does not make: `runsc`, `cloche-init` and the images, in `artifacts/` of the target directory.

mod elf;
mod go;
mod init;
mod module;
mod runsc;
mod stamp;

use std::path::PathBuf;

use anyhow::Result;

pub(crate) use elf::is_static;
pub(crate) use go::{compiler, go};
pub(crate) use module::Module;
pub(crate) use stamp::{Digest, Stamp, hex};

use crate::image;
use crate::workspace::Workspace;

/// Paths of everything that was made.
#[derive(Clone, Debug)]
pub(crate) struct Artifacts {
    pub(crate) runsc: PathBuf,
    pub(crate) init: PathBuf,
    /// A local image directory: one OCI layout per image.
    pub(crate) images: PathBuf,
}

impl Artifacts {
    /// The variables by which tests find them.
    pub(crate) fn environment(&self) -> [(&'static str, PathBuf); 3] {
        [
            ("CLOCHE_RUNSC", self.runsc.clone()),
            ("CLOCHE_INIT", self.init.clone()),
            ("CLOCHE_IMAGES", self.images.clone()),
        ]
    }
}

/// Makes what is missing or out of date.
pub(crate) fn build(workspace: &Workspace) -> Result<Artifacts> {
    std::fs::create_dir_all(workspace.artifacts())?;
    Ok(Artifacts {
        runsc: runsc::build(workspace)?,
        init: init::build(workspace)?,
        images: image::build(workspace)?,
    })
}
