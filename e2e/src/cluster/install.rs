//! What `helm install` would do, where there is no kubelet to run what it makes: everything of the charts but their pods.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cloche_crds::cluster::NAMESPACE;
use serde_json::{Value, json};

use crate::rig::ControlPlane;

/// What makes pods: the test runs the programs itself.
const PODS: [&str; 3] = ["Deployment", "DaemonSet", "Job"];

/// The repository's charts.
fn chart(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../charts")
        .join(name)
}

/// Applies both charts, and says where the gateway is.
pub(super) async fn install(plane: &ControlPlane, gateway: &str) -> Result<()> {
    let crds = chart("cloche-crds").join("templates");
    plane
        .kubectl_text(&["apply", "--server-side", "-f", &crds.to_string_lossy()])
        .await?;
    for plural in ["sandboxes", "sandboxnodes"] {
        let crd = format!("crd/{plural}.cloche.dev");
        plane
            .kubectl_text(&["wait", "--for=condition=Established", &crd, "--timeout=30s"])
            .await?;
    }
    let mut objects = rendered(plane).await?;
    objects.push(endpoints(gateway)?);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    plane
        .apply_with(&["--server-side", "--force-conflicts"], &list.to_string())
        .await
}

/// The objects of the chart, without pods and hooks.
async fn rendered(plane: &ControlPlane) -> Result<Vec<Value>> {
    let folder = chart("cloche");
    let text = plane
        .helm_text(&[
            "template",
            "cloche",
            &folder.to_string_lossy(),
            "--namespace",
            NAMESPACE,
            "--no-hooks",
        ])
        .await?;
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(&text).context("read the chart's objects")?;
    Ok(objects
        .into_iter()
        .filter(|object| {
            let kind = object["kind"].as_str().unwrap_or_default();
            !kind.is_empty() && !PODS.contains(&kind)
        })
        .collect())
}

/// Where the gateway's Service leads: a process at `address` (`IP:PORT`).
fn endpoints(address: &str) -> Result<Value> {
    let (ip, port) = address
        .rsplit_once(':')
        .with_context(|| format!("the gateway's address {address}"))?;
    let port: u16 = port.parse().context("the gateway's port")?;
    Ok(json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "cloche-gateway-process",
            "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": "cloche-gateway"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": port}],
        "endpoints": [{"addresses": [ip], "conditions": {"ready": true}}],
    }))
}
