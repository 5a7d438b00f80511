//! Credentials on disk, so that a part that is started again need not wait for the signer: it may be away, and what the part carries is not.
//!
//! One JSON file, mode 0600, renamed into place. Not synced: what is lost is asked for again.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};

use crate::credentials::{Credentials, CredentialsError};
use crate::name::Identity;

/// Longest file that is read, in bytes: a key, a chain and a CA, several times over.
const LONGEST: u64 = 256 * 1024;

/// Where one part keeps its credentials.
#[derive(Clone, Debug)]
pub struct Store(PathBuf);

/// Why credentials could not be kept or found.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused.
    #[error("{operation} {}", path.display())]
    File {
        /// `read`, `write`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It holds something else.
    #[error("{} holds no credentials", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// They are of no use here.
    #[error("use the credentials of {}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: CredentialsError,
    },
}

/// The file. Bytes are base64.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    /// PKCS #8, DER.
    key: ByteString,
    /// DER, the part's own first.
    chain: Vec<ByteString>,
    /// PEM.
    ca: ByteString,
}

impl Store {
    /// The credentials are kept in `file`, whose folder exists.
    pub fn new(file: impl Into<PathBuf>) -> Self {
        Self(file.into())
    }

    /// What was kept for `identity`; nothing where there was nothing. Blocking.
    pub(crate) fn load(&self, identity: &Identity) -> Result<Option<Credentials>, StoreError> {
        let path = &self.0;
        let mut text = String::new();
        let read =
            fs::File::open(path).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
        match read {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.failed("read", source)),
        }
        let stored: Stored =
            serde_json::from_str(&text).map_err(|source| StoreError::Malformed {
                path: path.clone(),
                source,
            })?;
        let chain = stored.chain.into_iter();
        let chain = chain.map(|bytes| CertificateDer::from(bytes.0)).collect();
        let key = PrivatePkcs8KeyDer::from(stored.key.0);
        Credentials::of(identity.clone(), chain, key, &stored.ca.0)
            .map(Some)
            .map_err(|source| StoreError::Unusable {
                path: path.clone(),
                source,
            })
    }

    /// Keeps them. Blocking.
    pub(crate) fn save(&self, credentials: &Credentials) -> Result<(), StoreError> {
        let PrivateKeyDer::Pkcs8(key) = credentials.key() else {
            // No other kind is ever made.
            return Ok(());
        };
        let stored = Stored {
            key: ByteString(key.secret_pkcs8_der().to_vec()),
            chain: credentials
                .chain()
                .iter()
                .map(|certificate| ByteString(certificate.to_vec()))
                .collect(),
            ca: ByteString(credentials.ca().to_vec()),
        };
        let text = serde_json::to_vec(&stored).map_err(|source| StoreError::Malformed {
            path: self.0.clone(),
            source,
        })?;
        replace(&self.0, &text).map_err(|source| self.failed("write", source))
    }

    fn failed(&self, operation: &'static str, source: io::Error) -> StoreError {
        StoreError::File {
            operation,
            path: self.0.clone(),
            source,
        }
    }
}

/// Seen whole or not at all, and by nobody else.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Err(_) | Ok(()) => {}
    }
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)?
        .write_all(bytes)?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::renewal::fixture::credentials;

    #[test]
    fn what_was_kept_is_found_again_by_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials.json");
        let store = Store::new(&path);
        assert!(store.load(&Identity::Gateway).unwrap().is_none());
        let kept = credentials(2000, 2100);
        store.save(&kept).unwrap();
        store.save(&kept).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let found = store.load(&Identity::Gateway).unwrap().unwrap();
        assert_eq!(found.chain(), kept.chain());
        assert_eq!(found.key(), kept.key());
        assert!(found.checks_by(kept.ca()));
        assert_eq!(found.not_after(), kept.not_after());

        let agent = Identity::Agent {
            node: "node1".to_owned(),
        };
        assert!(matches!(
            store.load(&agent),
            Err(StoreError::Unusable { .. })
        ));
        fs::write(&path, b"{}").unwrap();
        assert!(matches!(
            store.load(&Identity::Gateway),
            Err(StoreError::Malformed { .. })
        ));
    }
}
