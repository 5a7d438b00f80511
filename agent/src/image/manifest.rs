//! Manifests, indexes and configurations of images (OCI image-spec and Docker's schema 2): hostile JSON until parsed here.

use serde::Deserialize;

use super::ImageConfig;
use super::digest::Digest;
use super::error::Failure;
use super::unpack::Compression;

/// Longest manifest, index or configuration that is read, in bytes. Registries refuse manifests over 4 MiB.
pub(super) const DOCUMENT_MAX: u64 = 4 << 20;
/// Most layers. Docker itself stops at 127.
const LAYERS_MAX: usize = 200;
/// Most entries of an index that are looked at.
const INDEX_MAX: usize = 500;
/// Most strings of one list of a configuration, and bytes of them together: with what a spec may add they fit into one command.
const STRINGS_MAX: usize = 1000;
const STRING_BYTES_MAX: usize = 64 << 10;

/// The annotation by which a layout names an image.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// The media types that we ask a registry for.
pub(super) const ACCEPTED: [&str; 4] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];

/// A blob as a manifest announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blob {
    pub(super) digest: Digest,
    /// In bytes. What a source gives must be exactly as long.
    pub(super) size: u64,
}

/// What a digest or tag named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Document {
    /// One image.
    Manifest(Manifest),
    /// Images for several platforms: the manifest of ours.
    Index(Blob),
}

/// One image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) config: Blob,
    /// Lowest first.
    pub(super) layers: Vec<(Blob, Compression)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    schema_version: u32,
    config: Option<RawBlob>,
    layers: Option<Vec<RawBlob>>,
    manifests: Option<Vec<RawBlob>>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawBlob {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<RawPlatform>,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Clone, Deserialize)]
struct RawPlatform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
}

impl RawBlob {
    fn parse(&self, what: &str) -> Result<Blob, Failure> {
        let digest = self
            .digest
            .parse()
            .map_err(|error| invalid(format!("the digest of {what}: {error}")))?;
        Ok(Blob {
            digest,
            size: self.size,
        })
    }
}

/// This machine's architecture, as images call it (Go's names).
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Parses a manifest or an index.
pub(super) fn parse(bytes: &[u8]) -> Result<Document, Failure> {
    let raw: RawDocument =
        serde_json::from_slice(bytes).map_err(|error| invalid(format!("its manifest: {error}")))?;
    if raw.schema_version != 2 {
        return Err(invalid(format!(
            "its manifest has schema version {}; only 2 is supported",
            raw.schema_version
        )));
    }
    match (raw.config, raw.layers, raw.manifests) {
        (Some(config), Some(layers), None) => manifest(&config, &layers).map(Document::Manifest),
        (None, None, Some(entries)) => select(&entries).map(Document::Index),
        _ => Err(invalid(
            "its manifest is neither that of an image nor an index".to_owned(),
        )),
    }
}

fn manifest(config: &RawBlob, layers: &[RawBlob]) -> Result<Manifest, Failure> {
    if layers.len() > LAYERS_MAX {
        return Err(invalid(format!(
            "it has {} layers; at most {LAYERS_MAX} are allowed",
            layers.len()
        )));
    }
    let config = config.parse("its configuration")?;
    if config.size > DOCUMENT_MAX {
        return Err(invalid(format!(
            "its configuration has {} bytes; at most {DOCUMENT_MAX} are allowed",
            config.size
        )));
    }
    let layers = layers
        .iter()
        .map(|layer| Ok((layer.parse("a layer")?, compression(&layer.media_type)?)))
        .collect::<Result<_, Failure>>()?;
    Ok(Manifest { config, layers })
}

fn compression(media_type: &str) -> Result<Compression, Failure> {
    Ok(match media_type {
        "application/vnd.oci.image.layer.v1.tar"
        | "application/vnd.oci.image.layer.nondistributable.v1.tar"
        | "application/vnd.docker.image.rootfs.diff.tar" => Compression::None,
        "application/vnd.oci.image.layer.v1.tar+gzip"
        | "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
        | "application/vnd.docker.image.rootfs.diff.tar.gzip" => Compression::Gzip,
        "application/vnd.oci.image.layer.v1.tar+zstd"
        | "application/vnd.docker.image.rootfs.diff.tar.zstd" => Compression::Zstd,
        other => {
            return Err(invalid(format!(
                "a layer has the media type {other:.100?}, which is not that of a container image"
            )));
        }
    })
}

/// The entry for this machine. The first that fits wins, as everywhere.
fn select(entries: &[RawBlob]) -> Result<Blob, Failure> {
    let ours = architecture();
    let found = entries.iter().take(INDEX_MAX).find(|entry| {
        entry
            .platform
            .as_ref()
            .is_some_and(|platform| platform.os == "linux" && platform.architecture == ours)
    });
    let Some(found) = found else {
        return Err(invalid(format!("it is not made for linux/{ours}")));
    };
    let blob = found.parse("its manifest")?;
    if blob.size > DOCUMENT_MAX {
        return Err(invalid("its manifest is too large".to_owned()));
    }
    Ok(blob)
}

/// The entry of a layout's `index.json` that `tag` names; without a tag the only one, or the only one for this machine.
pub(super) fn select_in_layout(bytes: &[u8], tag: Option<&str>) -> Result<Blob, Failure> {
    let raw: RawDocument = serde_json::from_slice(bytes)
        .map_err(|error| invalid(format!("the layout's index.json: {error}")))?;
    let entries = raw.manifests.unwrap_or_default();
    let mut named: Vec<&RawBlob> = entries
        .iter()
        .take(INDEX_MAX)
        .filter(|entry| {
            tag.is_none_or(|tag| {
                entry
                    .annotations
                    .get(REF_NAME)
                    .is_some_and(|name| name == tag)
            })
        })
        .collect();
    if named.len() > 1 {
        let ours = architecture();
        named.retain(|entry| {
            entry
                .platform
                .as_ref()
                .is_none_or(|platform| platform.architecture == ours && platform.os == "linux")
        });
    }
    match (named.as_slice(), tag) {
        ([only], _) => {
            let blob = only.parse("its manifest")?;
            if blob.size > DOCUMENT_MAX {
                return Err(invalid("its manifest is too large".to_owned()));
            }
            Ok(blob)
        }
        ([], Some(tag)) => Err(Failure::NotFound(format!("the layout has no tag {tag}"))),
        ([], None) => Err(Failure::NotFound("the layout is empty".to_owned())),
        (_, None) => Err(Failure::NotFound(
            "the layout has several images, name one with :TAG".to_owned(),
        )),
        (_, Some(tag)) => Err(invalid(format!("the layout has tag {tag} more than once"))),
    }
}

/// What a configuration says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Configuration {
    pub(super) config: ImageConfig,
    /// What each layer must hash to when uncompressed, lowest first.
    pub(super) diff_ids: Vec<Digest>,
}

#[derive(Deserialize)]
struct RawConfiguration {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    config: Option<RawConfig>,
    rootfs: RawRootfs,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawConfig {
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
}

#[derive(Deserialize)]
struct RawRootfs {
    diff_ids: Option<Vec<String>>,
}

/// Parses and checks a configuration that has to describe `layers` layers.
pub(super) fn parse_configuration(bytes: &[u8], layers: usize) -> Result<Configuration, Failure> {
    let raw: RawConfiguration = serde_json::from_slice(bytes)
        .map_err(|error| invalid(format!("its configuration: {error}")))?;
    let ours = architecture();
    if raw.os != "linux" || raw.architecture != ours {
        return Err(invalid(format!(
            "it is made for {:.40}/{:.40}, this node is linux/{ours}",
            raw.os.escape_default().to_string(),
            raw.architecture.escape_default().to_string()
        )));
    }
    let diff_ids = raw
        .rootfs
        .diff_ids
        .unwrap_or_default()
        .iter()
        .map(|id| id.parse())
        .collect::<Result<Vec<Digest>, _>>()
        .map_err(|error| invalid(format!("its configuration's diff_ids: {error}")))?;
    if diff_ids.len() != layers {
        return Err(invalid(format!(
            "its configuration describes {} layers, its manifest has {layers}",
            diff_ids.len()
        )));
    }
    let raw = raw.config.unwrap_or_default();
    let config = ImageConfig {
        env: raw.env.unwrap_or_default(),
        entrypoint: raw.entrypoint.unwrap_or_default(),
        cmd: raw.cmd.unwrap_or_default(),
        working_dir: absolute(raw.working_dir.unwrap_or_default()),
        user: raw.user.unwrap_or_default(),
    };
    check_config(&config)?;
    Ok(Configuration { config, diff_ids })
}

/// Some builders write `app` and mean `/app`, and engines take it so.
fn absolute(directory: String) -> String {
    if directory.is_empty() || directory.starts_with('/') {
        directory
    } else {
        format!("/{directory}")
    }
}

fn check_config(config: &ImageConfig) -> Result<(), Failure> {
    for (what, list) in [
        ("Env", &config.env),
        ("Entrypoint", &config.entrypoint),
        ("Cmd", &config.cmd),
    ] {
        let bytes: usize = list.iter().map(String::len).sum();
        if list.len() > STRINGS_MAX || bytes > STRING_BYTES_MAX {
            return Err(invalid(format!(
                "its {what} has {} strings of {bytes} bytes; at most {STRINGS_MAX} of {STRING_BYTES_MAX} are allowed",
                list.len()
            )));
        }
        if list.iter().any(|text| text.contains('\0')) {
            return Err(invalid(format!("its {what} contains a NUL byte")));
        }
    }
    if let Some(bad) = config
        .env
        .iter()
        .find(|text| text.find('=').is_none_or(|at| at == 0))
    {
        return Err(invalid(format!(
            "its Env has {bad:.60?}, which is not NAME=value"
        )));
    }
    let directory = &config.working_dir;
    if directory.len() > 4095 || directory.contains('\0') {
        return Err(invalid("its WorkingDir is no path".to_owned()));
    }
    if config.user.len() > 256 || config.user.contains(['\0', '\n']) {
        return Err(invalid("its User is no user".to_owned()));
    }
    Ok(())
}

fn invalid(detail: String) -> Failure {
    Failure::Invalid(detail)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn blob(media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": Digest::of(b"x"), "size": 3})
    }

    fn entry(name: &str, architecture: &str, tag: &str) -> Value {
        json!({
            "digest": Digest::of(name.as_bytes()), "size": 3,
            "platform": {"os": "linux", "architecture": architecture},
            "annotations": {REF_NAME: tag},
        })
    }

    fn layout(entries: &[Value], tag: Option<&str>) -> Result<Blob, Failure> {
        let index = json!({"schemaVersion": 2, "manifests": entries});
        select_in_layout(index.to_string().as_bytes(), tag)
    }

    #[test]
    fn manifests_and_what_is_none() {
        let layers = [
            ("application/vnd.oci.image.layer.v1.tar", Compression::None),
            (
                "application/vnd.oci.image.layer.v1.tar+gzip",
                Compression::Gzip,
            ),
            (
                "application/vnd.oci.image.layer.v1.tar+zstd",
                Compression::Zstd,
            ),
            (
                "application/vnd.docker.image.rootfs.diff.tar.gzip",
                Compression::Gzip,
            ),
        ];
        let good = json!({
            "schemaVersion": 2, "config": blob("c"),
            "layers": layers.map(|(media_type, _)| blob(media_type)),
        });
        let Ok(Document::Manifest(found)) = parse(good.to_string().as_bytes()) else {
            panic!("a good manifest was refused");
        };
        let kinds: Vec<_> = found.layers.iter().map(|(_, kind)| *kind).collect();
        assert_eq!(kinds, layers.map(|(_, kind)| kind));

        let with = |key: &str, value: Value| {
            let mut bad = good.clone();
            bad[key] = value;
            bad
        };
        let huge = json!({"digest": Digest::of(b"x"), "size": DOCUMENT_MAX + 1});
        for bad in [
            with("schemaVersion", json!(1)),
            with(
                "layers",
                json!(vec![
                    blob("application/vnd.oci.image.layer.v1.tar");
                    LAYERS_MAX + 1
                ]),
            ),
            with("layers", json!([blob("text/plain")])),
            with("layers", json!([{"digest": "sha256:../../x", "size": 1}])),
            with("layers", json!([{"digest": Digest::of(b"x"), "size": -1}])),
            with("config", huge),
            with("manifests", json!([])),
            json!({"schemaVersion": 2}),
            json!(null),
        ] {
            let found = parse(bad.to_string().as_bytes());
            assert!(matches!(found, Err(Failure::Invalid(_))), "{bad}");
        }
    }

    #[test]
    fn an_index_gives_this_machine_its_own() {
        let ours = architecture();
        let index = |entries: &[Value]| {
            parse(
                json!({"schemaVersion": 2, "manifests": entries})
                    .to_string()
                    .as_bytes(),
            )
        };
        let found = index(&[
            entry("a", "s390x", ""),
            entry("b", ours, ""),
            entry("c", ours, ""),
        ]);
        assert!(matches!(found, Ok(Document::Index(blob)) if blob.digest == Digest::of(b"b")));
        for none in [
            vec![],
            vec![entry("a", "s390x", "")],
            vec![blob("no platform")],
        ] {
            assert!(matches!(index(&none), Err(Failure::Invalid(text)) if text.contains(ours)));
        }
    }

    #[test]
    fn a_layout_names_its_images() {
        let ours = architecture();
        let of = |name: &[u8]| Digest::of(name);
        let (a, b) = (entry("a", ours, "v1"), entry("b", ours, "v2"));
        assert_eq!(
            layout(&[a.clone(), b.clone()], Some("v2")).unwrap().digest,
            of(b"b")
        );
        assert_eq!(
            layout(std::slice::from_ref(&a), None).unwrap().digest,
            of(b"a")
        );
        let other = entry("o", "s390x", "v1");
        assert_eq!(
            layout(&[other, a.clone()], Some("v1")).unwrap().digest,
            of(b"a")
        );
        for (entries, tag) in [
            (vec![], None),
            (vec![a.clone(), b.clone()], None),
            (vec![a.clone(), b.clone()], Some("v3")),
        ] {
            assert!(
                matches!(layout(&entries, tag), Err(Failure::NotFound(_))),
                "{tag:?}"
            );
        }
        assert!(matches!(
            layout(&[a.clone(), a], Some("v1")),
            Err(Failure::Invalid(_))
        ));
    }
}
