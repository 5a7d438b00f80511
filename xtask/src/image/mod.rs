//! OCI images made here, from Debian's packages: no registry is needed to try Cloche or to test it.

mod busybox;
mod debian;
mod layer;
mod layout;
mod product;
mod publish;

use std::path::PathBuf;

pub(crate) use publish::{Options, build_programs, for_tests, own, push, run, stand_ins};

use anyhow::{Context, Result};

use crate::workspace::Workspace;

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A local image directory with the layouts `python` and `busybox`; each is made once.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    let images = workspace.artifacts().join("images");
    std::fs::create_dir_all(&images).with_context(|| format!("create {}", images.display()))?;
    busybox::build(workspace, &images)?;
    debian::build(workspace, &images)?;
    Ok(images)
}
