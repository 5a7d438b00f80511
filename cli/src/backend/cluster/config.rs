//! Which cluster, as whom: the kubeconfig as kubectl reads it, and what the command line says over it.

use std::path::{Path, PathBuf};

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::args::ClusterFlags;
use crate::error::{Error, chain};

/// Where a pod finds its apiserver.
const IN_CLUSTER: &str = "KUBERNETES_SERVICE_HOST";

/// Reads it all. In a pod without a kubeconfig: the pod's own cluster and account.
pub(super) async fn load(flags: &ClusterFlags) -> Result<Config, Error> {
    let options = KubeConfigOptions {
        context: flags.context.clone(),
        cluster: flags.cluster.clone(),
        user: flags.user.clone(),
    };
    let chosen = flags.context.is_some() || flags.cluster.is_some() || flags.user.is_some();
    let mut config = match kubeconfig(flags.kubeconfig.as_deref())? {
        Some(file) if chosen || file.current_context.is_some() => {
            Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(|problem| Error::Kubeconfig(chain(&problem)))?
        }
        Some(_) if !is_in_cluster() => return Err(Error::NoContext),
        None if chosen => return Err(Error::NoKubeconfig),
        None if !is_in_cluster() => return Err(Error::NoCluster),
        Some(_) | None => Config::incluster()
            .map_err(|problem| Error::Kubeconfig(format!("in this pod: {}", chain(&problem))))?,
    };
    if let Some(user) = &flags.as_user {
        config.auth_info.impersonate = Some(user.clone());
        config.auth_info.impersonate_groups =
            (!flags.as_groups.is_empty()).then(|| flags.as_groups.clone());
    }
    Ok(config)
}

fn is_in_cluster() -> bool {
    std::env::var_os(IN_CLUSTER).is_some()
}

/// The file at `given`, else those of `KUBECONFIG`, else the one in the home directory; `None`: there is none.
fn kubeconfig(given: Option<&Path>) -> Result<Option<Kubeconfig>, Error> {
    let read = |path: &Path| {
        Kubeconfig::read_from(path).map_err(|problem| Error::Kubeconfig(chain(&problem)))
    };
    if let Some(path) = given {
        return read(path).map(Some);
    }
    let listed: Vec<PathBuf> = std::env::var_os("KUBECONFIG")
        .map(|paths| std::env::split_paths(&paths).collect())
        .unwrap_or_default();
    let paths = if listed.iter().all(|path| path.as_os_str().is_empty()) {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        home.map(|home| home.join(".kube/config"))
            .into_iter()
            .collect()
    } else {
        listed
    };
    // As kubectl: one that is named and not there counts as empty.
    let found: Vec<Kubeconfig> = paths
        .iter()
        .filter(|path| path.exists())
        .map(|path| read(path))
        .collect::<Result<_, _>>()?;
    found
        .into_iter()
        .map(Ok)
        .reduce(|all, next| all?.merge(next?))
        .transpose()
        .map_err(|problem: kube::config::KubeconfigError| Error::Kubeconfig(chain(&problem)))
}
