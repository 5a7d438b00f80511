//! What a kept state is made of. Pure.

use serde::{Deserialize, Serialize};

use crate::image::Digest;
use crate::runsc::saved::NAMES;

/// The form that this build writes, and the only one that it reads.
const VERSION: u32 = 1;

/// The longest manifest that is read, in bytes.
pub(super) const MAX_LENGTH: u64 = 1 << 20;

/// Everything that bringing a sandbox back needs, by its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    version: u32,
    /// What it holds of the sandbox.
    pub content: Content,
    /// The image that the sandbox ran.
    pub image: Digest,
    /// The runtime profile that it ran on.
    pub profile: String,
    /// The files.
    pub files: Vec<Entry>,
}

/// What is kept of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// Its writable layer.
    Filesystem,
}

/// A file of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Entry {
    /// What it is.
    pub role: Role,
    /// Of its content.
    pub digest: Digest,
    /// Its length in bytes.
    pub length: u64,
}

/// What a file is, as the sentry made it of the writable layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// What the others hold.
    Layers,
    /// Names, owners, modes, times, links.
    Tree,
    /// Where the pages belong.
    PagesMetadata,
    /// What was written to files.
    Pages,
}

/// Why a manifest was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// It is of a version that this build does not know.
    Version(u32),
    /// It is none.
    Wrong(String),
}

impl Role {
    /// All, in the order of [`NAMES`].
    const ALL: [Self; 4] = [Self::Layers, Self::Tree, Self::PagesMetadata, Self::Pages];

    /// The name of its file.
    pub(super) fn file_name(self) -> &'static str {
        NAMES[self as usize]
    }
}

impl Manifest {
    /// A manifest of a writable layer, whose files are in the order of [`NAMES`].
    pub(super) fn of_files(image: Digest, profile: &str, files: [(Digest, u64); 4]) -> Self {
        let entries = Role::ALL.into_iter().zip(files);
        Self {
            version: VERSION,
            content: Content::Filesystem,
            image,
            profile: profile.to_owned(),
            files: entries
                .map(|(role, (digest, length))| Entry {
                    role,
                    digest,
                    length,
                })
                .collect(),
        }
    }

    /// Bytes of all its files.
    pub fn length(&self) -> u64 {
        let lengths = self.files.iter().map(|entry| entry.length);
        lengths.fold(0, u64::saturating_add)
    }

    /// Bytes of all its files but the pages.
    pub fn names(&self) -> u64 {
        let others = self.files.iter().filter(|entry| entry.role != Role::Pages);
        others
            .map(|entry| entry.length)
            .fold(0, u64::saturating_add)
    }

    /// The bytes that are named by their digest.
    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// Reads them again; why not, where they are no manifest, or none that this build knows.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Unread> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let wrong = |error: serde_json::Error| Unread::Wrong(error.to_string());
        let Versioned { version } = serde_json::from_slice(bytes).map_err(wrong)?;
        if version != VERSION {
            return Err(Unread::Version(version));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(wrong)?;
        let roles = manifest.files.iter().map(|entry| entry.role);
        if !roles.eq(Role::ALL) {
            let what = "it does not name each of its files once";
            return Err(Unread::Wrong(what.to_owned()));
        }
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_comes_back_as_it_was_or_not_at_all() {
        let files = [b"a", b"b", b"c", b"d"].map(|bytes| (Digest::of(bytes), 1 << 40));
        let manifest = Manifest::of_files(Digest::of(b"image"), "p", files);
        let bytes = manifest.encode().unwrap();
        assert_eq!(Manifest::decode(&bytes).as_ref(), Ok(&manifest));
        assert_eq!((manifest.length(), manifest.names()), (4 << 40, 3 << 40));
        assert_eq!(manifest.files[1].role.file_name(), "multitar.img");
        let text = String::from_utf8(bytes).unwrap();
        let newer = text.replace("\"version\":1", "\"version\":2,\"more\":3");
        assert_eq!(
            Manifest::decode(newer.as_bytes()),
            Err(Unread::Version(2)),
            "whole, and not for us"
        );
        for (from, to) in [
            ("\"pages\"", "\"tree\""),
            ("\"Filesystem\"", "\"Memory\""),
            ("\"profile\"", "\"owner\""),
            ("sha256:", "sha256:/"),
        ] {
            assert!(text.contains(from), "{from}");
            let changed = text.replace(from, to);
            let read = Manifest::decode(changed.as_bytes());
            assert!(matches!(read, Err(Unread::Wrong(_))), "{to}");
        }
        assert!(Manifest::decode(b"").is_err());
    }
}
