//! `cargo xtask generate`: files made from other files, committed, and compared by `cargo xtask test`.

use std::path::Path;

use anyhow::{Context, Result};

/// The gRPC code in `proto/src/generated/` from `proto/proto/`.
pub(crate) fn proto(root: &Path) -> Result<()> {
    let include = root.join("proto/proto");
    let files = protox::compile(
        [include.join("cloche/agent/v1alpha1/agent.proto")],
        [&include],
    )
    .context("compile the proto files")?;
    let out = root.join("proto/src/generated");
    std::fs::create_dir_all(&out)?;
    tonic_prost_build::configure()
        .out_dir(&out)
        .compile_fds(files)
        .context("generate gRPC code")?;
    Ok(())
}
