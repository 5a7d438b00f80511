//! Makes images, stores and looks at what came of them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cloche_agent::image::{
    Access, Digest, Image, ImageError, ImageStore, Limits, Progress, PullPolicy, Registries,
    StoreConfig,
};
use serde_json::{Value, json};
use tar::{EntryType, Header};
use tempfile::TempDir;
use tokio::sync::watch;

/// A tar file with whatever names one likes.
#[derive(Default)]
pub(crate) struct Tar(Vec<u8>);

impl Tar {
    pub(crate) fn raw(
        mut self,
        kind: EntryType,
        name: &[u8],
        link: &[u8],
        mode: u32,
        size: u64,
        content: &[u8],
    ) -> Self {
        if name.len() > 100 || link.len() > 100 {
            let mut records = Vec::new();
            for (key, value) in [("path", name), ("linkpath", link)] {
                if !value.is_empty() {
                    record(&mut records, key, value);
                }
            }
            self = self.pax(&records);
        }
        let mut header = Header::new_ustar();
        let put = |field: &mut [u8], value: &[u8]| {
            let length = value.len().min(field.len());
            field[..length].copy_from_slice(&value[..length]);
        };
        put(&mut header.as_old_mut().name, name);
        put(&mut header.as_old_mut().linkname, link);
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(1000);
        header.set_gid(2000);
        header.set_mtime(1_600_000_000);
        header.set_size(size);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.content(content);
        self
    }

    fn content(&mut self, content: &[u8]) {
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    /// A header as it is.
    pub(crate) fn append(mut self, header: &[u8; 512]) -> Self {
        self.0.extend_from_slice(header);
        self
    }

    /// PAX records for the entry that follows.
    pub(crate) fn pax(mut self, records: &[u8]) -> Self {
        let mut header = Header::new_ustar();
        header.as_old_mut().name[..3].copy_from_slice(b"pax");
        header.set_entry_type(EntryType::XHeader);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(records.len() as u64);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.content(records);
        self
    }

    pub(crate) fn file(self, name: &str, content: &[u8]) -> Self {
        let size = content.len() as u64;
        self.raw(
            EntryType::Regular,
            name.as_bytes(),
            b"",
            0o644,
            size,
            content,
        )
    }

    pub(crate) fn mode(self, name: &str, mode: u32) -> Self {
        self.raw(EntryType::Regular, name.as_bytes(), b"", mode, 2, b"ok")
    }

    pub(crate) fn dir(self, name: &str) -> Self {
        self.raw(EntryType::Directory, name.as_bytes(), b"", 0o750, 0, b"")
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> Self {
        self.raw(
            EntryType::Symlink,
            name.as_bytes(),
            target.as_bytes(),
            0o777,
            0,
            b"",
        )
    }

    pub(crate) fn link(self, name: &str, target: &str) -> Self {
        self.raw(
            EntryType::Link,
            name.as_bytes(),
            target.as_bytes(),
            0o644,
            0,
            b"",
        )
    }

    pub(crate) fn node(self, kind: EntryType, name: &str) -> Self {
        self.raw(kind, name.as_bytes(), b"", 0o600, 0, b"")
    }

    pub(crate) fn done(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

/// One PAX record: its own length in decimal, key, value.
pub(crate) fn record(into: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let length = (1..10)
        .map(|digits| rest + digits)
        .find(|length| length.to_string().len() + rest == *length);
    write!(into, "{} {key}=", length.unwrap()).unwrap();
    into.extend_from_slice(value);
    into.push(b'\n');
}

#[derive(Clone, Copy)]
pub(crate) enum Pack {
    Plain,
    Gzip,
    Zstd,
}

impl Pack {
    fn media_type(self) -> &'static str {
        match self {
            Self::Plain => "application/vnd.oci.image.layer.v1.tar",
            Self::Gzip => "application/vnd.docker.image.rootfs.diff.tar.gzip",
            Self::Zstd => "application/vnd.oci.image.layer.v1.tar+zstd",
        }
    }

    fn pack(self, plain: &[u8]) -> Vec<u8> {
        match self {
            Self::Plain => plain.to_vec(),
            Self::Gzip => {
                let mut encoder =
                    flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
            Self::Zstd => zstd::encode_all(plain, 1).unwrap(),
        }
    }
}

/// An image as blobs.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) blobs: BTreeMap<Digest, Vec<u8>>,
    pub(crate) manifest: Digest,
}

pub(crate) fn made(layers: &[(Pack, Vec<u8>)], config: Value) -> Made {
    made_with(layers, config, |_, _| {})
}

/// `bend` may change configuration and manifest before they are hashed.
pub(crate) fn made_with(
    layers: &[(Pack, Vec<u8>)],
    config: Value,
    bend: impl Fn(&mut Value, &mut Value),
) -> Made {
    let mut blobs = BTreeMap::new();
    let mut add = |bytes: Vec<u8>, media_type: &str| {
        let digest = Digest::of(&bytes);
        let described = json!({"mediaType": media_type, "digest": digest, "size": bytes.len()});
        blobs.insert(digest, bytes);
        described
    };
    let described: Vec<Value> = layers
        .iter()
        .map(|(pack, plain)| add(pack.pack(plain), pack.media_type()))
        .collect();
    let diff_ids: Vec<Digest> = layers.iter().map(|(_, plain)| Digest::of(plain)).collect();
    let architecture = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    let mut document = json!({
        "os": "linux", "architecture": architecture, "config": null,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    let mut manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "layers": described,
    });
    document["config"] = config;
    bend(&mut document, &mut manifest);
    manifest["config"] = add(
        serde_json::to_vec(&document).unwrap(),
        "application/vnd.oci.image.config.v1+json",
    );
    let manifest = serde_json::to_vec(&manifest).unwrap();
    let digest = Digest::of(&manifest);
    blobs.insert(digest, manifest);
    Made {
        blobs,
        manifest: digest,
    }
}

pub(crate) fn one_layer(tar: Tar) -> Made {
    made(&[(Pack::Gzip, tar.done())], json!({}))
}

impl Made {
    /// Writes it as an OCI layout, under the tag `latest`.
    pub(crate) fn write_layout(&self, folder: &Path) {
        fs::create_dir_all(folder.join("blobs/sha256")).unwrap();
        for (digest, bytes) in &self.blobs {
            fs::write(folder.join("blobs/sha256").join(digest.hex()), bytes).unwrap();
        }
        fs::write(
            folder.join("oci-layout"),
            r#"{"imageLayoutVersion":"1.0.0"}"#,
        )
        .unwrap();
        let index = json!({"schemaVersion": 2, "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": self.manifest, "size": self.blobs[&self.manifest].len(),
            "annotations": {"org.opencontainers.image.ref.name": "latest"},
        }]});
        fs::write(folder.join("index.json"), index.to_string()).unwrap();
    }
}

/// A store in a temporary directory, with a local image directory beside it.
pub(crate) struct Rig {
    pub(crate) store: Option<ImageStore>,
    pub(crate) config: StoreConfig,
    pub(crate) temp: TempDir,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut StoreConfig)) -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "these tests need root: unpacking gives up rights that only root has"
        );
        let temp = tempfile::Builder::new()
            .prefix("cloche-image-")
            .tempdir()
            .unwrap();
        fs::create_dir(temp.path().join("local")).unwrap();
        let mut config = StoreConfig {
            directory: temp.path().join("images"),
            local_images: Some(temp.path().join("local")),
            registries: Registries::default(),
            limits: Limits {
                deadline: Duration::from_mins(2),
                idle: Duration::from_secs(20),
                retries: 0,
                ..Limits::default()
            },
            program: env!("CARGO_BIN_EXE_cloche-agent").into(),
        };
        change(&mut config);
        let store = Some(ImageStore::open(config.clone()).unwrap());
        Self {
            store,
            config,
            temp,
        }
    }

    pub(crate) fn local(&self, name: &str) -> PathBuf {
        self.temp.path().join("local").join(name)
    }

    pub(crate) fn store(&self) -> &ImageStore {
        self.store.as_ref().unwrap()
    }

    /// Closes the store and opens it again.
    pub(crate) fn reopen(&mut self) {
        self.store = None;
        self.store = Some(ImageStore::open(self.config.clone()).unwrap());
    }

    pub(crate) async fn ensure(&self, image: &str) -> Result<Image, ImageError> {
        self.ensure_by(image, PullPolicy::IfNotPresent).await
    }

    pub(crate) async fn ensure_by(
        &self,
        image: &str,
        policy: PullPolicy,
    ) -> Result<Image, ImageError> {
        self.ensure_as(image, policy, &Access::default()).await
    }

    pub(crate) async fn ensure_as(
        &self,
        image: &str,
        policy: PullPolicy,
        access: &Access,
    ) -> Result<Image, ImageError> {
        let (progress, _) = watch::channel(Progress::default());
        self.store()
            .ensure(&image.parse().unwrap(), policy, access, &progress)
            .await
    }

    /// Makes the image from a layout.
    pub(crate) async fn take(&self, made: &Made) -> Result<Image, ImageError> {
        made.write_layout(&self.local("layout"));
        self.ensure("oci:layout").await
    }

    /// Files in a folder of the store. Staging directories go away in the background: waits for that.
    pub(crate) async fn files(&self, folder: &str) -> Vec<String> {
        let list = || {
            let mut names: Vec<String> = fs::read_dir(self.config.directory.join(folder))
                .unwrap()
                .map(|file| file.unwrap().file_name().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        };
        if folder == "tmp" {
            for _ in 0..200 {
                if list().is_empty() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        list()
    }

    pub(crate) async fn assert_nothing_left(&self) {
        assert_eq!(self.files("tmp").await, [] as [String; 0]);
        assert_eq!(self.files("erofs").await, [] as [String; 0]);
    }
}

/// A mounted EROFS file; unmounted when dropped. The kernel's own reader is the judge of what we write.
pub(crate) struct Mounted(TempDir);

impl Mounted {
    pub(crate) fn new(erofs: &Path) -> Self {
        run("fsck.erofs", &[erofs.as_os_str()]);
        let folder = tempfile::Builder::new()
            .prefix("cloche-image-mnt-")
            .tempdir()
            .unwrap();
        run(
            "mount",
            &[
                "-t".as_ref(),
                "erofs".as_ref(),
                "-o".as_ref(),
                "loop,ro,nodev,nosuid".as_ref(),
                erofs.as_os_str(),
                folder.path().as_os_str(),
            ],
        );
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `name kind mode uid:gid xLINKS =SIZE @MTIME -> TARGET`, sorted; links only of files with several names, size only of files.
    pub(crate) fn listing(&self) -> Vec<String> {
        let mut lines = Vec::new();
        self.walk(self.0.path(), &mut lines);
        lines.sort();
        lines
    }

    fn walk(&self, folder: &Path, lines: &mut Vec<String>) {
        for file in fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let known = fs::symlink_metadata(&path).unwrap();
            let kind = known.file_type();
            let name = path.strip_prefix(self.0.path()).unwrap();
            let mut line = format!("{} ", name.as_os_str().as_bytes().escape_ascii());
            line += match () {
                () if kind.is_dir() => "d",
                () if kind.is_symlink() => "l",
                () if kind.is_fifo() => "p",
                () if kind.is_file() => "f",
                () => "?",
            };
            line += &format!(
                " {:o} {}:{}",
                known.mode() & 0o7777,
                known.uid(),
                known.gid()
            );
            if !kind.is_dir() && known.nlink() > 1 {
                line += &format!(" x{}", known.nlink());
            }
            if kind.is_file() {
                line += &format!(" ={}", known.len());
            }
            line += &format!(" @{}", known.mtime());
            if known.mtime_nsec() > 0 {
                line += &format!(".{:09}", known.mtime_nsec());
            }
            if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                line += &format!(" -> {}", target.as_os_str().as_bytes().escape_ascii());
            }
            lines.push(line);
            if kind.is_dir() {
                self.walk(&path, lines);
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run("umount", &[self.0.path().as_os_str()]);
    }
}

pub(crate) fn run(program: &str, arguments: &[&std::ffi::OsStr]) {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("this test needs {program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
}

/// Wraps a folder into a tar file.
pub(crate) fn tar_of(folder: &Path, to: &Path) {
    let mut builder = tar::Builder::new(File::create(to).unwrap());
    builder.append_dir_all("", folder).unwrap();
    builder.finish().unwrap();
}
