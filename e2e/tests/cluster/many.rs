//! Many at once.

use anyhow::ensure;
use cloche_e2e::cluster;
use futures::future::try_join_all;
use kube::api::ListParams;
use serde_json::json;

use crate::scene;

/// Applied together.
const MANY: usize = 50;

#[tokio::test]
async fn fifty_at_once_answer_and_go() {
    cluster::run(2, scene::options().unwrap(), async |cluster| {
        let names: Vec<String> = (0..MANY).map(|number| format!("many-{number}")).collect();
        let manifests: Vec<String> = names
            .iter()
            .map(|name| {
                scene::manifest(
                    "default",
                    name,
                    &json!({"env": [{"name": "NAME", "value": name}]}),
                )
            })
            .collect();
        cluster.apply(&manifests.join("\n---\n")).await?;
        let cluster = &*cluster;
        let answers = names.iter().map(|name| async move {
            cluster.wait_ready(name).await?;
            let told = scene::python(cluster, name, "import os; print(os.environ['NAME'])").await?;
            ensure!(told.trim() == name, "{name} answered {told:?}");
            anyhow::Ok(())
        });
        try_join_all(answers).await?;
        // Spread over both nodes.
        let placed = cluster
            .sandboxes()
            .await?
            .list(&ListParams::default())
            .await?;
        for node in ["node1", "node2"] {
            let here = placed.items.iter().filter(|object| {
                let status = object.status.as_ref();
                status.and_then(|status| status.node_name.as_deref()) == Some(node)
            });
            let here = here.count();
            ensure!(here > MANY / 4, "{here} on {node}");
        }
        Ok(())
    })
    .await
    .unwrap();
}
