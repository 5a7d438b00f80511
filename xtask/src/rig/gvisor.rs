//! gVisor as a runtime of ordinary pods: what sandboxes are compared with.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::artifact::{self, Digest, Module, Stamp, compiler};
use crate::workspace::Workspace;

const MODULE: &str = "gvisor.dev/gvisor";
const PACKAGE: &str = "gvisor.dev/gvisor/shim";
/// By this name containerd looks for it, in the PATH.
const SHIM: &str = "containerd-shim-runsc-v1";
/// It insists on a lower OOM score, which takes a capability that some machines withhold.
const FILE: &str = "pkg/shim/v1/manager.go";
const CHANGE: (&str, &str) = ("oomScoreMax = -999", "oomScoreMax = 0");
/// A change of this file's recipe that changes the product.
const RECIPE: &str = "1";

/// Makes what the nodes need: the shim, and the runsc that Cloche has.
pub(super) fn build(workspace: &Workspace) -> Result<()> {
    let directory = super::directory(workspace);
    let bin = directory.join("bin");
    let runsc = artifact::build(workspace)?.runsc;
    // Renamed, so that one that runs now is not written over.
    let fresh = bin.join("runsc.new");
    std::fs::copy(&runsc, &fresh).with_context(|| format!("copy {}", runsc.display()))?;
    std::fs::rename(&fresh, bin.join("runsc")).context("put runsc into place")?;

    let pins = workspace.root().join("e2e/rig/gvisor");
    let read = |name: &str| {
        let path = pins.join(name);
        std::fs::read(&path).with_context(|| format!("read {}", path.display()))
    };
    let digest = Digest::of([
        ("recipe", RECIPE.as_bytes()),
        ("compiler", compiler(&pins)?.as_bytes()),
        ("go.mod", &read("go.mod")?),
        ("go.sum", &read("go.sum")?),
    ]);
    let shim = bin.join(SHIM);
    let stamp = Stamp::new(&directory, SHIM, digest);
    if stamp.is_fresh(&shim) {
        return Ok(());
    }
    eprintln!("xtask: building {SHIM} (1 to 2 minutes)");
    compile(&pins, &directory, &shim).with_context(|| format!("build {SHIM}"))?;
    stamp.write()
}

fn compile(pins: &Path, directory: &Path, shim: &Path) -> Result<()> {
    let staging = tempfile::Builder::new()
        .prefix("gvisor-")
        .tempdir_in(directory)
        .context("create a directory to build in")?;
    let copy = Module::download(pins, MODULE)?.copy(pins, staging.path())?;
    let file = copy.file(FILE);
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let (from, to) = CHANGE;
    if !text.contains(from) {
        bail!("{FILE} has no {from:?} any more: see what it does about its OOM score now");
    }
    std::fs::write(&file, text.replace(from, to))
        .with_context(|| format!("write {}", file.display()))?;
    let fresh = staging.path().join(SHIM);
    copy.go("build")
        .args(["-ldflags", "-s -w", "-o"])
        .args([fresh.as_os_str(), PACKAGE.as_ref()])
        .limit(super::BUILD)
        .run()?;
    std::fs::rename(&fresh, shim).with_context(|| format!("write {}", shim.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shim_and_runsc_are_of_the_same_gvisor() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let pinned = |folder: &str| {
            let text = std::fs::read_to_string(root.join(folder).join("go.mod")).unwrap();
            let mut words = text.split_whitespace().skip_while(|word| *word != MODULE);
            words.nth(1).unwrap().to_owned()
        };
        assert_eq!(pinned("e2e/rig/gvisor"), pinned("tools/runsc"));
    }
}
