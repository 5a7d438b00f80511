//! Status files: what became of each manifest, written beside it as `STEM.status.yaml`.
//!
//! A status file is what `kubectl get -o yaml` would show without the spec, which stands in the manifest. It holds nothing that the
//! agent could not write again from its records: it is replaced as a whole, never read back, and not forced to disk. The
//! publisher writes the newest of each file, only where it differs from what is there, and tries for ever.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cloche_crds::condition::{Condition, bounded, set_condition};
use cloche_crds::sandbox::{API_VERSION, KIND};
use cloche_crds::{ConditionStatus, ConditionType, Sandbox, SandboxStatus};
use serde::Serialize;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::source::{Folder, FolderError, InvalidManifest, MAX_NAME};

/// Ends the name of every status file.
pub const ENDING: &str = ".status.yaml";
/// Most bytes of a status file that is compared with what is to be written; a larger one is not ours and is replaced.
const MAX_STATUS: usize = 256 * 1024;
/// How long changes are gathered before files are written.
const GATHER: Duration = Duration::from_millis(20);
/// When a file that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The name of a manifest without its ending `.yaml`, `.yml` or `.json`; the whole name where it has none.
pub fn stem(manifest: &str) -> &str {
    [".yaml", ".yml", ".json"]
        .into_iter()
        .find_map(|ending| {
            manifest
                .strip_suffix(ending)
                .filter(|stem| !stem.is_empty())
        })
        .unwrap_or(manifest)
}

/// The name of the status file of a manifest.
pub fn file_name(manifest: &str) -> String {
    format!("{}{ENDING}", stem(manifest))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a, S> {
    api_version: &'static str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<ShownMetadata<'a>>,
    status: S,
}

/// There is no sandbox, and so no phase.
#[derive(Serialize)]
struct ShownConditions {
    conditions: Vec<Condition>,
}

#[derive(Serialize)]
struct ShownMetadata<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<i64>,
}

/// The status file of an object: its identity and its status, every message bounded.
pub fn render(object: &Sandbox) -> Result<String, serde_saphyr::SerializeError> {
    let metadata = &object.metadata;
    let mut status = object.status.clone().unwrap_or_default();
    for condition in &mut status.conditions {
        condition.message = bounded(&condition.message);
    }
    if let Some(termination) = &mut status.termination {
        termination.message = bounded(&termination.message);
    }
    serde_saphyr::to_string(&Shown {
        api_version: API_VERSION,
        kind: KIND,
        metadata: Some(ShownMetadata {
            name: metadata.name.as_deref(),
            namespace: metadata.namespace.as_deref(),
            uid: metadata.uid.as_deref(),
            generation: metadata.generation,
        }),
        status,
    })
}

/// The status file of a manifest that stands for no sandbox: why. One that keeps a sandbox shows the same condition
/// ([`set_invalid`]) in that sandbox's status instead.
pub fn render_invalid(invalid: &InvalidManifest) -> Result<String, serde_saphyr::SerializeError> {
    let mut status = SandboxStatus::default();
    set_invalid(&mut status, invalid);
    serde_saphyr::to_string(&Shown {
        api_version: API_VERSION,
        kind: KIND,
        metadata: None,
        status: ShownConditions {
            conditions: status.conditions,
        },
    })
}

/// Sets Accepted=False by what is wrong with a manifest.
pub fn set_invalid(status: &mut SandboxStatus, invalid: &InvalidManifest) {
    set_condition(
        &mut status.conditions,
        ConditionType::Accepted,
        ConditionStatus::False,
        invalid.reason,
        &invalid.message,
        invalid.since,
    );
}

/// The status files of one directory.
#[derive(Debug)]
pub struct StatusFiles {
    folder: Folder,
    /// What is known to be in each file.
    written: BTreeMap<String, String>,
}

impl StatusFiles {
    /// Opens the directory of the manifests.
    pub fn open(manifests: &Path) -> Result<Self, FolderError> {
        Ok(Self {
            folder: Folder::open(manifests)?,
            written: BTreeMap::new(),
        })
    }

    /// Puts `content` into the status file of `manifest`; whether anything had to be written. Blocks on the disk.
    pub fn write(&mut self, manifest: &str, content: &str) -> Result<bool, FolderError> {
        let name = file_name(manifest);
        let same = match self.written.get(&name) {
            Some(written) => written == content,
            None => {
                matches!(self.folder.read(&name, MAX_STATUS), Ok(Some(bytes)) if bytes == content.as_bytes())
            }
        };
        if !same {
            self.folder.replace(&name, content.as_bytes(), false)?;
        }
        self.written.insert(name, content.to_owned());
        Ok(!same)
    }

    /// Takes the status file of `manifest` away; none is no error. Blocks on the disk.
    pub fn remove(&mut self, manifest: &str) -> Result<(), FolderError> {
        let name = file_name(manifest);
        self.written.remove(&name);
        self.folder.remove(&name).map(drop)
    }

    /// Takes away every status file that belongs to none of `manifests`. Blocks on the disk.
    pub fn sweep<'a>(
        &mut self,
        manifests: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), FolderError> {
        let wanted: std::collections::BTreeSet<String> =
            manifests.into_iter().map(file_name).collect();
        for name in self.folder.names()? {
            if name.ends_with(ENDING) && !name.starts_with('.') && !wanted.contains(&name) {
                self.written.remove(&name);
                self.folder.remove(&name)?;
            }
        }
        Ok(())
    }
}

/// Takes in what status files should hold and returns at once; [`run`](Self::run) brings it to disk.
#[derive(Debug, Default)]
pub struct Publisher {
    /// By status file name; the newest wins. `None`: no such file.
    pending: Mutex<BTreeMap<String, Pending>>,
    news: Notify,
}

#[derive(Clone, Debug)]
struct Pending {
    manifest: String,
    content: Option<String>,
}

impl Publisher {
    /// Wants `content` in the status file of `manifest`, or no such file. A manifest of a name over [`MAX_NAME`] has none.
    pub fn publish(&self, manifest: &str, content: Option<String>) {
        if manifest.len() > MAX_NAME {
            return;
        }
        let pending = Pending {
            manifest: manifest.to_owned(),
            content,
        };
        self.pending().insert(file_name(manifest), pending);
        self.news.notify_one();
    }

    /// Writes until `stop`, then what is still pending once more.
    pub async fn run(self: Arc<Self>, files: StatusFiles, stop: CancellationToken) {
        let files = Arc::new(Mutex::new(files));
        loop {
            let stopping = stop.is_cancelled();
            let failed = self.write_pending(&files).await;
            if stopping {
                return;
            }
            // Cancel safe: each arm only waits.
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.news.notified() => {
                    // A sandbox that starts changes several times in this; the last is what counts.
                    tokio::time::sleep(GATHER).await;
                }
                () = tokio::time::sleep(RETRY), if failed => {}
            }
        }
    }

    /// Whether anything is left to be tried again.
    async fn write_pending(&self, files: &Arc<Mutex<StatusFiles>>) -> bool {
        let batch = std::mem::take(&mut *self.pending());
        if batch.is_empty() {
            return false;
        }
        let files = Arc::clone(files);
        let again = batch.clone();
        let written = tokio::task::spawn_blocking(move || {
            let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
            let failed = batch.into_iter().filter(|(_, pending)| {
                let done = match &pending.content {
                    Some(content) => files.write(&pending.manifest, content).map(drop),
                    None => files.remove(&pending.manifest),
                };
                if let Err(error) = &done {
                    tracing::warn!(
                        manifest = pending.manifest,
                        error = error as &dyn std::error::Error,
                        "its status is not on disk; trying again"
                    );
                }
                done.is_err()
            });
            failed.collect::<BTreeMap<_, _>>()
        });
        let failed = written.await.unwrap_or(again);
        let any = !failed.is_empty();
        let mut pending = self.pending();
        for (name, old) in failed {
            pending.entry(name).or_insert(old);
        }
        any
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use cloche_crds::{ConditionReason, Phase};
    use jiff::Timestamp;

    use super::*;
    use crate::source::SandboxKey;

    fn invalid() -> InvalidManifest {
        InvalidManifest {
            file: "a.yaml".to_owned(),
            keeps: None,
            reason: ConditionReason::Invalid,
            message: "a.yaml: spec.image: is empty\nspec.shell: ends with /".to_owned(),
            since: Timestamp::from_second(1_800_000_000).unwrap(),
        }
    }

    #[test]
    fn each_manifest_has_its_status_file() {
        for (manifest, status) in [
            ("a.yaml", "a.status.yaml"),
            ("a.yml", "a.status.yaml"),
            ("a.json", "a.status.yaml"),
            ("a.b.yaml", "a.b.status.yaml"),
            ("a", "a.status.yaml"),
            (".yaml", ".yaml.status.yaml"),
        ] {
            assert_eq!(file_name(manifest), status);
        }
    }

    #[test]
    fn a_status_is_shown_without_its_spec() {
        let mut object = Sandbox::new("demo", cloche_crds::SandboxSpec::default());
        object.metadata.namespace = Some("default".to_owned());
        object.metadata.uid = Some("3d0f8c86-8a9a-4a5e-9d55-3f4f4c5d0d11".to_owned());
        object.metadata.generation = Some(2);
        let mut status = SandboxStatus {
            phase: Phase::Running,
            ..SandboxStatus::default()
        };
        let kept = InvalidManifest {
            keeps: Some(SandboxKey {
                namespace: "default".to_owned(),
                name: "demo".to_owned(),
            }),
            ..invalid()
        };
        set_invalid(&mut status, &kept);
        object.status = Some(status);
        insta::assert_snapshot!(render(&object).unwrap());
    }

    #[test]
    fn an_invalid_manifest_says_why() {
        insta::assert_snapshot!(render_invalid(&invalid()).unwrap());
    }

    #[test]
    fn a_status_file_is_bounded() {
        let long = InvalidManifest {
            message: "x".repeat(1_000_000),
            ..invalid()
        };
        assert!(render_invalid(&long).unwrap().len() < 8192);
    }

    #[test]
    fn only_what_differs_is_written() {
        let place = tempfile::tempdir().unwrap();
        let mut files = StatusFiles::open(place.path()).unwrap();
        assert!(files.write("a.yaml", "one").unwrap());
        assert!(!files.write("a.yaml", "one").unwrap());
        assert!(files.write("a.yaml", "two").unwrap());
        // A new agent finds what is there.
        let mut files = StatusFiles::open(place.path()).unwrap();
        assert!(!files.write("a.yaml", "two").unwrap());
        assert_eq!(
            std::fs::read_to_string(place.path().join("a.status.yaml")).unwrap(),
            "two"
        );
        files.remove("a.yaml").unwrap();
        files.remove("a.yaml").unwrap();
        assert!(files.write("a.yaml", "two").unwrap());
    }

    #[test]
    fn status_files_without_manifest_are_swept_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let mut files = StatusFiles::open(place.path()).unwrap();
        for manifest in ["a.yaml", "b.yml", "c.json"] {
            files.write(manifest, "x").unwrap();
            std::fs::write(place.path().join(manifest), "x").unwrap();
        }
        files.sweep(["b.yml"]).unwrap();
        let mut left = files.folder.names().unwrap();
        left.sort();
        assert_eq!(left, ["a.yaml", "b.status.yaml", "b.yml", "c.json"]);
    }

    #[tokio::test]
    async fn the_newest_wins_and_a_full_disk_is_tried_again() {
        let place = tempfile::tempdir().unwrap();
        let publisher = Arc::new(Publisher::default());
        // A folder in the way stands for a disk that refuses.
        let obstacle = place.path().join("a.status.yaml");
        std::fs::create_dir(&obstacle).unwrap();
        publisher.publish("a.yaml", Some("old".to_owned()));
        publisher.publish("b.yaml", Some("other".to_owned()));
        let stop = CancellationToken::new();
        let files = StatusFiles::open(place.path()).unwrap();
        let running = tokio::spawn(Arc::clone(&publisher).run(files, stop.clone()));
        let other = place.path().join("b.status.yaml");
        wait_until(|| other.exists()).await;
        publisher.publish("a.yaml", Some("new".to_owned()));
        std::fs::remove_dir(&obstacle).unwrap();
        wait_until(|| std::fs::read_to_string(&obstacle).is_ok_and(|text| text == "new")).await;
        publisher.publish("b.yaml", None);
        publisher.publish("c.yaml", Some("last".to_owned()));
        stop.cancel();
        running.await.unwrap();
        assert!(!other.exists());
        assert_eq!(
            std::fs::read_to_string(place.path().join("c.status.yaml")).unwrap(),
            "last"
        );
    }

    async fn wait_until(mut holds: impl FnMut() -> bool) {
        let wait = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait)
            .await
            .expect("it never came to hold");
    }
}
