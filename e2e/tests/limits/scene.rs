//! Images and manifests of these tests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use cloche_e2e::audit::world::hierarchies;
use cloche_e2e::image::{Config, Image, Layer, busybox, busybox_layer};
use cloche_e2e::session::Done;
use cloche_e2e::{Agent, Options};
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long anything may take that has no limit of its own; never waited out.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

/// The image that most tests use.
pub(crate) const BUSYBOX: &str = "oci:busybox:latest";

/// A new folder of local images, with a busybox.
pub(crate) fn images() -> Result<TempDir> {
    let folder = tempfile::Builder::new()
        .prefix("cloche-images-")
        .tempdir()
        .context("make a folder of images")?;
    add(folder.path(), "busybox", &busybox()?)?;
    Ok(folder)
}

/// Adds an image to a folder; `oci:NAME:latest`.
pub(crate) fn add(images: &Path, name: &str, image: &Image) -> Result<String> {
    image.write(&images.join(name), "latest")?;
    Ok(format!("oci:{name}:latest"))
}

/// A busybox with something changed.
pub(crate) fn busybox_with(layers: Vec<Layer>, change: impl FnOnce(&mut Config)) -> Result<Image> {
    let mut config = Config {
        env: vec!["PATH=/bin".to_owned()],
        ..Config::default()
    };
    change(&mut config);
    let mut all = vec![busybox_layer()?];
    all.extend(layers);
    Image::new(all, &config)
}

/// An agent without a pool that has these images.
pub(crate) fn options(images: &TempDir) -> Options {
    Options::default().images(images.path())
}

/// A manifest; what `spec` does not say is small.
pub(crate) fn manifest(name: &str, image: &str, mut spec: Value) -> String {
    spec["image"] = json!(image);
    let resources = &mut spec["resources"];
    if resources["limits"]["memory"].is_null() {
        resources["limits"]["memory"] = json!("64Mi");
    }
    if resources["requests"]["cpu"].is_null() {
        resources["requests"]["cpu"] = json!("100m");
    }
    if resources["requests"]["ephemeral-storage"].is_null()
        && resources["limits"]["ephemeral-storage"].is_null()
    {
        resources["requests"]["ephemeral-storage"] = json!("16Mi");
    }
    json!({
        "apiVersion": "cloche.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": name},
        "spec": spec,
    })
    .to_string()
}

/// A spec that runs a line of shell.
pub(crate) fn line(line: &str) -> Value {
    json!({"command": ["/bin/sh", "-c", line]})
}

/// Applies a busybox and waits until it runs.
pub(crate) async fn run(agent: &Agent, name: &str, spec: Value) -> Result<()> {
    agent
        .client()
        .await?
        .apply(&manifest(name, BUSYBOX, spec))
        .await?;
    agent.wait_running(name, LIMIT).await.map(drop)
}

/// Runs a line of shell to its end, however it ends.
pub(crate) async fn sh(agent: &Agent, name: &str, line: &str) -> Result<Done> {
    agent
        .exec(name, cloche_e2e::session::shell(line), LIMIT)
        .await
        .with_context(|| format!("in {name}: {line}"))
}

/// Runs a line of shell that must succeed; what it prints, without the last line's end.
pub(crate) async fn output(agent: &Agent, name: &str, line: &str) -> Result<String> {
    let text = agent
        .output(name, cloche_e2e::session::shell(line), LIMIT)
        .await
        .with_context(|| format!("in {name}: {line}"))?;
    Ok(text.trim_end_matches('\n').to_owned())
}

/// The instance that a sandbox has, by its record on disk.
pub(crate) fn instance(agent: &Agent, name: &str) -> Result<String> {
    let folder = agent.state().join("sandboxes");
    for entry in std::fs::read_dir(&folder).context("list the records")? {
        let path = entry
            .context("list the records")?
            .path()
            .join("record.json");
        let text = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let file: Value = serde_json::from_slice(&text).context("read a record")?;
        let record = &file["record"];
        if record["name"] == name {
            return find(&record["state"], "instance")
                .with_context(|| format!("{name} has no instance: {record}"));
        }
    }
    anyhow::bail!("{name} has no record")
}

/// The string of a key, however deep.
fn find(value: &Value, key: &str) -> Option<String> {
    match value {
        Value::Object(map) => map
            .get(key)
            .and_then(Value::as_str)
            .map(str::to_owned)
            .or_else(|| map.values().find_map(|below| find(below, key))),
        Value::Array(list) => list.iter().find_map(|below| find(below, key)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// Files named `name` in the group `below` of an agent's own group (empty: that group itself), in every hierarchy that has it.
pub(crate) fn group_files(agent: &Agent, below: &str, name: &str) -> Result<Vec<PathBuf>> {
    let files = hierarchies()?
        .into_iter()
        .map(|hierarchy| hierarchy.join(agent.group()).join(below).join(name));
    Ok(files.filter(|file| file.exists()).collect())
}

/// What the only one of these files holds; `None` where no hierarchy has any.
pub(crate) fn group_value(agent: &Agent, below: &str, name: &str) -> Result<Option<String>> {
    match &group_files(agent, below, name)?[..] {
        [] => Ok(None),
        [file] => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("read {}", file.display()))?;
            Ok(Some(text.trim_end().to_owned()))
        }
        several => anyhow::bail!("several hierarchies have it: {several:?}"),
    }
}
