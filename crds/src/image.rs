//! Where an image comes from.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest reference, in bytes.
pub const MAX_LENGTH: usize = 512;

/// Where an image comes from: parsed, bounded, with every default filled in.
///
/// Its text form (`Display`, serde) is canonical: equal references have equal texts, and parsing it gives the same again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ImageRef {
    /// A repository of a registry.
    Registry(RegistryRef),
    /// `oci:PATH[:TAG]`: an OCI image layout, a folder of the node's local image directory.
    OciLayout(LocalRef),
    /// `oci-archive:PATH[:TAG]`: the same as a tar file.
    OciArchive(LocalRef),
    /// `rootfs:PATH`: a tar file of a root file system, without any configuration.
    Rootfs(LocalPath),
}

/// An image in a registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegistryRef {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<String>,
}

/// An image in a layout or archive of the node's local image directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalRef {
    path: LocalPath,
    tag: Option<String>,
}

/// A path below the node's local image directory: relative, of plain names, never `.` or `..`. That no name on it is a symbolic
/// link can be known only when it is opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalPath(String);

/// Why a text is no image reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageRefError {
    /// Nothing there.
    #[error("the image reference is empty: name one, as python:3.11-slim")]
    Empty,
    /// Over [`MAX_LENGTH`].
    #[error("the image reference has {0} bytes; at most {MAX_LENGTH} are allowed")]
    TooLong(usize),
    /// The part before the first `/`.
    #[error("{0:?} is not a registry: write a host name, with :PORT where it is not 443")]
    Registry(String),
    /// What stands between registry and tag.
    #[error(
        "{0:?} is not a repository: write lower case letters and digits, separated by single / . - or one or two _"
    )]
    Repository(String),
    /// What stands after `:`.
    #[error(
        "{0:?} is not a tag: write letters, digits, _ . and -, at most 128, not beginning with . or -"
    )]
    Tag(String),
    /// What stands after `@`.
    #[error("{0:?} is not a digest: write sha256: and 64 lower case hex digits")]
    Digest(String),
    /// A local path.
    #[error(
        "{0:?} is not a path of a local image: write it relative to the node's image directory, of names with letters, digits, . _ and -, without . and .."
    )]
    Path(String),
}

/// The registry of references that name none.
const DEFAULT_REGISTRY: &str = "docker.io";

impl RegistryRef {
    /// Host name or address, with `:PORT` where one was given. `docker.io` where none was.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Whether it is the registry that references may leave out.
    pub fn has_default_registry(&self) -> bool {
        self.registry == DEFAULT_REGISTRY
    }

    /// Path in the registry, without tag; below `library/` where a name alone was given for docker.io.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag; `latest` where neither tag nor digest was given. A digest beside it decides.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// `sha256:` and 64 lower case hex digits.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }
}

impl LocalRef {
    /// Where it lies.
    pub fn path(&self) -> &LocalPath {
        &self.path
    }

    /// Which image of it (`org.opencontainers.image.ref.name`); `None` where it has to be the only one.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }
}

impl LocalPath {
    /// Names joined by `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parse(text: &str) -> Result<Self, ImageRefError> {
        let name = |name: &str| {
            !name.is_empty()
                && name.len() <= 255
                && name != "."
                && name != ".."
                && name
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        if text.split('/').all(name) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ImageRefError::Path(text.to_owned()))
        }
    }
}

impl ImageRef {
    /// Whether it may name another image tomorrow without anyone having changed the node: the tag `latest`, and no digest.
    pub fn is_latest(&self) -> bool {
        match self {
            Self::Registry(reference) => {
                reference.digest.is_none() && reference.tag.as_deref() == Some("latest")
            }
            Self::OciLayout(_) | Self::OciArchive(_) | Self::Rootfs(_) => false,
        }
    }
}

impl FromStr for ImageRef {
    type Err = ImageRefError;

    /// The three local schemes come first: a repository that is called `oci`, `oci-archive` or `rootfs` needs its registry
    /// written out.
    fn from_str(text: &str) -> Result<Self, ImageRefError> {
        if text.is_empty() {
            return Err(ImageRefError::Empty);
        }
        if text.len() > MAX_LENGTH {
            return Err(ImageRefError::TooLong(text.len()));
        }
        if let Some(rest) = text.strip_prefix("oci:") {
            parse_local(rest).map(Self::OciLayout)
        } else if let Some(rest) = text.strip_prefix("oci-archive:") {
            parse_local(rest).map(Self::OciArchive)
        } else if let Some(rest) = text.strip_prefix("rootfs:") {
            LocalPath::parse(rest).map(Self::Rootfs)
        } else {
            parse_registry(text).map(Self::Registry)
        }
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registry(reference) => reference.fmt(formatter),
            Self::OciLayout(reference) => write!(formatter, "oci:{reference}"),
            Self::OciArchive(reference) => write!(formatter, "oci-archive:{reference}"),
            Self::Rootfs(path) => write!(formatter, "rootfs:{}", path.0),
        }
    }
}

impl fmt::Display for RegistryRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(formatter, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(formatter, "@{digest}")?;
        }
        Ok(())
    }
}

impl fmt::Display for LocalRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.path.0)?;
        if let Some(tag) = &self.tag {
            write!(formatter, ":{tag}")?;
        }
        Ok(())
    }
}

impl Serialize for ImageRef {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ImageRef {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

fn parse_local(text: &str) -> Result<LocalRef, ImageRefError> {
    let (path, tag) = match text.split_once(':') {
        Some((path, tag)) => (path, Some(parse_tag(tag)?)),
        None => (text, None),
    };
    Ok(LocalRef {
        path: LocalPath::parse(path)?,
        tag,
    })
}

/// As the `distribution` library's reference package does, which Kubernetes and Docker use.
fn parse_registry(text: &str) -> Result<RegistryRef, ImageRefError> {
    let (named, digest) = match text.split_once('@') {
        Some((named, digest)) => (named, Some(parse_digest(digest)?)),
        None => (text, None),
    };
    // A first part is a registry only if it cannot be a repository's: it has a dot or a port, or it is localhost.
    let (registry, rest) = match named.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':']) || first == "localhost" || has_upper_case(first) =>
        {
            (first, rest)
        }
        _ => (DEFAULT_REGISTRY, named),
    };
    let (repository, tag) = match rest.rsplit_once(':') {
        Some((repository, tag)) => (repository, Some(parse_tag(tag)?)),
        None => (rest, None),
    };
    if !is_registry(registry) {
        return Err(ImageRefError::Registry(registry.to_owned()));
    }
    if !is_repository(repository) {
        return Err(ImageRefError::Repository(repository.to_owned()));
    }
    let registry = if registry == "index.docker.io" {
        DEFAULT_REGISTRY
    } else {
        registry
    };
    let repository = if registry == DEFAULT_REGISTRY && !repository.contains('/') {
        format!("library/{repository}")
    } else {
        repository.to_owned()
    };
    let tag = if tag.is_none() && digest.is_none() {
        Some("latest".to_owned())
    } else {
        tag
    };
    Ok(RegistryRef {
        registry: registry.to_owned(),
        repository,
        tag,
        digest,
    })
}

fn has_upper_case(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_uppercase())
}

fn is_registry(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, after)) => {
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return false;
            }
            (
                None,
                after
                    .strip_prefix(':')
                    .or(if after.is_empty() { None } else { Some("") }),
            )
        }
        None => match text.split_once(':') {
            Some((host, port)) => (Some(host), Some(port)),
            None => (Some(text), None),
        },
    };
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    host.is_none_or(|host| host.len() <= 253 && host.split('.').all(label))
        && port.is_none_or(|port| {
            port.bytes().all(|byte| byte.is_ascii_digit())
                && port.parse::<u16>().is_ok_and(|port| port != 0)
        })
}

fn is_repository(text: &str) -> bool {
    text.len() <= 255 && text.split('/').all(is_repository_part)
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
fn is_repository_part(part: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    part.bytes().next().is_some_and(word)
        && part.bytes().last().is_some_and(word)
        && part
            .bytes()
            .all(|byte| word(byte) || b"._-".contains(&byte))
        && part
            .split(|character: char| character.is_ascii_lowercase() || character.is_ascii_digit())
            .all(|between| {
                matches!(between, "" | "." | "_" | "__") || between.bytes().all(|byte| byte == b'-')
            })
}

fn parse_tag(text: &str) -> Result<String, ImageRefError> {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if text.len() <= 128
        && text.bytes().next().is_some_and(word)
        && text
            .bytes()
            .all(|byte| word(byte) || byte == b'.' || byte == b'-')
    {
        Ok(text.to_owned())
    } else {
        Err(ImageRefError::Tag(text.to_owned()))
    }
}

fn parse_digest(text: &str) -> Result<String, ImageRefError> {
    let hex = |hex: &str| {
        hex.len() == 64
            && hex
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    if text.strip_prefix("sha256:").is_some_and(hex) {
        Ok(text.to_owned())
    } else {
        Err(ImageRefError::Digest(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn references_are_read_as_kubernetes_reads_them() {
        for (text, wanted) in [
            ("python", "docker.io/library/python:latest"),
            ("python:3.11-slim", "docker.io/library/python:3.11-slim"),
            (
                "docker.io/library/python:3.11-slim",
                "docker.io/library/python:3.11-slim",
            ),
            ("index.docker.io/python", "docker.io/library/python:latest"),
            ("docker.io/python", "docker.io/library/python:latest"),
            ("user/repo", "docker.io/user/repo:latest"),
            ("a/b/c:t", "docker.io/a/b/c:t"),
            ("localhost/x", "localhost/x:latest"),
            ("localhost:5000/x:1", "localhost:5000/x:1"),
            ("127.0.0.1:5000/a/b", "127.0.0.1:5000/a/b:latest"),
            ("[::1]:5000/x", "[::1]:5000/x:latest"),
            (
                "registry.example.com/a_b/c__d/e--f.g:v1.0_x",
                "registry.example.com/a_b/c__d/e--f.g:v1.0_x",
            ),
            ("GHCR.io/x", "GHCR.io/x:latest"),
            ("HOST/x", "HOST/x:latest"),
            ("host:5000", "docker.io/library/host:5000"),
            ("oci:python", "oci:python"),
            ("oci:dir/python:3.11", "oci:dir/python:3.11"),
            ("oci-archive:py.tar", "oci-archive:py.tar"),
            ("oci-archive:py.tar:v1", "oci-archive:py.tar:v1"),
            ("rootfs:debian/root.tar.gz", "rootfs:debian/root.tar.gz"),
            ("docker.io/library/oci:1", "docker.io/library/oci:1"),
        ] {
            let parsed: ImageRef = text
                .parse()
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(parsed.to_string(), wanted, "{text}");
            assert_eq!(wanted.parse(), Ok(parsed), "{text}");
        }
    }

    #[test]
    fn a_digest_takes_the_place_of_latest() {
        let parsed: ImageRef = format!("python@{DIGEST}").parse().unwrap();
        assert_eq!(
            parsed.to_string(),
            format!("docker.io/library/python@{DIGEST}")
        );
        assert!(!parsed.is_latest());
        let parsed: ImageRef = format!("python:latest@{DIGEST}").parse().unwrap();
        assert_eq!(
            parsed.to_string(),
            format!("docker.io/library/python:latest@{DIGEST}")
        );
        assert!(!parsed.is_latest());
        assert!("python".parse::<ImageRef>().unwrap().is_latest());
        assert!(!"oci:python".parse::<ImageRef>().unwrap().is_latest());
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        let long = "a".repeat(MAX_LENGTH + 1);
        let long_tag = format!("python:{}", "a".repeat(129));
        let long_repository = "a".repeat(256);
        for text in [
            "",
            " ",
            "python ",
            "Python",
            "python:",
            "python:-x",
            "python:.x",
            "python:a b",
            "a//b",
            "/a",
            "a/",
            "a..b",
            "a___b",
            "-a",
            "a-",
            "_a",
            "a@",
            "a@sha256:00",
            "a@md5:00",
            "a@sha512:00",
            "user:tag/x:y:z",
            "host:port/x",
            "host:0/x",
            "host:65536/x",
            "host:+80/x",
            "host.:5000/x",
            "-host.com/x",
            "a.b-/x",
            "[::1/x",
            "[zz]:1/x",
            "[::1]x/y",
            "http://host/x",
            "pythön",
            "python\n",
            "python\0",
            "oci:",
            "oci:/abs",
            "oci:../x",
            "oci:a/../b",
            "oci:./x",
            "oci:a//b",
            "oci:a/",
            "oci:a b",
            "oci:a:",
            "oci:a:b:c",
            "oci:a\\b",
            "oci-archive:/x",
            "rootfs:",
            "rootfs:/etc",
            "rootfs:a:b",
            "rootfs:..",
            "rootfs:a\0b",
            &long,
            &long_tag,
            &long_repository,
        ] {
            assert!(text.parse::<ImageRef>().is_err(), "{text:?}");
        }
        let digest = DIGEST.replace('a', "A");
        assert!(format!("python@{digest}").parse::<ImageRef>().is_err());
        assert!(
            format!("python@{DIGEST}@{DIGEST}")
                .parse::<ImageRef>()
                .is_err()
        );
    }

    proptest! {
        #[test]
        fn the_canonical_text_is_a_fixed_point(text in "[a-zA-Z0-9.:/@_\\-\\[\\]]{0,40}|(oci|rootfs|oci-archive):[a-z./:]{0,20}") {
            if let Ok(parsed) = text.parse::<ImageRef>() {
                let shown = parsed.to_string();
                prop_assert_eq!(shown.parse::<ImageRef>().ok(), Some(parsed.clone()), "{}", shown);
                let json = serde_json::to_string(&parsed).unwrap();
                prop_assert_eq!(serde_json::from_str::<ImageRef>(&json).ok(), Some(parsed));
            }
        }

        #[test]
        fn anything_is_read_or_refused(text in "\\PC{0,60}") {
            drop(text.parse::<ImageRef>());
        }
    }
}
