//! The manifest directory, followed on a real file system.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a whole file of tests; the functions beside them are not marked as such

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cloche_agent::source::{
    Desired, ManifestDirectory, PutError, RemoveError, SandboxKey, SourceError,
};
use cloche_crds::ConditionReason;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

struct Followed {
    place: tempfile::TempDir,
    directory: Arc<ManifestDirectory>,
    desired: watch::Receiver<Desired>,
    stop: CancellationToken,
    running: JoinHandle<Result<(), SourceError>>,
}

impl Followed {
    fn new() -> Self {
        Self::of(tempfile::tempdir().unwrap())
    }

    fn of(place: tempfile::TempDir) -> Self {
        let directory = Arc::new(ManifestDirectory::open(place.path(), Vec::new()).unwrap());
        let stop = CancellationToken::new();
        let running = tokio::spawn(Arc::clone(&directory).run(stop.clone()));
        let desired = directory.desired();
        Self {
            place,
            directory,
            desired,
            stop,
            running,
        }
    }

    fn path(&self) -> &Path {
        self.place.path()
    }

    async fn wait(&mut self, holds: impl FnMut(&Desired) -> bool) -> Desired {
        let wait = self.desired.wait_for(holds);
        let seen = tokio::time::timeout(Duration::from_secs(20), wait).await;
        let seen = seen.map(|seen| seen.unwrap().clone());
        seen.unwrap_or_else(|_| panic!("never so; last: {:#?}", self.directory.desired().borrow()))
    }

    async fn end(self) {
        self.stop.cancel();
        self.running.await.unwrap().unwrap();
    }
}

fn manifest(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: cloche.dev/v1alpha1\nkind: Sandbox\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
    )
}

fn key(name: &str) -> SandboxKey {
    SandboxKey {
        namespace: "default".to_owned(),
        name: name.to_owned(),
    }
}

fn has(desired: &Desired, name: &str) -> bool {
    desired.sandboxes.contains_key(&key(name))
}

#[tokio::test]
async fn what_is_there_at_the_start_is_desired_at_once() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("a.yaml"), manifest("a", "image: x")).unwrap();
    std::fs::write(place.path().join("b.yaml"), "typo").unwrap();
    std::fs::write(place.path().join(".cloche-writing.c.yaml"), "half").unwrap();
    let followed = Followed::of(place);
    let desired = followed.desired.borrow().clone();
    assert!(has(&desired, "a"));
    assert_eq!(desired.invalid.len(), 1);
    assert!(!followed.path().join(".cloche-writing.c.yaml").exists());
    followed.end().await;
}

#[tokio::test]
async fn files_are_seen_as_they_come_change_and_go() {
    let mut followed = Followed::new();
    let file = followed.path().join("a.yaml");
    std::fs::write(&file, manifest("a", "image: x")).unwrap();
    followed.wait(|desired| has(desired, "a")).await;

    std::fs::write(&file, "not: [yaml").unwrap();
    let desired = followed.wait(|desired| !desired.invalid.is_empty()).await;
    assert_eq!(
        desired.sandboxes[&key("a")].effective.image.to_string(),
        "docker.io/library/x:latest"
    );
    assert_eq!(desired.invalid[0].keeps, Some(key("a")));

    std::fs::write(&file, manifest("a", "image: y")).unwrap();
    let immutable = |desired: &Desired| {
        desired
            .invalid
            .iter()
            .any(|invalid| invalid.reason == ConditionReason::Immutable)
    };
    assert!(has(&followed.wait(immutable).await, "a"));

    std::fs::write(&file, manifest("a", "image: x, lifecycle: {ttlSeconds: 9}")).unwrap();
    let changed = followed
        .wait(|desired| desired.sandboxes[&key("a")].effective.ttl.is_some())
        .await;
    assert!(changed.invalid.is_empty());
    assert_eq!(changed.sandboxes[&key("a")].incarnation, 1);

    std::fs::remove_file(&file).unwrap();
    followed.wait(|desired| desired.sandboxes.is_empty()).await;
    followed.end().await;
}

#[tokio::test]
async fn a_writer_that_pauses_half_way_is_waited_for() {
    use std::io::Write;
    let mut followed = Followed::new();
    let mut slow = std::fs::File::create(followed.path().join("slow.yaml")).unwrap();
    slow.write_all(manifest("slow", "image: x").as_bytes())
        .unwrap();
    // Another file makes the directory to be looked at meanwhile.
    std::fs::write(followed.path().join("b.yaml"), manifest("b", "image: x")).unwrap();
    let seen = followed.wait(|desired| has(desired, "b")).await;
    assert!(!has(&seen, "slow"));
    slow.write_all(b"# the end\n").unwrap();
    drop(slow);
    followed.wait(|desired| has(desired, "slow")).await;
    followed.end().await;
}

#[tokio::test]
async fn an_editor_that_takes_the_file_away_and_puts_it_back_disturbs_nothing() {
    let mut followed = Followed::new();
    let file = followed.path().join("a.yaml");
    std::fs::write(&file, manifest("a", "image: x")).unwrap();
    followed.wait(|desired| has(desired, "a")).await;
    for second in 1..=5 {
        if second % 2 == 0 {
            std::fs::rename(&file, followed.path().join("a.yaml~")).unwrap();
        } else {
            std::fs::remove_file(&file).unwrap();
        }
        // Lets the agent look at the gap: it has to see this one first.
        let between = followed.path().join("between.yaml");
        std::fs::write(&between, manifest(&format!("between-{second}"), "image: x")).unwrap();
        followed
            .wait(|desired| has(desired, &format!("between-{second}")))
            .await;
        let spec = format!("image: x, lifecycle: {{ttlSeconds: {second}}}");
        std::fs::write(&file, manifest("a", &spec)).unwrap();
        let ttl = Some(Duration::from_secs(second));
        let seen = followed
            .wait(|desired| {
                assert!(has(desired, "a"), "disturbed");
                desired.sandboxes[&key("a")].effective.ttl == ttl
            })
            .await;
        assert_eq!(seen.sandboxes[&key("a")].incarnation, 1);
    }
    followed.end().await;
}

#[tokio::test]
async fn many_files_at_once_are_all_seen_and_status_files_are_not() {
    let mut followed = Followed::new();
    for number in 0..200 {
        let name = format!("n-{number}");
        let temporary = followed.path().join(format!(".{name}"));
        std::fs::write(&temporary, manifest(&name, "image: x")).unwrap();
        std::fs::rename(&temporary, followed.path().join(format!("{name}.yaml"))).unwrap();
        std::fs::write(
            followed.path().join(format!("{name}.status.yaml")),
            "phase: Running",
        )
        .unwrap();
    }
    let seen = followed
        .wait(|desired| desired.sandboxes.len() == 200)
        .await;
    assert!(seen.invalid.is_empty());
    for number in 0..200 {
        std::fs::remove_file(followed.path().join(format!("n-{number}.yaml"))).unwrap();
    }
    followed.wait(|desired| desired.sandboxes.is_empty()).await;
    followed.end().await;
}

#[tokio::test]
async fn what_is_put_is_desired_when_put_returns() {
    let followed = Followed::new();
    let text = manifest("a", "image: x");
    let put = |text: &str, replace| followed.directory.put(text.as_bytes(), replace);
    assert_eq!(put(&text, false).unwrap(), key("a"));
    assert!(has(&followed.desired.borrow(), "a"));
    assert_eq!(
        std::fs::read_to_string(followed.path().join("a.yaml")).unwrap(),
        text
    );

    let error = put(&text, false).unwrap_err();
    assert!(
        matches!(&error, PutError::Exists { file, .. } if file == "a.yaml"),
        "{error}"
    );
    let error = put(&manifest("a", "image: y"), true).unwrap_err();
    assert!(matches!(error, PutError::Immutable { .. }), "{error}");
    assert!(
        error.to_string().contains("spec.image: cannot change"),
        "{error}"
    );
    let error = put("kind: Pod", true).unwrap_err();
    assert!(matches!(error, PutError::Invalid(_)), "{error}");
    assert_eq!(
        std::fs::read_to_string(followed.path().join("a.yaml")).unwrap(),
        text
    );

    put(&manifest("a", "image: x, lifecycle: {ttlSeconds: 7}"), true).unwrap();
    assert!(
        followed.desired.borrow().sandboxes[&key("a")]
            .effective
            .ttl
            .is_some()
    );
    followed.end().await;
}

#[tokio::test]
async fn what_is_put_never_overwrites_another_sandboxes_file() {
    let followed = Followed::new();
    std::fs::write(followed.path().join("a.yml"), manifest("b", "image: x")).unwrap();
    std::fs::write(followed.path().join("c.yaml"), "typo").unwrap();
    for (name, wanted) in [("a", "a.yml"), ("c", "c.yaml")] {
        let error = followed
            .directory
            .put(manifest(name, "image: x").as_bytes(), true)
            .unwrap_err();
        assert!(
            matches!(&error, PutError::FileTaken { file, .. } if file == wanted),
            "{error}"
        );
    }
    // A replacement goes to the file that holds the sandbox, also if that is broken by now.
    std::fs::write(followed.path().join("a.yml"), "typo").unwrap();
    let text = manifest("b", "image: x");
    followed.directory.put(text.as_bytes(), true).unwrap();
    assert_eq!(
        std::fs::read_to_string(followed.path().join("a.yml")).unwrap(),
        text
    );
    followed.end().await;
}

#[tokio::test]
async fn what_is_removed_is_gone_at_once_and_can_come_again_as_another() {
    let followed = Followed::new();
    let directory = &followed.directory;
    directory
        .put(manifest("a", "image: x").as_bytes(), false)
        .unwrap();
    std::fs::write(followed.path().join("copy.yaml"), manifest("a", "image: x")).unwrap();
    directory.remove(&key("a")).unwrap();
    assert!(followed.desired.borrow().sandboxes.is_empty());
    assert!(
        !followed.path().join("a.yaml").exists() && !followed.path().join("copy.yaml").exists()
    );
    let error = directory.remove(&key("a")).unwrap_err();
    assert!(matches!(error, RemoveError::NotFound(_)), "{error}");
    // Another image: it is no update of the one that was removed.
    directory
        .put(manifest("a", "image: y").as_bytes(), false)
        .unwrap();
    let desired = followed.desired.borrow().clone();
    assert_eq!(desired.sandboxes[&key("a")].object.spec.image, "y");
    assert_eq!(desired.sandboxes[&key("a")].incarnation, 2);
    followed.end().await;
}

#[tokio::test]
async fn a_directory_that_is_taken_away_ends_the_agent_and_no_sandbox() {
    for taken in ["removed", "moved"] {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("manifests");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("a.yaml"), manifest("a", "image: x")).unwrap();
        let directory = Arc::new(ManifestDirectory::open(&path, Vec::new()).unwrap());
        let desired = directory.desired();
        let running = tokio::spawn(Arc::clone(&directory).run(CancellationToken::new()));
        if taken == "removed" {
            std::fs::remove_dir_all(&path).unwrap();
        } else {
            std::fs::rename(&path, parent.path().join("elsewhere")).unwrap();
        }
        let ended = tokio::time::timeout(Duration::from_secs(20), running)
            .await
            .expect(taken);
        let error = ended.unwrap().unwrap_err();
        assert!(matches!(error, SourceError::Gone { .. }), "{error}");
        assert!(has(&desired.borrow(), "a"), "{taken}");
    }
}

#[tokio::test]
async fn a_directory_that_is_none_is_told() {
    let place = tempfile::tempdir().unwrap();
    let error = ManifestDirectory::open(&place.path().join("none"), Vec::new()).unwrap_err();
    assert!(matches!(error, SourceError::Folder(_)), "{error}");
    std::fs::write(place.path().join("file"), "").unwrap();
    assert!(ManifestDirectory::open(&place.path().join("file"), Vec::new()).is_err());
}
