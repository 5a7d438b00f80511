//! When something has to be made again: when what it was made from differs, by content.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};

/// The sha256 of a list of inputs, in hex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Digest(String);

impl Digest {
    /// Names and contents, in this order; their bounds count, so that no two lists share a digest.
    pub(crate) fn of<'a>(inputs: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut hash = Sha256::new();
        for (name, content) in inputs {
            for part in [name.as_bytes(), content] {
                hash.update((part.len() as u64).to_le_bytes());
                hash.update(part);
            }
        }
        Self(hex(&hash.finalize()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

/// A file that says of what a product was made.
#[derive(Debug)]
pub(crate) struct Stamp {
    path: PathBuf,
    digest: Digest,
}

impl Stamp {
    pub(crate) fn new(directory: &Path, name: &str, digest: Digest) -> Self {
        Self {
            path: directory.join("stamps").join(name),
            digest,
        }
    }

    /// Whether `product` is there and was made of the same inputs.
    pub(crate) fn is_fresh(&self, product: &Path) -> bool {
        product.exists()
            && std::fs::read_to_string(&self.path)
                .is_ok_and(|content| content == self.digest.as_str())
    }

    /// Called once the product is whole.
    pub(crate) fn write(&self) -> Result<()> {
        if let Some(directory) = self.path.parent() {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("create {}", directory.display()))?;
        }
        std::fs::write(&self.path, self.digest.as_str())
            .with_context(|| format!("write {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_depends_on_names_contents_order_and_bounds() {
        let lists: &[&[(&str, &[u8])]] = &[
            &[("a", b"bc")],
            &[("ab", b"c")],
            &[("a", b"b"), ("c", b"")],
            &[("c", b""), ("a", b"b")],
            &[],
        ];
        for (i, left) in lists.iter().enumerate() {
            for (j, right) in lists.iter().enumerate() {
                let equal = Digest::of(left.iter().copied()) == Digest::of(right.iter().copied());
                assert_eq!(equal, i == j, "{left:?} {right:?}");
            }
        }
        assert_eq!(hex(&[0, 0x1f, 0xff]), "001fff");
    }

    #[test]
    fn fresh_means_product_and_same_inputs() {
        let directory = tempfile::tempdir().unwrap();
        let product = directory.path().join("product");
        let digest = |text: &str| Digest::of([("input", text.as_bytes())]);
        let stamp = Stamp::new(directory.path(), "product", digest("one"));
        assert!(!stamp.is_fresh(&product));
        stamp.write().unwrap();
        assert!(!stamp.is_fresh(&product));
        std::fs::write(&product, "").unwrap();
        assert!(stamp.is_fresh(&product));
        let other = Stamp::new(directory.path(), "product", digest("two"));
        assert!(!other.is_fresh(&product));
    }
}
