//! The runtime profile: the programs and flags that decide how sandboxes run.
//!
//! runsc and cloche-init are copied to `STATE/profiles/HASH/` and run from there, so that an upgrade of the agent changes nothing
//! under a running sandbox, and a snapshot can name what it was made with.

use std::fs::{File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::task::spawn_blocking;

use super::{argv, spec};
use crate::process::command;
use crate::sys::log::printable;

/// Counts changes of how a profile's folder is made.
const LAYOUT: u32 = 1;

/// Fixed, so that equal contents give equal bytes: a restore compares the file system's superblock.
const EROFS_UUID: &str = "6e5d3f1c-0a67-4a1e-9c52-1f0f5e3b7a01";

/// Folders that a root container needs as mount points, since its file system cannot be written, and `run`, over which the
/// holder mounts what only it may see.
const FOLDERS: [&str; 6] = ["proc", "dev", "sys", "tmp", "etc", "run"];

/// As much of what mkfs.erofs prints is told when it fails.
const TOLD: usize = 2048;

/// A profile that could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// A file could not be read, copied, made or moved.
    #[error("{operation} {path}")]
    File {
        /// `read`, `copy`, ...
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// mkfs.erofs could not be run.
    #[error("run mkfs.erofs (package erofs-utils)")]
    Mkfs(#[source] io::Error),
    /// mkfs.erofs failed.
    #[error("mkfs.erofs made no {path}: {said}")]
    Erofs {
        /// What it was to make.
        path: PathBuf,
        /// What it said, printable, bounded.
        said: String,
    },
    /// The thread that blocks was lost: the runtime shuts down.
    #[error("install the runtime profile")]
    Lost(#[source] tokio::task::JoinError),
}

/// An installed profile. Its files are never changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    hash: String,
    folder: PathBuf,
}

/// Hashes of a profile's files, kept beside them as `profile.json`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Contents {
    runsc: String,
    init: String,
    erofs: String,
}

impl Profile {
    /// Names the profile: 32 hex digits over both programs, runsc's flags and the versions of the specs.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The `runsc` to run.
    pub fn runsc(&self) -> PathBuf {
        self.folder.join("runsc")
    }

    /// An EROFS file with `/init`: the root container's file system, and `main`'s `/.cloche`.
    pub fn init_erofs(&self) -> PathBuf {
        self.folder.join("init.erofs")
    }

    /// A directory that is empty and stays so.
    pub fn empty(&self) -> PathBuf {
        self.folder.join("empty")
    }

    /// What its runsc says of its version: restores compare it.
    pub async fn version(&self) -> Result<String, ProfileError> {
        let runsc = self.runsc();
        let failed = |source| ProfileError::File {
            operation: "run",
            path: runsc.clone(),
            source,
        };
        let output = command(&runsc)
            .arg("--version")
            .output()
            .await
            .map_err(failed)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("runsc version "));
        version
            .filter(|version| !version.is_empty() && *version != "VERSION_MISSING")
            .map(str::to_owned)
            .ok_or_else(|| {
                failed(io::Error::other(
                    "it does not tell its version: build it with one set",
                ))
            })
    }

    /// Installs the profile of the programs `runsc` and `init` below the agent's state directory `state`; one that is there
    /// and intact is used again. One agent at a time.
    pub async fn install(state: &Path, runsc: &Path, init: &Path) -> Result<Self, ProfileError> {
        let profiles = state.join("profiles");
        let (runsc_hash, init_hash) = tokio::try_join!(hash_of(runsc), hash_of(init))?;
        let hash = identity(&runsc_hash, &init_hash);
        let profile = Self {
            folder: profiles.join(&hash),
            hash,
        };
        if profile.is_intact(&runsc_hash, &init_hash).await {
            return Ok(profile);
        }
        let staging = profiles.join(format!("staging-{}", profile.hash));
        let (runsc, init, into) = (runsc.to_owned(), init.to_owned(), staging.clone());
        blocking(move || stage(&runsc, &init, &into)).await?;
        let erofs = staging.join("init.erofs");
        make_erofs(&staging.join("tree"), &erofs).await?;
        let contents = Contents {
            // Of the copies: a source that changed meanwhile shows below.
            runsc: hash_of(&staging.join("runsc")).await?,
            init: hash_of(&staging.join("tree/init")).await?,
            erofs: hash_of(&erofs).await?,
        };
        if (&contents.runsc, &contents.init) != (&runsc_hash, &init_hash) {
            return Err(ProfileError::File {
                operation: "copy",
                path: staging,
                source: io::Error::other("the programs changed while they were copied: try again"),
            });
        }
        let into = profile.folder.clone();
        blocking(move || publish(&staging, &contents, &into)).await?;
        Ok(profile)
    }

    /// Whether all files are there and as they were made. A reader's error counts as damage: the folder is then made anew.
    async fn is_intact(&self, runsc: &str, init: &str) -> bool {
        let Ok(text) = tokio::fs::read(self.folder.join("profile.json")).await else {
            return false;
        };
        let Ok(contents) = serde_json::from_slice::<Contents>(&text) else {
            return false;
        };
        contents.runsc == runsc
            && contents.init == init
            && self.empty().is_dir()
            && hash_of(&self.runsc()).await.is_ok_and(|hash| hash == runsc)
            && hash_of(&self.init_erofs())
                .await
                .is_ok_and(|hash| hash == contents.erofs)
    }
}

fn identity(runsc: &str, init: &str) -> String {
    let mut hash = Sha256::new();
    let parts = [
        format!("cloche profile {LAYOUT}, specs {}", spec::VERSION),
        runsc.to_owned(),
        init.to_owned(),
        argv::FLAGS.join(" "),
    ];
    for part in parts {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let mut text = hex(&hash.finalize());
    text.truncate(32);
    text
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ProfileError> + Send + 'static,
) -> Result<T, ProfileError> {
    spawn_blocking(work).await.map_err(ProfileError::Lost)?
}

async fn hash_of(path: &Path) -> Result<String, ProfileError> {
    let path = path.to_owned();
    blocking(move || {
        hash_file(&path).map_err(|source| ProfileError::File {
            operation: "read",
            path,
            source,
        })
    })
    .await
}

fn hash_file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&piece[..read]),
        }
    }
}

/// Copies the programs and lays the tree of the EROFS out. A staging folder of a killed agent is replaced.
fn stage(runsc: &Path, init: &Path, staging: &Path) -> Result<(), ProfileError> {
    let file = |operation, path: &Path| {
        let path = path.to_owned();
        move |source| ProfileError::File {
            operation,
            path,
            source,
        }
    };
    let make = |path: &Path, mode| {
        std::fs::create_dir_all(path)
            .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(mode)))
            .map_err(file("make", path))
    };
    // Readable and executable by all: the sentry starts itself again as nobody.
    let copy = |from: &Path, to: &Path| {
        std::fs::copy(from, to)
            .and_then(|_| std::fs::set_permissions(to, Permissions::from_mode(0o555)))
            .map_err(file("copy", from))
    };
    remove(staging)?;
    make(staging, 0o755)?;
    make(&staging.join("empty"), 0o555)?;
    let tree = staging.join("tree");
    make(&tree, 0o755)?;
    for folder in FOLDERS {
        make(&tree.join(folder), 0o755)?;
    }
    copy(runsc, &staging.join("runsc"))?;
    copy(init, &tree.join("init"))
}

async fn make_erofs(tree: &Path, image: &Path) -> Result<(), ProfileError> {
    let output = command("mkfs.erofs")
        // gVisor refuses inodes with extended attributes and inline data. Fixed times, owner and UUID: equal bytes.
        .args(["--quiet", "-x-1", "-Enoinline_data", "-T0", "--all-root"])
        .args(["-U", EROFS_UUID])
        .arg(image)
        .arg(tree)
        .output()
        .await
        .map_err(ProfileError::Mkfs)?;
    if output.status.success() {
        return Ok(());
    }
    let said = &output.stderr[..output.stderr.len().min(TOLD)];
    Err(ProfileError::Erofs {
        path: image.to_owned(),
        said: printable(said),
    })
}

/// The contents are written last and the folder appears in one step. What a crash leaves unwritten of it shows as damage.
fn publish(staging: &Path, contents: &Contents, folder: &Path) -> Result<(), ProfileError> {
    remove(&staging.join("tree"))?;
    let list = staging.join("profile.json");
    let text = serde_json::to_vec_pretty(contents).map_err(io::Error::other);
    text.and_then(|text| std::fs::write(&list, text))
        .map_err(|source| ProfileError::File {
            operation: "write",
            path: list,
            source,
        })?;
    // A damaged one: sandboxes that run from it keep their open files.
    remove(folder)?;
    std::fs::rename(staging, folder).map_err(|source| ProfileError::File {
        operation: "publish",
        path: folder.to_owned(),
        source,
    })
}

fn remove(folder: &Path) -> Result<(), ProfileError> {
    match std::fs::remove_dir_all(folder) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(ProfileError::File {
            operation: "remove",
            path: folder.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        dir: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("made");
            std::fs::write(dir.path().join("runsc"), "runsc").expect("written");
            std::fs::write(dir.path().join("init"), "init").expect("written");
            Self { dir }
        }

        async fn install(&self, state: &str) -> Profile {
            Profile::install(
                &self.dir.path().join(state),
                &self.dir.path().join("runsc"),
                &self.dir.path().join("init"),
            )
            .await
            .expect("installed (needs mkfs.erofs of erofs-utils)")
        }
    }

    fn erofs(profile: &Profile) -> Vec<u8> {
        std::fs::read(profile.init_erofs()).expect("there")
    }

    #[tokio::test]
    async fn equal_programs_give_equal_profiles_and_bytes() {
        let fixture = Fixture::new();
        let (one, two) = (fixture.install("a").await, fixture.install("b").await);
        assert_eq!(one.hash(), two.hash());
        assert_eq!(erofs(&one), erofs(&two));
        assert!(!one.folder.join("tree").exists());
        let left: Vec<_> = std::fs::read_dir(fixture.dir.path().join("a/profiles"))
            .expect("there")
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        assert_eq!(left, [one.hash()]);
    }

    #[tokio::test]
    async fn an_intact_profile_is_used_again_and_a_damaged_one_is_made_anew() {
        let fixture = Fixture::new();
        let profile = fixture.install("a").await;
        let bytes = erofs(&profile);
        let written = |profile: &Profile| {
            profile
                .runsc()
                .metadata()
                .expect("there")
                .modified()
                .expect("known")
        };
        let first = written(&profile);
        assert_eq!(written(&fixture.install("a").await), first);
        for damage in ["runsc", "init.erofs", "profile.json"] {
            let path = profile.folder.join(damage);
            std::fs::remove_file(&path).expect("removed");
            std::fs::write(&path, "x").expect("written");
            assert_eq!(fixture.install("a").await, profile, "{damage}");
            assert_eq!(erofs(&profile), bytes, "{damage}");
            assert_eq!(std::fs::read(profile.runsc()).expect("there"), b"runsc");
        }
    }

    #[tokio::test]
    async fn another_program_is_another_profile() {
        let fixture = Fixture::new();
        let one = fixture.install("a").await;
        std::fs::write(fixture.dir.path().join("init"), "other").expect("written");
        let two = fixture.install("a").await;
        assert_ne!(one.hash(), two.hash());
        assert!(one.runsc().exists() && two.runsc().exists());
    }
}
