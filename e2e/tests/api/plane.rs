//! The control plane itself: what tests rely on, and that nothing of it stays.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cloche_e2e::image::{self, Image};
use cloche_e2e::registry::push;
use cloche_e2e::rig::ControlPlane;
use serde_json::Value;

/// Name, condition Ready and taints of each node.
const READY: &str = concat!(
    "jsonpath={range .items[*]}{.metadata.name} ",
    r#"{.status.conditions[?(@.type=="Ready")].status} {.spec.taints}, {end}"#
);
const ACCOUNT: &str = "system:serviceaccount:cloche-system:cloche-agent";

/// Command lines of all processes that name `text`.
fn processes(text: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").context("read /proc")? {
        let path = entry.context("read /proc")?.path().join("cmdline");
        // One that has ended meanwhile has none.
        let line = std::fs::read(&path).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(text) {
            found.push(line);
        }
    }
    Ok(found)
}

#[tokio::test]
async fn its_nodes_are_ready_and_it_comes_back_with_its_data_and_leaves_nothing() {
    let plane = ControlPlane::start(2).await.unwrap();
    let folder = plane.kubeconfig().unwrap();
    let folder = folder.ancestors().nth(2).unwrap().to_owned();
    plane
        .run(async {
            let nodes = plane
                .kubectl_text(&["get", "nodes", "--output", READY])
                .await?;
            ensure!(nodes == "node1 True , node2 True , ", "{nodes}");

            let token = plane.agent_token("node2").await?;
            let review = plane.review(&token).await?;
            let user = &review["status"]["user"];
            ensure!(user["username"] == ACCOUNT, "{review}");
            let node = &user["extra"]["authentication.kubernetes.io/node-name"];
            ensure!(node == &Value::from(vec!["node2"]), "{review}");

            let image = Image::read(&image::prepared()?.join("busybox"))?;
            let pushed = push(plane.registry()?, &image, "library/busybox", "latest").await?;
            ensure!(pushed.ends_with(":5000/library/busybox:latest"), "{pushed}");

            plane
                .kubectl_text(&["create", "configmap", "kept", "--from-literal=a=b"])
                .await?;
            for name in ["kube-apiserver", "etcd"] {
                plane.kill(name).await?;
                // Without etcd it would wait for a minute before it says so.
                let answer = plane
                    .kubectl(&["get", "nodes", "--request-timeout=1s"])
                    .await?;
                ensure!(!answer.status.success(), "without {name} it answers");
                plane.restore().await?;
                plane.kubectl_text(&["get", "configmap", "kept"]).await?;
            }
            ensure!(
                !processes(&folder.to_string_lossy())?.is_empty(),
                "they are found by their folder"
            );
            Ok(())
        })
        .await
        .unwrap();
    let bridge = Path::new("/sys/class/net").join(format!("rig{}", plane.id().unwrap()));
    assert!(bridge.exists());
    plane.down().await.unwrap();
    assert_eq!(processes(&folder.to_string_lossy()).unwrap(), [""; 0]);
    assert!(!folder.exists() && !bridge.exists());
}
