//! What can be written to a status: the binding once, an end once, nothing of either by a detour.

use anyhow::{Result, ensure};
use cloche_e2e::rig::ControlPlane;
use serde_json::{Value, json};

use crate::server::{Answer, Patch, Server};

const INVALID: u16 = 422;
const FROZEN: &str = "cannot change after the end";
const BOUND: &str = "stays on its node";
const TOLD: &str = "an end is told once";

/// A sandbox in a namespace of its own.
async fn scene(namespace: &str, body: impl AsyncFnOnce(&Server) -> Result<()>) {
    let plane = ControlPlane::shared().await.unwrap();
    plane
        .run(async {
            let server = Server::new(namespace).await?;
            server.made("demo", json!({"image": "python"})).await?;
            body(&server).await
        })
        .await
        .unwrap();
}

async fn merge(server: &Server, status: Value) -> Result<Answer> {
    let patch = json!({"status": status});
    server.patch("demo/status", Patch::Merge, &patch).await
}

fn condition(kind: &str, status: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": "Test", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

/// A status after the end.
fn ended() -> Value {
    json!({
        "phase": "Failed",
        "nodeName": "node1",
        "conditions": [condition("Ready", "False"), condition("Finished", "True"), condition("Scheduled", "True")],
        "termination": {"reason": "OOMKilled", "failureDomain": "Workload", "exitCode": 137},
    })
}

/// Every way in which a client can take the whole status away.
async fn take_away_all(server: &Server) -> Result<Vec<(&'static str, Answer)>> {
    let mut object = server.get("demo").await?;
    let null = merge(server, Value::Null).await?;
    let remove = json!([{"op": "remove", "path": "/status"}]);
    let removed = server.patch("demo/status", Patch::Json, &remove).await?;
    let empty = json!([{"op": "replace", "path": "/status", "value": {}}]);
    let emptied = server.patch("demo/status", Patch::Json, &empty).await?;
    object["status"] = Value::Null;
    let replaced = server.replace("demo/status", &object).await?;
    Ok(vec![
        ("status: null", null),
        ("remove of the status", removed),
        ("an empty status", emptied),
        ("a replacement without status", replaced),
    ])
}

#[tokio::test]
async fn a_binding_is_written_once() {
    scene("binding", async |server| {
        for field in ["nodeName", "nodeUID"] {
            merge(server, json!({field: "one"}))
                .await?
                .done("the first")?;
            merge(server, json!({field: "one"}))
                .await?
                .done("the same again")?;
            merge(server, json!({field: "two"}))
                .await?
                .refused("another", INVALID, BOUND)?;
            merge(server, json!({field: null}))
                .await?
                .refused("none", INVALID, BOUND)?;
            merge(server, json!({field: ""}))
                .await?
                .refused("an empty one", INVALID, BOUND)?;
            let remove = json!([{"op": "remove", "path": format!("/status/{field}")}]);
            server
                .patch("demo/status", Patch::Json, &remove)
                .await?
                .refused("a removal", INVALID, BOUND)?;
            let again = json!([
                {"op": "remove", "path": format!("/status/{field}")},
                {"op": "add", "path": format!("/status/{field}"), "value": "two"},
            ]);
            server
                .patch("demo/status", Patch::Json, &again)
                .await?
                .refused("a removal and another", INVALID, BOUND)?;
        }
        for (what, answer) in take_away_all(server).await? {
            answer.refused(what, INVALID, BOUND)?;
        }
        let stored = server.get("demo").await?;
        ensure!(stored["status"]["nodeName"] == "one", "{stored}");
        ensure!(stored["status"]["nodeUID"] == "one", "{stored}");
        merge(server, json!({"phase": "Running"}))
            .await?
            .done("the rest")?;
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_status_without_a_binding_may_go() {
    scene("unbound", async |server| {
        merge(server, json!({"phase": "Pending"}))
            .await?
            .done("a phase")?;
        merge(server, Value::Null).await?.done("none")?;
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn an_end_is_told_once() {
    scene("end", async |server| {
        merge(server, ended()).await?.done("the end")?;
        merge(server, ended()).await?.done("the same again")?;
        for (what, patch) in [
            ("another reason", json!({"termination": {"reason": "Completed"}})),
            ("more of it", json!({"termination": {"message": "late"}})),
            ("less of it", json!({"termination": {"exitCode": null}})),
            ("none", json!({"termination": null})),
        ] {
            merge(server, patch).await?.refused(what, INVALID, TOLD)?;
        }
        let again = json!([
            {"op": "remove", "path": "/status/termination"},
            {"op": "add", "path": "/status/termination", "value": {"reason": "Completed", "failureDomain": "Workload"}},
        ]);
        server
            .patch("demo/status", Patch::Json, &again)
            .await?
            .refused("a removal and another", INVALID, TOLD)?;
        for (what, answer) in take_away_all(server).await? {
            answer.refused(what, INVALID, TOLD)?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_write_that_comes_after_the_end_changes_nothing_of_it() {
    scene("late", async |server| {
        merge(server, ended()).await?.done("the end")?;
        let with = |ready, finished| {
            json!({"conditions": [ready, finished, condition("Scheduled", "True")]})
        };
        let running = json!({"phase": "Running", "conditions": [condition("Ready", "True"), condition("Scheduled", "True")]});
        for (what, patch) in [
            ("a late Running", running),
            ("another phase", json!({"phase": "Ended"})),
            ("no phase", json!({"phase": null})),
            ("no conditions", json!({"conditions": null})),
            ("Ready", with(condition("Ready", "True"), condition("Finished", "True"))),
            ("not Finished", with(condition("Ready", "False"), condition("Finished", "False"))),
            ("Finished gone", with(condition("Ready", "False"), condition("Other", "True"))),
        ] {
            merge(server, patch).await?.refused(what, INVALID, FROZEN)?;
        }
        let others = json!({
            "conditions": [condition("Finished", "True"), condition("Ready", "False"), condition("Stalled", "True")],
            "observedGeneration": 2,
        });
        merge(server, others).await?.done("what is not of the end")?;
        Ok(())
    })
    .await;
}

/// A phase or a condition that was absent at the end does not come later.
#[tokio::test]
async fn what_was_absent_at_the_end_stays_so() {
    scene("bare", async |server| {
        let end = json!({"termination": {"reason": "NodeLost", "failureDomain": "Infrastructure"}});
        merge(server, end).await?.done("an end alone")?;
        for (what, patch) in [
            ("a phase", json!({"phase": "Running"})),
            ("Ready", json!({"conditions": [condition("Ready", "True")]})),
        ] {
            merge(server, patch).await?.refused(what, INVALID, FROZEN)?;
        }
        Ok(())
    })
    .await;
}

/// What a controller holds back, and sends when its sandbox is gone and another has its name.
#[tokio::test]
async fn a_queued_write_does_not_hit_a_namesake() {
    scene("namesake", async |server| {
        let first = server.get("demo").await?;
        let of = |uid: &Value| {
            json!([
                {"op": "test", "path": "/metadata/uid", "value": uid},
                {"op": "add", "path": "/status", "value": {"phase": "Running"}},
            ])
        };
        let queued = of(&first["metadata"]["uid"]);
        server.delete(&first).await?;
        let second = server.made("demo", json!({"image": "python"})).await?;
        server
            .patch("demo/status", Patch::Json, &queued)
            .await?
            .refused("the queued write", INVALID, "")?;
        let stored = server.get("demo").await?;
        ensure!(stored["status"].is_null(), "{stored}");
        let own = of(&second["metadata"]["uid"]);
        server
            .patch("demo/status", Patch::Json, &own)
            .await?
            .done("its own")?;
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn status_and_spec_are_written_apart() {
    scene("apart", async |server| {
        merge(server, json!({"phase": "Pending"}))
            .await?
            .done("a phase")?;
        let both =
            json!({"spec": {"lifecycle": {"ttlSeconds": 5}}, "status": {"phase": "Running"}});
        let stored = server
            .patch("demo/status", Patch::Merge, &both)
            .await?
            .done("by status")?;
        ensure!(
            stored["spec"]["lifecycle"].is_null() && stored["status"]["phase"] == "Running",
            "{stored}"
        );
        let both = json!({"spec": {"lifecycle": {"ttlSeconds": 5}}, "status": {"phase": "Ended"}});
        let stored = server
            .patch("demo", Patch::Merge, &both)
            .await?
            .done("by the object")?;
        ensure!(
            stored["spec"]["lifecycle"]["ttlSeconds"] == 5
                && stored["status"]["phase"] == "Running",
            "{stored}"
        );
        Ok(())
    })
    .await;
}

/// In one step and in two: the second step must not be possible because the first was.
#[tokio::test]
async fn a_fixed_field_is_not_changed_by_taking_it_out_first() {
    scene("detour", async |server| {
        let spec = json!({
            "image": "python", "imagePullPolicy": "Never", "command": ["a"], "args": ["b"], "env": [{"name": "A"}],
            "workingDir": "/a", "shell": "/bin/sh", "hostname": "a", "resources": {"pids": 10},
        });
        server.made("full", spec.clone()).await?;
        for (field, value) in spec.as_object().into_iter().flatten() {
            let path = format!("/spec/{field}");
            let remove = json!({"op": "remove", "path": path});
            let other = match value {
                Value::String(_) if field == "imagePullPolicy" => json!("Always"),
                Value::String(text) => json!(format!("{text}x")),
                Value::Array(_) if field == "env" => json!([{"name": "B"}]),
                Value::Array(_) => json!(["x"]),
                _ => json!({"pids": 11}),
            };
            let one_step = json!([remove, {"op": "add", "path": path, "value": other}]);
            for (what, patch) in [("without", json!([remove])), ("another", one_step)] {
                let answer = server.patch("full", Patch::Json, &patch).await?;
                let Answer::Refused(refusal) = answer else {
                    anyhow::bail!("{field}: {what} was accepted");
                };
                ensure!(refusal.code == INVALID && refusal.fields.iter().any(|named| named == &format!("spec.{field}")), "{field}: {refusal:?}");
            }
        }
        let none = json!([{"op": "remove", "path": "/spec"}]);
        let answer = server.patch("full", Patch::Json, &none).await?;
        answer.refused("no spec", INVALID, "spec")?;
        Ok(())
    })
    .await;
}
