//! OCI image layouts (the image specification's image-layout, image-index, manifest and config documents).

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::artifact::hex;

/// An image of one layer.
pub(super) struct Image<'a> {
    /// Writes the layer's tar stream.
    pub(super) layer: &'a dyn Fn(&mut dyn Write) -> Result<()>,
    pub(super) env: &'a [&'a str],
    /// What always runs, with the command as its arguments; may be empty.
    pub(super) entrypoint: &'a [&'a str],
    pub(super) command: &'a [&'a str],
}

/// A layout that is being written; it takes its place when whole.
pub(super) struct Layout {
    path: PathBuf,
    staging: tempfile::TempDir,
}

impl Layout {
    /// Begins a layout that will be at `path`, in place of what is there now.
    pub(super) fn replace(path: &Path) -> Result<Self> {
        let parent = path.parent().unwrap_or(Path::new("."));
        // Beside the images, not among them: a reader of that directory sees whole layouts only.
        let parent = parent.parent().unwrap_or(parent);
        let staging = tempfile::Builder::new()
            .prefix("layout-")
            .tempdir_in(parent)
            .with_context(|| format!("create a layout in {}", parent.display()))?;
        std::fs::create_dir_all(staging.path().join("blobs/sha256"))?;
        Ok(Self {
            path: path.to_owned(),
            staging,
        })
    }

    /// Writes the image and puts the layout in its place.
    pub(super) fn write(self, image: &Image<'_>) -> Result<()> {
        let architecture = architecture(std::env::consts::ARCH)?;
        let (layer, tar) = self.layer(image)?;
        let config = self.blob(&json!({
            "architecture": architecture,
            "os": "linux",
            "config": {
                "Env": image.env,
                "Entrypoint": image.entrypoint,
                "Cmd": image.command,
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [tar.digest]},
            "history": [{"created_by": "cargo xtask"}],
        }))?;
        self.finish(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(CONFIG),
            "layers": [layer.descriptor(LAYER)],
        }))
    }

    /// Writes the image of another layout with another command. Its layer is the same file.
    pub(super) fn derive(self, from: &Path, command: &[&str]) -> Result<()> {
        let mut whole = Manifest::read(from)?;
        let mut config: Value = serde_json::from_slice(&read(&whole.config())?)
            .with_context(|| format!("read the configuration of {}", from.display()))?;
        config["config"]["Cmd"] = json!(command);
        for layer in whole.layers() {
            let to = self.staging.path().join("blobs/sha256");
            let name = layer.file_name().context("a layer without a name")?;
            std::fs::hard_link(&layer, to.join(name))
                .with_context(|| format!("link {}", layer.display()))?;
        }
        whole.document["config"] = self.blob(&config)?.descriptor(CONFIG);
        self.finish(&whole.document)
    }

    /// Writes the manifest and the index, and puts the layout in its place.
    fn finish(self, manifest: &Value) -> Result<()> {
        let architecture = architecture(std::env::consts::ARCH)?;
        let manifest = self.blob(manifest)?;
        let mut reference = manifest.descriptor(MANIFEST);
        reference["platform"] = json!({"architecture": architecture, "os": "linux"});
        reference["annotations"] = json!({"org.opencontainers.image.ref.name": "latest"});
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [reference]});
        std::fs::write(self.staging.path().join("index.json"), index.to_string())?;
        let marker = json!({"imageLayoutVersion": "1.0.0"});
        std::fs::write(self.staging.path().join("oci-layout"), marker.to_string())?;
        self.take_place()
    }

    fn layer(&self, image: &Image<'_>) -> Result<(Blob, Blob)> {
        let path = self.staging.path().join("layer");
        let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        let packed = Hashed::new(BufWriter::new(file));
        // The header's time field stays zero, so equal layers are equal blobs.
        let mut plain = Hashed::new(GzEncoder::new(packed, Compression::fast()));
        (image.layer)(&mut plain)?;
        let (encoder, tar) = plain.finish();
        let packed = encoder.finish().context("compress the layer")?;
        let (mut file, blob) = packed.finish();
        file.flush()
            .with_context(|| format!("write {}", path.display()))?;
        std::fs::rename(&path, self.blob_path(&blob))
            .with_context(|| format!("rename {}", path.display()))?;
        Ok((blob, tar))
    }

    fn blob(&self, document: &Value) -> Result<Blob> {
        let mut hashed = Hashed::new(Vec::new());
        hashed.write_all(document.to_string().as_bytes())?;
        let (bytes, blob) = hashed.finish();
        let path = self.blob_path(&blob);
        std::fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))?;
        Ok(blob)
    }

    fn blob_path(&self, blob: &Blob) -> PathBuf {
        blob_path(self.staging.path(), &blob.digest)
    }

    fn take_place(self) -> Result<()> {
        if self.path.exists() {
            std::fs::remove_dir_all(&self.path)
                .with_context(|| format!("remove {}", self.path.display()))?;
        }
        let staged = self.staging.keep();
        std::fs::rename(&staged, &self.path)
            .with_context(|| format!("rename {} to {}", staged.display(), self.path.display()))
    }
}

/// The manifest of a layout's one image.
pub(super) struct Manifest {
    layout: PathBuf,
    /// As it is stored.
    pub(super) bytes: Vec<u8>,
    pub(super) digest: String,
    document: Value,
}

impl Manifest {
    pub(super) fn read(layout: &Path) -> Result<Self> {
        let broken = || format!("read the layout {}", layout.display());
        let index: Value =
            serde_json::from_slice(&read(&layout.join("index.json"))?).with_context(broken)?;
        let digest = index["manifests"][0]["digest"].as_str();
        let digest = digest.with_context(broken)?.to_owned();
        let bytes = read(&blob_path(layout, &digest))?;
        Ok(Self {
            layout: layout.to_owned(),
            document: serde_json::from_slice(&bytes).with_context(broken)?,
            bytes,
            digest,
        })
    }

    /// The file of the configuration.
    pub(super) fn config(&self) -> PathBuf {
        self.file(&self.document["config"])
    }

    /// The files of the layers.
    pub(super) fn layers(&self) -> Vec<PathBuf> {
        let layers = self.document["layers"].as_array().into_iter().flatten();
        layers.map(|layer| self.file(layer)).collect()
    }

    fn file(&self, descriptor: &Value) -> PathBuf {
        let digest = descriptor["digest"].as_str().unwrap_or_default();
        blob_path(&self.layout, digest)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("read {}", path.display()))
}

/// Media type of an index.
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Media type of a manifest.
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Where a layout has a blob.
fn blob_path(layout: &Path, digest: &str) -> PathBuf {
    let name = digest.trim_start_matches("sha256:");
    layout.join("blobs/sha256").join(name)
}

/// The name that Go, and so OCI, gives to a processor that Rust names `rust`.
fn architecture(rust: &str) -> Result<&'static str> {
    match rust {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("no OCI name for the processor {other}"),
    }
}

/// What was written: its digest (`sha256:...`) and its length.
#[derive(Debug)]
struct Blob {
    digest: String,
    size: u64,
}

impl Blob {
    fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": self.digest, "size": self.size})
    }
}

/// A writer that keeps the digest and the length of what passes.
struct Hashed<W> {
    inner: W,
    hash: Sha256,
    size: u64,
}

impl<W: Write> Hashed<W> {
    fn new(inner: W) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
            size: 0,
        }
    }

    fn finish(self) -> (W, Blob) {
        let blob = Blob {
            digest: format!("sha256:{}", hex(&self.hash.finalize())),
            size: self.size,
        };
        (self.inner, blob)
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn sha256(bytes: &[u8]) -> String {
        format!("sha256:{}", hex(&Sha256::digest(bytes)))
    }

    fn document(layout: &Path, descriptor: &Value) -> Vec<u8> {
        let digest = descriptor["digest"].as_str().unwrap();
        let name = digest.strip_prefix("sha256:").unwrap();
        let bytes = std::fs::read(layout.join("blobs/sha256").join(name)).unwrap();
        assert_eq!(sha256(&bytes), digest);
        assert_eq!(descriptor["size"], bytes.len());
        bytes
    }

    #[test]
    fn every_digest_and_size_is_right() {
        let directory = tempfile::tempdir().unwrap();
        let images = directory.path().join("images");
        std::fs::create_dir(&images).unwrap();
        let path = images.join("one");
        let content = "a layer".repeat(1000);
        for _twice in 0..2 {
            Layout::replace(&path)
                .unwrap()
                .write(&Image {
                    layer: &|out| Ok(out.write_all(content.as_bytes())?),
                    env: &["A=b"],
                    entrypoint: &[],
                    command: &["sh"],
                })
                .unwrap();
        }
        let index: Value =
            serde_json::from_slice(&std::fs::read(path.join("index.json")).unwrap()).unwrap();
        let manifest = document(&path, &index["manifests"][0]);
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        let config = document(&path, &manifest["config"]);
        let config: Value = serde_json::from_slice(&config).unwrap();
        let layer = document(&path, &manifest["layers"][0]);
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&*layer)
            .read_to_end(&mut plain)
            .unwrap();
        assert_eq!(plain, content.as_bytes());
        assert_eq!(config["rootfs"]["diff_ids"], json!([sha256(&plain)]));
        assert_eq!(config["config"]["Cmd"], json!(["sh"]));
        let names = |path: &Path| std::fs::read_dir(path).unwrap().count();
        assert_eq!(names(&path.join("blobs/sha256")), 3);
        assert_eq!(names(&images), 1, "nothing else is left");
        assert_eq!(names(directory.path()), 1, "nothing else is left");
    }

    #[test]
    fn a_derived_image_has_the_same_layer_and_another_command() {
        let directory = tempfile::tempdir().unwrap();
        let images = directory.path().join("images");
        std::fs::create_dir(&images).unwrap();
        let (first, second) = (images.join("first"), images.join("second"));
        Layout::replace(&first)
            .unwrap()
            .write(&Image {
                layer: &|out| Ok(out.write_all(b"a layer")?),
                env: &["A=b"],
                entrypoint: &["/bin/run"],
                command: &["one"],
            })
            .unwrap();
        Layout::replace(&second)
            .unwrap()
            .derive(&first, &["two"])
            .unwrap();
        let [before, after] = [&first, &second].map(|path| Manifest::read(path).unwrap());
        assert_ne!(before.digest, after.digest);
        assert_eq!(sha256(&after.bytes), after.digest);
        assert_eq!(
            std::fs::read(&after.layers()[0]).unwrap(),
            std::fs::read(&before.layers()[0]).unwrap()
        );
        let config: Value =
            serde_json::from_slice(&std::fs::read(after.config()).unwrap()).unwrap();
        assert_eq!(config["config"]["Cmd"], json!(["two"]));
        assert_eq!(config["config"]["Entrypoint"], json!(["/bin/run"]));
        assert_eq!(config["config"]["Env"], json!(["A=b"]));
    }

    #[test]
    fn processors_have_their_oci_names() {
        assert_eq!(architecture("x86_64").unwrap(), "amd64");
        assert_eq!(architecture("aarch64").unwrap(), "arm64");
        assert!(architecture("sparc").is_err());
    }
}
