//! Sandboxes that say once that they ran: in their output and in a file, so that a second run shows.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::agent::Options;
use crate::image::{Config, Entry, Image, Layer, busybox_layer};

/// Says once that it ran, in its output and in a file, then does `rest`.
const ONCE: &str =
    "n=$(head -c 8 /dev/urandom | od -An -tx1 | tr -d ' \\n'); echo $n >>/ran; echo ran $n; ";

/// Local images, a folder each.
#[derive(Debug)]
pub struct Images(TempDir);

impl Images {
    /// A busybox by each of these names; no two have the same digest.
    pub fn new(names: impl IntoIterator<Item = String>) -> Result<Self> {
        let images = Self(tempfile::tempdir().context("make a folder of images")?);
        for name in names {
            let mark = Layer::default().add("mark", Entry::File(name.as_bytes().to_vec()))?;
            let config = Config {
                env: vec!["PATH=/bin".to_owned()],
                cmd: vec!["sh".to_owned()],
                ..Default::default()
            };
            Image::new(vec![busybox_layer()?, mark], &config)?
                .write(&images.0.path().join(name), "latest")?;
        }
        Ok(images)
    }

    /// Busybox alone, as `oci:busybox`.
    pub fn busybox() -> Result<Self> {
        Self::new(["busybox".to_owned()])
    }

    /// An agent that has them, without a pool.
    pub fn options(&self) -> Options {
        Options::default().images(self.0.path())
    }
}

/// A manifest of a small sandbox; `spec` is laid over.
pub fn manifest(name: &str, spec: &Value) -> String {
    let mut whole = json!({
        "image": "oci:busybox",
        "resources": {"requests": {"cpu": "10m", "ephemeral-storage": "16Mi"}, "limits": {"memory": "64Mi"}},
        "lifecycle": {"terminationGracePeriodSeconds": 30},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        whole[key] = value.clone();
    }
    json!({
        "apiVersion": "cloche.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": name},
        "spec": whole,
    })
    .to_string()
}

/// Runs `rest` after it has said that it ran.
pub fn once(rest: &str) -> Value {
    json!({"command": ["sh", "-c", format!("{ONCE}{rest}")]})
}

/// Stays; ends at SIGTERM, and says so.
pub fn stays() -> Value {
    once("trap 'echo told to end; exit 0' TERM; sleep 1000 & wait")
}

/// Ends by itself with exit code 7.
pub fn ends() -> Value {
    once("exit 7")
}

/// The mark that a command of [`once`] printed: it ran exactly once, and then said `more`.
pub fn mark(printed: &str, more: &str) -> Result<String> {
    let mark: String = printed
        .strip_prefix("ran ")
        .map(|rest| rest.chars().take(16).collect())
        .unwrap_or_default();
    ensure!(
        mark.len() == 16 && printed == format!("ran {mark}\n{more}"),
        "it printed {printed:?}"
    );
    Ok(mark)
}
