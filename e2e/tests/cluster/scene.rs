//! What these tests have in common.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::Sandbox;
use cloche_e2e::cluster::Cluster;
use cloche_e2e::deadline::until;
use cloche_e2e::{Options, image};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

/// How long anything of one sandbox may take while parts are killed.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

/// Agents with the images that were prepared, a Python among them.
pub(crate) fn options() -> Result<Options> {
    Ok(Options::default().images(image::prepared()?))
}

/// A Sandbox of the Python image, small, with `more` in its spec.
pub(crate) fn manifest(namespace: &str, name: &str, more: &Value) -> String {
    let mut spec = json!({
        "image": "oci:python",
        "resources": {
            "requests": {"cpu": "10m", "memory": "32Mi", "ephemeral-storage": "16Mi"},
            "limits": {"cpu": "1", "memory": "256Mi"},
        },
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    json!({
        "apiVersion": "cloche.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    })
    .to_string()
}

/// The message of a condition; empty where there is none.
pub(crate) fn message<'a>(object: &'a Sandbox, kind: &str) -> &'a str {
    let conditions = object.status.iter().flat_map(|status| &status.conditions);
    let mut of_kind = conditions.filter(|condition| condition.type_ == kind);
    of_kind
        .next()
        .map_or("", |condition| condition.message.as_str())
}

/// Applies one in the namespace `default`, and waits until it is Ready.
pub(crate) async fn start(cluster: &Cluster, name: &str, more: &Value) -> Result<()> {
    cluster.apply(&manifest("default", name, more)).await?;
    cluster.wait_ready(name).await.map(drop)
}

/// The events that are about a Sandbox of the namespace `default`.
pub(crate) async fn events(cluster: &Cluster, name: &str) -> Result<Vec<Event>> {
    let events: Api<Event> = Api::default_namespaced(cluster.plane.client().await?);
    let list = events.list(&ListParams::default()).await?;
    let about = |event: &Event| {
        let regarding = event.regarding.as_ref();
        regarding.is_some_and(|it| {
            (it.kind.as_deref(), it.name.as_deref()) == (Some("Sandbox"), Some(name))
        })
    };
    Ok(list.items.into_iter().filter(about).collect())
}

/// What a sandbox's own command has printed so far.
pub(crate) async fn printed(cluster: &Cluster, name: &str) -> Result<String> {
    let output = cluster.sandbox(&["log", name]).await?;
    ensure!(
        output.status.success(),
        "read the log of {name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).context("read a log as text")
}

/// The same, from its first line on: a sandbox is Ready from its command's start on, which says so a little later.
pub(crate) async fn first_words(cluster: &Cluster, name: &str) -> Result<String> {
    until(LIMIT, "it says something", async || {
        let text = printed(cluster, name).await?;
        Ok(text.contains('\n').then_some(text))
    })
    .await
}

/// Runs a Python program in a sandbox by `kubectl sandbox exec`; what it printed.
pub(crate) async fn python(cluster: &Cluster, name: &str, program: &str) -> Result<String> {
    cluster.exec_text(name, &["python3", "-c", program]).await
}
