//! What can be written to a `SandboxNode`.

use anyhow::Result;
use cloche_e2e::rig::ControlPlane;
use http::Method;
use serde_json::{Value, json};

use crate::server::{Answer, Server};

const NODES: &str = "/apis/cloche.dev/v1alpha1/sandboxnodes";
const STRICT: &str = "fieldValidation=Strict";

async fn create(server: &Server, name: &str, spec: Value) -> Result<Answer> {
    let object = json!({
        "apiVersion": "cloche.dev/v1alpha1", "kind": "SandboxNode", "metadata": {"name": name}, "spec": spec,
    });
    let path = format!("{NODES}?{STRICT}");
    server
        .send(Method::POST, &path, "application/json", &object)
        .await
}

async fn patch(server: &Server, rest: &str, change: &Value) -> Result<Answer> {
    let at = format!("{NODES}/{rest}?{STRICT}");
    server
        .send(Method::PATCH, &at, "application/merge-patch+json", change)
        .await
}

#[tokio::test]
async fn a_node_is_bound_to_its_uid_and_tells_what_it_offers() {
    let plane = ControlPlane::shared().await.unwrap();
    plane
        .run(async {
            let server = Server::new("nodes").await?;
            for (what, spec) in [
                ("no uid", json!({})),
                ("an empty uid", json!({"nodeUID": ""})),
                ("another field", json!({"nodeUID": "a", "cordoned": true})),
            ] {
                let answer = create(&server, "refused", spec).await?;
                let Answer::Refused(_) = answer else {
                    anyhow::bail!("{what} was accepted");
                };
            }
            create(&server, "worker-1.example", json!({"nodeUID": "a"})).await?.done("a node")?;
            for (what, uid) in [("another uid", json!("b")), ("none", Value::Null)] {
                let answer = patch(&server, "worker-1.example", &json!({"spec": {"nodeUID": uid}})).await?;
                answer.refused(what, 422, "spec.nodeUID")?;
            }
            let status = json!({"status": {
                "endpoint": "10.0.0.1:7443",
                "architecture": "amd64",
                "allocatable": {"cpu": "4", "memory": "8Gi", "sandboxOverhead": 33_554_432},
                "runtimes": [{"name": "runsc", "version": "1", "platform": "systrap", "profile": "0"}],
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": "Serving", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            }});
            patch(&server, "worker-1.example/status", &status).await?.done("what it offers")?;
            let endless = json!({"status": {"endpoint": "x".repeat(300)}});
            let answer = patch(&server, "worker-1.example/status", &endless).await?;
            answer.refused("a long endpoint", 422, "status.endpoint")?;
            patch(&server, "worker-1.example/status", &json!({"status": null})).await?.done("nothing")?;
            Ok(())
        })
        .await
        .unwrap();
}
