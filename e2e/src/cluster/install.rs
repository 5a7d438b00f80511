//! What `helm install` would do, where there is no kubelet to run what it makes: everything of the charts but their pods.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use cloche_crds::cluster::NAMESPACE;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::process;
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
    apply(plane, &objects).await
}

/// The objects of the chart, without pods and hooks.
async fn rendered(plane: &ControlPlane) -> Result<Vec<Value>> {
    let output = process::command(plane.program("helm")?)
        .args(["template", "cloche"])
        .arg(chart("cloche"))
        .args(["--namespace", NAMESPACE, "--no-hooks"])
        .output()
        .await
        .context("run helm template")?;
    if !output.status.success() {
        bail!(
            "helm template: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let text = String::from_utf8(output.stdout).context("read what helm printed")?;
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

async fn apply(plane: &ControlPlane, objects: &[Value]) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let mut child = process::command(plane.program("kubectl")?)
        .envs(plane.variables())
        .args(["apply", "--server-side", "--force-conflicts", "-f", "-"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .context("run kubectl apply")?;
    let mut stdin = child.stdin.take().context("kubectl's input")?;
    stdin
        .write_all(list.to_string().as_bytes())
        .await
        .context("feed kubectl apply")?;
    drop(stdin);
    let output = child
        .wait_with_output()
        .await
        .context("wait for kubectl apply")?;
    if !output.status.success() {
        bail!(
            "kubectl apply: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
