//! The rig's programs, built from the Go modules that `e2e/rig/*/go.mod` pin.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::artifact::{Digest, Stamp, compiler, go};
use crate::clock::Stopwatch;
use crate::workspace::Workspace;

use super::Mode;

/// A change of this file's recipe that changes the products.
const RECIPE: &str = "1";

/// One program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Program {
    /// Its path below the rig's `bin`.
    name: &'static str,
    package: &'static str,
    /// The module whose version it tells, and the variable that the linker sets to it.
    version: Option<(&'static str, &'static str)>,
    /// Whether it is C, too.
    cgo: bool,
}

impl Program {
    const fn plain(name: &'static str, package: &'static str) -> Self {
        Self {
            name,
            package,
            version: None,
            cgo: false,
        }
    }

    const fn kubernetes(name: &'static str, package: &'static str) -> Self {
        Self {
            version: Some((
                "k8s.io/kubernetes",
                "k8s.io/component-base/version.gitVersion",
            )),
            ..Self::plain(name, package)
        }
    }
}

/// What the mode control-plane needs.
const CONTROL_PLANE: &[Program] = &[
    Program::plain("etcd", "go.etcd.io/etcd/server/v3"),
    Program::kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    Program::kubernetes(
        "kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
    ),
    Program::kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    Program {
        version: Some((
            "helm.sh/helm/v4",
            "helm.sh/helm/v4/internal/version.version",
        )),
        ..Program::plain("helm", "helm.sh/helm/v4/cmd/helm")
    },
];

/// What the mode cluster needs beside it.
const CLUSTER: &[Program] = &[
    Program::kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    Program::kubernetes("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    Program::kubernetes("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    Program::plain(
        "containerd",
        "github.com/containerd/containerd/v2/cmd/containerd",
    ),
    Program::plain("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
    Program::plain(
        "containerd-shim-runc-v2",
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    ),
    Program {
        cgo: true,
        ..Program::plain("runc", "github.com/opencontainers/runc")
    },
    Program::plain(
        "cni/bridge",
        "github.com/containernetworking/plugins/plugins/main/bridge",
    ),
    Program::plain(
        "cni/host-local",
        "github.com/containernetworking/plugins/plugins/ipam/host-local",
    ),
    Program::plain(
        "cni/loopback",
        "github.com/containernetworking/plugins/plugins/main/loopback",
    ),
    Program::plain(
        "cni/portmap",
        "github.com/containernetworking/plugins/plugins/meta/portmap",
    ),
    Program::plain("dns", "./dns"),
];

/// Builds what `mode` needs and is missing, or was made of something else.
pub(super) fn build(workspace: &Workspace, mode: Mode) -> Result<()> {
    let beside = match mode {
        Mode::ControlPlane => &[],
        Mode::Cluster => CLUSTER,
    };
    let module = workspace.root().join("e2e/rig/tools");
    let inputs = inputs(&module)?;
    // Some are in a folder of their own.
    let bin = super::directory(workspace).join("bin/cni");
    std::fs::create_dir_all(&bin).with_context(|| format!("create {}", bin.display()))?;
    for program in CONTROL_PLANE.iter().chain(beside) {
        program.build(workspace, &module, &inputs)?;
    }
    Ok(())
}

/// The files and the compiler that decide every product of a module.
fn inputs(module: &Path) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let mut inputs = vec![("compiler", compiler(module)?.into_bytes())];
    for name in ["go.mod", "go.sum", "dns/main.go"] {
        let path = module.join(name);
        let content = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        inputs.push((name, content));
    }
    Ok(inputs)
}

impl Program {
    fn build(
        &self,
        workspace: &Workspace,
        module: &Path,
        inputs: &[(&'static str, Vec<u8>)],
    ) -> Result<()> {
        let directory = super::directory(workspace);
        let path = directory.join("bin").join(self.name);
        let recipe = format!("{RECIPE} {self:?}");
        let digest = Digest::of(
            [("recipe", recipe.as_bytes())]
                .into_iter()
                .chain(inputs.iter().map(|(name, content)| (*name, &**content))),
        );
        let stamp = Stamp::new(&directory, &self.name.replace('/', "-"), digest);
        if stamp.is_fresh(&path) {
            return Ok(());
        }
        let watch = Stopwatch::start();
        let log = directory.join("build.log");
        self.compile(module, &path, &log)
            .with_context(|| format!("build {}", self.name))?;
        eprintln!(
            "xtask: built {} ({:.0} s)",
            self.name,
            watch.elapsed().as_secs_f64()
        );
        stamp.write()
    }

    fn compile(&self, module: &Path, path: &Path, log: &Path) -> Result<()> {
        let mut flags = "-s -w".to_owned();
        if let Some((pinned, variable)) = self.version {
            let version = go(module)
                .args(["list", "-m", "-f", "{{.Version}}", pinned])
                .text()?;
            flags = format!("{flags} -X {variable}={}", version.trim());
        }
        // Renamed, so that one that runs now is not written over.
        let fresh = path.with_extension("new");
        let built = go(module)
            .env("CGO_ENABLED", if self.cgo { "1" } else { "0" })
            .args(["build", "-tags", "seccomp", "-ldflags", &flags, "-o"])
            .args([fresh.as_os_str(), self.package.as_ref()])
            .start(log)?
            .finish(super::BUILD);
        if let Err(error) = built {
            let told = std::fs::read_to_string(log).unwrap_or_default();
            bail!("{error:#}\n{told}");
        }
        std::fs::rename(&fresh, path).with_context(|| format!("write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_programs_share_a_name() {
        let all = || CONTROL_PLANE.iter().chain(CLUSTER);
        let names: BTreeSet<_> = all().map(|program| program.name).collect();
        assert_eq!(names.len(), all().count());
    }
}
