//! A whole image: layers, configuration, manifest; written as an OCI layout, or pushed to a registry.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::layer::{Layer, Packing, digest};

/// Media type of an OCI manifest.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of an OCI image configuration.
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// What the image says of how to run it.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// `NAME=value`.
    pub env: Vec<String>,
    /// Program and first arguments.
    pub entrypoint: Vec<String>,
    /// More arguments.
    pub cmd: Vec<String>,
    /// Working directory.
    pub working_dir: String,
    /// User.
    pub user: String,
}

/// A blob: its bytes as they are served, and what the image says about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// The bytes.
    pub data: Vec<u8>,
    /// The digest that is claimed for them.
    pub digest: String,
    /// Their media type.
    pub media_type: &'static str,
}

/// An image in memory. Its fields may be spoiled before it is written: digests are what was right when it was built.
#[derive(Clone, Debug)]
pub struct Image {
    /// Lowest first.
    pub layers: Vec<Blob>,
    /// The configuration.
    pub config: Blob,
    /// The manifest.
    pub manifest: Blob,
}

impl Image {
    /// Builds an image of this machine's architecture.
    pub fn new(layers: Vec<Layer>, config: &Config) -> Result<Self> {
        Self::packed(layers, config, Packing::Gzip)
    }

    /// The same with a packing of layers.
    pub fn packed(layers: Vec<Layer>, config: &Config, packing: Packing) -> Result<Self> {
        let mut blobs = Vec::new();
        let mut diff_ids = Vec::new();
        for layer in layers {
            let tar = layer.into_tar()?;
            diff_ids.push(digest(&tar));
            let (data, media_type) = packing.pack(&tar)?;
            blobs.push(Blob {
                digest: digest(&data),
                data,
                media_type,
            });
        }
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {
                "Env": config.env,
                "Entrypoint": config.entrypoint,
                "Cmd": config.cmd,
                "WorkingDir": config.working_dir,
                "User": config.user,
            },
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = json_blob(&config, CONFIG);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(&config),
            "layers": blobs.iter().map(descriptor).collect::<Vec<_>>(),
        });
        Ok(Self {
            layers: blobs,
            config,
            manifest: json_blob(&manifest, MANIFEST),
        })
    }

    /// Reads the one image of an OCI layout that [`write`](Self::write) or `cargo xtask` made.
    pub fn read(folder: &Path) -> Result<Self> {
        let index = fs::read(folder.join("index.json"))
            .with_context(|| format!("read the OCI layout {}", folder.display()))?;
        let index: Value = serde_json::from_slice(&index).context("read an index")?;
        let manifest = stored(folder, &index["manifests"][0], MANIFEST)?;
        let whole: Value = serde_json::from_slice(&manifest.data).context("read a manifest")?;
        let layers = whole["layers"].as_array().context("a list of layers")?;
        Ok(Self {
            layers: layers
                .iter()
                .map(|layer| stored(folder, layer, Packing::Gzip.media_type()))
                .collect::<Result<_>>()?,
            config: stored(folder, &whole["config"], CONFIG)?,
            manifest,
        })
    }

    /// The digest by which the image is known.
    pub fn digest(&self) -> &str {
        &self.manifest.digest
    }

    /// Writes an OCI layout with the image under `tag`, into a new folder.
    pub fn write(&self, folder: &Path, tag: &str) -> Result<()> {
        let context = || format!("write an OCI layout to {}", folder.display());
        let blobs = folder.join("blobs/sha256");
        fs::create_dir_all(&blobs).with_context(context)?;
        for blob in self.layers.iter().chain([&self.config, &self.manifest]) {
            let name = blob.digest.strip_prefix("sha256:").unwrap_or(&blob.digest);
            fs::write(blobs.join(name), &blob.data).with_context(context)?;
        }
        let mut manifest = descriptor(&self.manifest);
        manifest["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [manifest],
        });
        fs::write(folder.join("index.json"), index.to_string()).with_context(context)?;
        fs::write(
            folder.join("oci-layout"),
            r#"{"imageLayoutVersion":"1.0.0"}"#,
        )
        .with_context(context)
    }
}

/// A blob of a layout, of the media type that is expected there.
fn stored(folder: &Path, descriptor: &Value, media_type: &'static str) -> Result<Blob> {
    ensure!(
        descriptor["mediaType"] == media_type,
        "not {media_type}: {descriptor}"
    );
    let digest = descriptor["digest"].as_str().context("a digest")?;
    let name = digest.strip_prefix("sha256:").context("a sha256 digest")?;
    let path = folder.join("blobs/sha256").join(name);
    Ok(Blob {
        data: fs::read(&path).with_context(|| format!("read {}", path.display()))?,
        digest: digest.to_owned(),
        media_type,
    })
}

fn json_blob(value: &Value, media_type: &'static str) -> Blob {
    let data = value.to_string().into_bytes();
    Blob {
        digest: digest(&data),
        data,
        media_type,
    }
}

fn descriptor(blob: &Blob) -> Value {
    json!({"mediaType": blob.media_type, "digest": blob.digest, "size": blob.data.len()})
}

/// This machine, as OCI names it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
