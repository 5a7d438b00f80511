//! Values from Secrets and `ConfigMap`s: they arrive, are waited for, are the same for every command, and nobody else gets them.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::{Reason, Sandbox};
use cloche_e2e::cluster::{self, Cluster, condition};
use cloche_identity::{Credentials, Identity};
use cloche_proto::operator::v1alpha1::references_client::ReferencesClient;
use cloche_proto::operator::v1alpha1::{SandboxReference, Variable};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::{Value, json};
use tonic::Code;

use crate::scene;

const LIMIT: Duration = Duration::from_mins(1);
/// Not to be found where it does not belong.
const PASSWORD: &str = "hunter2-\u{fc}=$(A)";
/// The lines of what a command sees.
const SHOW: &str = "import os; print(*[os.environ.get(name, '-') for name in ('PASSWORD', 'LEVEL', 'MAYBE', 'NOT')], sep='|')";

async fn secret(cluster: &Cluster, name: &str, keys: &Value) -> Result<()> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"}, "stringData": keys,
    });
    cluster.apply(&secret.to_string()).await
}

fn key(variable: &str, secret: &str, key: &str) -> Value {
    json!({"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
}

/// Password, level, what is optional and there, and what is not.
fn env() -> Value {
    json!([
        key("PASSWORD", "db", "password"),
        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "level"}}},
        {"name": "MAYBE", "valueFrom": {"secretKeyRef": {"name": "db", "key": "maybe", "optional": true}}},
        {"name": "NOT", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "not", "optional": true}}},
    ])
}

async fn objects(cluster: &Cluster) -> Result<()> {
    secret(
        cluster,
        "db",
        &json!({"password": PASSWORD, "maybe": "yes", "other": "hidden"}),
    )
    .await?;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "default"}, "data": {"level": "high"},
    });
    cluster.apply(&map.to_string()).await
}

/// Waits until the sandbox says that it waits, and for what.
async fn waits(cluster: &Cluster, name: &str, what: &str) -> Result<()> {
    let told = format!("it waits: {what}");
    let object = cluster
        .wait(name, LIMIT, &told, |object| {
            scene::message(object, "Ready").contains(what)
        })
        .await?;
    let conditions = &object.status.as_ref().context("its status")?.conditions;
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == "Ready");
    let ready = ready.context("its condition Ready")?;
    ensure!(
        ready.status == "False" && ready.reason == "WaitingForReferences",
        "{ready:?}"
    );
    Ok(())
}

#[tokio::test]
async fn values_arrive_are_the_same_for_all_and_stand_nowhere_else() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        objects(cluster).await?;
        let expected = format!("{PASSWORD}|high|yes|-\n");
        // An agent that dies between the two takes the same values again, whatever is in the Secret by then.
        cluster.agents[0].stop().await?;
        cluster.agents[0].restart_with_fault(Some("Claimed"))?;
        let command = format!("{SHOW}; import time; time.sleep(600)");
        let more = json!({"env": env(), "command": ["python3", "-u", "-c", command]});
        cluster
            .apply(&scene::manifest("default", "taker", &more))
            .await?;
        cluster.agents[0].wait_for_fault().await?;
        secret(
            cluster,
            "db",
            &json!({"password": "another", "maybe": "no"}),
        )
        .await?;
        cluster.agents[0].restart().await?;
        cluster.wait_ready("taker").await?;
        let printed = scene::first_words(cluster, "taker").await?;
        ensure!(printed == expected, "{printed:?}");
        ensure!(scene::python(cluster, "taker", SHOW).await? == expected);
        cluster.agents[0].kill().await?;
        cluster.agents[0].restart().await?;
        ensure!(
            scene::python(cluster, "taker", SHOW).await? == expected,
            "after a restart of the agent"
        );

        let told = cluster
            .plane
            .kubectl_text(&["get", "sbx,events", "-o", "yaml"])
            .await?;
        for (place, text) in [
            ("the objects", told),
            ("the agent's log", cluster.agents[0].log()?),
            ("the operator's log", cluster.operator.tail()),
        ] {
            ensure!(!text.contains("hunter2"), "{place}: {text}");
        }
        private(&cluster.agents[0].state().join("sandboxes"))
    })
    .await
    .unwrap();
}

/// Nobody but the owner comes into the folders in `folder`, or reads the records there.
fn private(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder).context("list a folder")? {
        let path = entry.context("list a folder")?.path();
        for (path, mode) in [(path.clone(), 0o700), (path.join("record.json"), 0o600)] {
            let found = path.metadata().context("look at a file")?.permissions();
            let found = found.mode() & 0o777;
            ensure!(found == mode, "{}: {found:o}", path.display());
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_is_missing_is_named_and_waited_for() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        let impatient = json!({
            "env": [{"name": "A", "value": "x"}, key("PASSWORD", "never", "password")],
            "lifecycle": {"startTimeoutSeconds": 4},
        });
        cluster.apply(&scene::manifest("default", "impatient", &impatient)).await?;
        let patient = json!({"env": [key("PASSWORD", "db", "password")]});
        cluster.apply(&scene::manifest("default", "patient", &patient)).await?;
        waits(cluster, "patient", "env PASSWORD: there is no Secret \"db\"").await?;
        secret(cluster, "db", &json!({"passwort": "x"})).await?;
        waits(cluster, "patient", "the Secret \"db\" has no key \"password\"").await?;
        let binary = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db"}, "data": {"password": "/w=="},
        });
        cluster.apply(&binary.to_string()).await?;
        waits(cluster, "patient", "is no text").await?;

        cluster.operator.kill().await?;
        waits(cluster, "patient", "the operator cannot be reached").await?;
        cluster.operator.start()?;
        secret(cluster, "db", &json!({"password": PASSWORD})).await?;
        cluster.wait_ready("patient").await?;
        let seen = scene::python(cluster, "patient", SHOW).await?;
        ensure!(seen == format!("{PASSWORD}|-|-|-\n"), "{seen}");

        let ended = cluster
            .wait("impatient", LIMIT, "it has ended", |object| {
                condition(object, "Finished") == Some("True")
            })
            .await?;
        let end = ended.status.and_then(|status| status.termination);
        let end = end.context("its end")?;
        ensure!(end.reason == Reason::StartTimeout, "{end:?}");
        ensure!(end.message.contains("there is no Secret \"never\""), "{end:?}");
        Ok(())
    })
    .await
    .unwrap();
}

/// What the operator answers to who has these credentials.
async fn ask(
    cluster: &Cluster,
    credentials: &Credentials,
    question: SandboxReference,
) -> Result<Result<Vec<Variable>, Code>> {
    let address = cluster.operator_address()?;
    let connected =
        cloche_identity::connect(credentials, Identity::Operator, &address, |endpoint| {
            endpoint
        });
    // Who is not taken learns of it at the first word.
    let Ok(channel) = connected.await else {
        return Ok(Err(Code::Unauthenticated));
    };
    let answer = ReferencesClient::new(channel).environment(question).await;
    Ok(match answer {
        Ok(answer) => Ok(answer.into_inner().variables),
        // A connection that is closed before an answer.
        Err(status) if std::error::Error::source(&status).is_some() => Err(Code::Unauthenticated),
        Err(status) => Err(status.code()),
    })
}

fn is_forbidden<T>(answer: Result<T, kube::Error>) -> bool {
    matches!(answer, Err(kube::Error::Api(status)) if status.code == 403)
}

#[tokio::test]
async fn only_the_agent_of_its_node_learns_only_what_the_spec_names() {
    cluster::run(2, scene::options().unwrap(), async |cluster| {
        objects(cluster).await?;
        let more = json!({"env": env(), "nodeSelector": {"kubernetes.io/hostname": "node1"}});
        scene::start(cluster, "here", &more).await?;
        let uid = cluster.sandboxes().await?.get("here").await?.metadata.uid;
        let question = SandboxReference {
            namespace: "default".to_owned(),
            name: "here".to_owned(),
            uid: uid.context("its UID")?,
        };
        let one = cluster.agent_credentials("node1").await?;
        let two = cluster.agent_credentials("node2").await?;
        let gateway = cluster.gateway_credentials().await?;

        let variables = ask(cluster, &one, question.clone()).await?;
        let variables = variables.map_err(|code| anyhow::anyhow!("{code:?}"))?;
        let names: Vec<&str> = variables.iter().map(|variable| variable.name.as_str()).collect();
        ensure!(names == ["PASSWORD", "LEVEL", "MAYBE"], "{names:?}");
        ensure!(variables.iter().all(|variable| variable.value != "hidden"));

        ensure!(ask(cluster, &two, question.clone()).await? == Err(Code::PermissionDenied));
        ensure!(ask(cluster, &gateway, question.clone()).await? == Err(Code::Unauthenticated));
        let changed = |change: fn(&mut SandboxReference)| {
            let mut question = question.clone();
            change(&mut question);
            question
        };
        for (question, code) in [
            (changed(|question| question.uid.push('0')), Code::PermissionDenied),
            (changed(|question| question.uid.clear()), Code::PermissionDenied),
            (changed(|question| question.name.push('x')), Code::PermissionDenied),
            (changed(|question| "kube-system".clone_into(&mut question.namespace)), Code::PermissionDenied),
            (changed(|question| "../secrets/db".clone_into(&mut question.name)), Code::InvalidArgument),
        ] {
            let told = format!("{question:?}");
            ensure!(ask(cluster, &one, question).await? == Err(code), "{told}");
        }

        // There is no way around it: an agent reads no Secret, and the operator those alone that it is told to.
        let agent: Api<Secret> =
            Api::default_namespaced(cluster.agent_client("node1").await?);
        ensure!(is_forbidden(agent.get("db").await));
        let operator = cluster
            .client_as("system:serviceaccount:cloche-system:cloche-operator")
            .await?;
        let all: Api<Secret> = Api::all(operator.clone());
        ensure!(is_forbidden(all.list(&ListParams::default()).await));
        let secrets: Api<Secret> = Api::default_namespaced(operator);
        ensure!(is_forbidden(secrets.list(&ListParams::default()).await));
        let gone = secrets.delete("db", &DeleteParams::default()).await;
        ensure!(is_forbidden(gone));

        // Cloche's own nobody gets, not even who may create Sandboxes where it is.
        let own = json!({"env": [key("KEY", "cloche-ca", "tls.key")], "nodeSelector": {"kubernetes.io/hostname": "node1"}});
        cluster.apply(&scene::manifest("cloche-system", "thief", &own)).await?;
        let thief: Api<Sandbox> =
            Api::namespaced(cluster.plane.client().await?, "cloche-system");
        cloche_e2e::deadline::until(LIMIT, "it waits", async || {
            let object = thief.get("thief").await.context("get it")?;
            Ok(scene::message(&object, "Ready").contains("is Cloche's own").then_some(()))
        })
        .await?;
        thief.delete("thief", &DeleteParams::default()).await?;
        cloche_e2e::deadline::until(LIMIT, "it is gone", async || {
            Ok(thief.get_opt("thief").await.context("get it")?.is_none().then_some(()))
        })
        .await
    })
    .await
    .unwrap();
}
