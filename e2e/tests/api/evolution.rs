//! What happens to objects that are older than a rule: they can still be written, and they can go.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cloche_e2e::deadline::until;
use cloche_e2e::rig::ControlPlane;
use http::Method;
use serde_json::{Value, json};

use crate::server::{Answer, Server};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CRD: &str = include_str!("../../../charts/cloche-crds/templates/sandboxes.yaml");
/// The same kind in a group of its own, so that no other test sees it change.
const GROUP: &str = "evolution.cloche.dev";
const OBJECTS: &str = "/apis/evolution.cloche.dev/v1alpha1/namespaces/evolution/sandboxes";
const LIMIT: Duration = Duration::from_secs(30);
const JSON: &str = "application/json";

fn crd() -> Result<Value> {
    let mut crd: Value = serde_saphyr::from_str(CRD).context("read the CRD")?;
    crd["metadata"] = json!({"name": format!("sandboxes.{GROUP}")});
    crd["spec"]["group"] = json!(GROUP);
    crd["spec"]["names"]["shortNames"] = json!([]);
    Ok(crd)
}

/// As a version was that knew nothing of many rules.
fn before() -> Result<Value> {
    let mut crd = crd()?;
    let spec = crd
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec")
        .context("the schema of the spec")?;
    spec["x-kubernetes-validations"] = json!([]);
    spec["properties"]["hostname"] = json!({"type": "string"});
    spec["properties"]["resources"]["properties"]["limits"]["x-kubernetes-validations"] = json!([]);
    Ok(crd)
}

/// Breaks a pattern, a rule of the spec and a rule deeper down.
fn old(name: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1alpha1"),
        "kind": "Sandbox",
        "metadata": {"name": name, "finalizers": ["cloche.dev/teardown"]},
        "spec": {
            "image": "oci:python", "imagePullPolicy": "Always", "hostname": "A_B", "resources": {"limits": {"cpu": "1m"}},
        },
    })
}

async fn patch(server: &Server, rest: &str, change: &Value) -> Result<Value> {
    let at = format!("{OBJECTS}/{rest}");
    let answer = server
        .send(Method::PATCH, &at, "application/merge-patch+json", change)
        .await?;
    answer.done(&change.to_string())
}

#[tokio::test]
async fn an_object_that_a_new_rule_would_refuse_is_still_written_and_goes() {
    let plane = ControlPlane::shared().await.unwrap();
    plane
        .run(async {
            let server = Server::new("evolution").await?;
            server.send(Method::POST, CRDS, JSON, &before()?).await?.done("the old CRD")?;
            until(LIMIT, "the old CRD is served", async || {
                let answer = server.send(Method::POST, OBJECTS, JSON, &old("first")).await;
                // Before it is served there is no such path, which is no answer of the apiserver's kind.
                Ok(matches!(answer, Ok(Answer::Done(_))).then_some(()))
            })
            .await?;
            let mut now = crd()?;
            let path = format!("{CRDS}/sandboxes.{GROUP}");
            let answer = server.send(Method::GET, &path, JSON, &Value::Null).await?.done("the CRD")?;
            now["metadata"]["resourceVersion"] = answer["metadata"]["resourceVersion"].clone();
            server.send(Method::PUT, &path, JSON, &now).await?.done("the new CRD")?;
            until(LIMIT, "the new CRD is served", async || {
                let dry = format!("{OBJECTS}?dryRun=All");
                let answer = server.send(Method::POST, &dry, JSON, &old("second")).await?;
                Ok(matches!(answer, Answer::Refused(refusal) if refusal.fields.contains("spec.hostname")).then_some(()))
            })
            .await?;

            let bound = json!({"status": {"phase": "Running", "nodeName": "node1"}});
            patch(&server, "first/status", &bound).await?;
            let end = json!({"status": {
                "phase": "Failed", "termination": {"reason": "OOMKilled", "failureDomain": "Workload"},
            }});
            patch(&server, "first/status", &end).await?;
            patch(&server, "first", &json!({"spec": {"lifecycle": {"ttlSeconds": 5}}})).await?;
            let path = format!("{OBJECTS}/first");
            server.send(Method::DELETE, &path, JSON, &Value::Null).await?.done("the deletion")?;
            patch(&server, "first", &json!({"metadata": {"finalizers": null}})).await?;
            match server.send(Method::GET, &path, JSON, &Value::Null).await? {
                Answer::Refused(refusal) => ensure!(refusal.code == 404, "{refusal:?}"),
                Answer::Done(object) => bail!("it is still there: {object}"),
            }
            Ok(())
        })
        .await
        .unwrap();
}
