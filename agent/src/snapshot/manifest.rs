//! What a kept state is made of. Pure.

use serde::{Deserialize, Serialize};

use crate::image::Digest;

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

impl Role {
    /// All, in the order in which the sentry takes them.
    pub const ALL: [Self; 4] = [Self::Layers, Self::Tree, Self::PagesMetadata, Self::Pages];
}

impl Manifest {
    /// A manifest of a writable layer, whose files are in the order of [`Role::ALL`].
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

    /// The file of that role.
    pub fn file(&self, role: Role) -> Option<&Entry> {
        self.files.iter().find(|entry| entry.role == role)
    }

    /// Bytes of all its files.
    pub fn length(&self) -> u64 {
        let lengths = self.files.iter().map(|entry| entry.length);
        lengths.fold(0, u64::saturating_add)
    }

    /// The bytes that are named by their digest.
    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// Reads them again; why not, where they are no manifest that this build knows.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if manifest.version != VERSION {
            return Err(format!(
                "it is of version {}; this build reads {VERSION}",
                manifest.version
            ));
        }
        let roles = manifest.files.iter().map(|entry| entry.role);
        if !roles.eq(Role::ALL) {
            return Err("it does not name each of its files once".to_owned());
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
        assert_eq!(manifest.length(), 4 << 40);
        assert_eq!(manifest.file(Role::Tree).unwrap().digest, Digest::of(b"b"));
        let text = String::from_utf8(bytes).unwrap();
        for (from, to) in [
            ("\"version\":1", "\"version\":2"),
            ("\"pages\"", "\"tree\""),
            ("\"Filesystem\"", "\"Memory\""),
            ("\"profile\"", "\"owner\""),
            ("sha256:", "sha256:/"),
        ] {
            assert!(text.contains(from), "{from}");
            assert!(
                Manifest::decode(text.replace(from, to).as_bytes()).is_err(),
                "{to}"
            );
        }
        assert!(Manifest::decode(b"").is_err());
    }
}
