//! What is remembered of the directory between two looks at it, so that only what changed is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::desired::FileState;
use super::folder::{Folder, FolderError, Stamp};
use super::{GRACE, MAX_MANIFEST, MAX_NAME, QUIET, decode, is_manifest};
use crate::told::chain;

/// What happened to one file, as inotify tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Created or modified; its writer may not have closed it.
    Writing,
    /// Closed by its writer, moved in, moved out or deleted.
    Settled,
    /// Its mode or owner changed, by which it may have become readable.
    Touched,
}

/// The memory. Times are since boot.
#[derive(Debug, Default)]
pub(super) struct Scan {
    read: BTreeMap<String, Read>,
    /// Files whose writer was at work at that time.
    writing: BTreeMap<String, Duration>,
    /// Files that have to be read again, whatever their stamp says: two writes can fall into one tick of the clock.
    stale: BTreeSet<String>,
    /// Since when files of desired sandboxes are gone.
    gone: BTreeMap<String, Duration>,
}

#[derive(Debug)]
struct Read {
    stamp: Stamp,
    state: FileState,
}

/// What the directory says, and when that may change without any event.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) files: BTreeMap<String, FileState>,
    pub(super) look_again_at: Option<Duration>,
}

impl Scan {
    /// Notes what happened to a file; whether it matters.
    pub(super) fn note(&mut self, file: &str, change: Change, now: Duration) -> bool {
        if !is_manifest(file) {
            return false;
        }
        match change {
            Change::Writing => {
                self.writing.insert(file.to_owned(), now);
            }
            Change::Settled => {
                self.writing.remove(file);
                self.stale.insert(file.to_owned());
            }
            Change::Touched => {
                self.stale.insert(file.to_owned());
            }
        }
        true
    }

    /// Forgets everything that was read: events were lost.
    pub(super) fn forget(&mut self) {
        self.read.clear();
        self.writing.clear();
    }

    /// Looks at every file. `held` are the files of desired sandboxes: they may be gone for a moment.
    pub(super) fn look(
        &mut self,
        folder: &Folder,
        held: &BTreeSet<String>,
        now: Duration,
    ) -> Result<Seen, FolderError> {
        let mut seen = Seen {
            files: BTreeMap::new(),
            look_again_at: None,
        };
        for name in folder.names()?.into_iter().filter(|name| is_manifest(name)) {
            if let Some(state) = self.look_at(&name, folder, now, &mut seen.look_again_at) {
                seen.files.insert(name, state);
            }
        }
        self.read.retain(|name, _| seen.files.contains_key(name));
        self.writing.retain(|name, _| seen.files.contains_key(name));
        self.stale.clear();
        self.gone
            .retain(|name, _| held.contains(name) && !seen.files.contains_key(name));
        for name in held {
            if seen.files.contains_key(name) {
                continue;
            }
            let until = *self.gone.entry(name.clone()).or_insert(now) + GRACE;
            if now < until {
                seen.files.insert(name.clone(), FileState::Unsettled);
                sooner(&mut seen.look_again_at, until);
            }
        }
        Ok(seen)
    }

    /// What one file says; `None` where it is gone by now.
    fn look_at(
        &mut self,
        name: &str,
        folder: &Folder,
        now: Duration,
        look_again_at: &mut Option<Duration>,
    ) -> Option<FileState> {
        if name.len() > MAX_NAME {
            let length = name.len();
            return Some(FileState::Invalid(format!(
                "its name has {length} bytes; at most {MAX_NAME} are allowed: rename it"
            )));
        }
        if let Some(since) = self.writing.get(name) {
            let until = *since + QUIET;
            if now < until {
                sooner(look_again_at, until);
                let last = self.read.get(name).map(|read| read.state.clone());
                return Some(last.unwrap_or(FileState::Unsettled));
            }
            self.writing.remove(name);
            self.stale.insert(name.to_owned());
        }
        let stamp = match folder.stamp(name) {
            Ok(stamp) => stamp?,
            Err(error) => return Some(FileState::Invalid(chain(&error))),
        };
        let known = self
            .read
            .get(name)
            .filter(|read| read.stamp == stamp && !self.stale.contains(name));
        if let Some(read) = known {
            return Some(read.state.clone());
        }
        let state = match folder.read(name, MAX_MANIFEST) {
            Ok(bytes) => match decode(&bytes?) {
                Ok(manifest) => FileState::Valid(Arc::new(manifest)),
                Err(error) => FileState::Invalid(chain(&error)),
            },
            // Not kept: the next look may find it readable with the same stamp.
            Err(error) => return Some(FileState::Invalid(chain(&error))),
        };
        self.read.insert(
            name.to_owned(),
            Read {
                stamp,
                state: state.clone(),
            },
        );
        Some(state)
    }
}

fn sooner(at: &mut Option<Duration>, candidate: Duration) {
    *at = Some(at.map_or(candidate, |at| at.min(candidate)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Duration = Duration::from_secs(1000);

    struct Place {
        path: tempfile::TempDir,
        folder: Folder,
        scan: Scan,
    }

    impl Place {
        fn new() -> Self {
            let path = tempfile::tempdir().unwrap();
            let folder = Folder::open(path.path()).unwrap();
            Self {
                path,
                folder,
                scan: Scan::default(),
            }
        }

        fn write(&self, file: &str, name: &str) {
            let text = format!(
                "apiVersion: cloche.dev/v1alpha1\nkind: Sandbox\nmetadata: {{name: {name}}}\nspec: {{image: x}}"
            );
            std::fs::write(self.path.path().join(file), text).unwrap();
        }

        fn look(
            &mut self,
            held: &[&str],
            now: Duration,
        ) -> (Vec<(String, String)>, Option<Duration>) {
            let held = held.iter().map(|&file| file.to_owned()).collect();
            let seen = self.scan.look(&self.folder, &held, now).unwrap();
            let told = seen.files.into_iter().map(|(file, state)| match state {
                FileState::Valid(manifest) => (file, manifest.key.name.clone()),
                FileState::Invalid(message) => (file, message),
                FileState::Unsettled => (file, "…".to_owned()),
            });
            (told.collect(), seen.look_again_at)
        }
    }

    fn told(file: &str, says: &str) -> Vec<(String, String)> {
        vec![(file.to_owned(), says.to_owned())]
    }

    #[test]
    fn only_manifests_are_looked_at() {
        let mut place = Place::new();
        for file in [
            "a.yaml",
            "b.yml",
            "c.json",
            ".d.yaml",
            "e.status.yaml",
            "f.yaml~",
            "g.txt",
            "4913",
            ".yaml",
            "#h.yaml#",
        ] {
            place.write(file, "x");
        }
        let (seen, again) = place.look(&[], AT);
        assert_eq!(
            seen.iter().map(|(file, _)| file).collect::<Vec<_>>(),
            ["a.yaml", "b.yml", "c.json"]
        );
        assert_eq!(again, None);
    }

    #[test]
    fn what_is_being_written_is_left_until_it_is_closed_or_quiet() {
        let mut place = Place::new();
        place.write("a.yaml", "half");
        assert!(place.scan.note("a.yaml", Change::Writing, AT));
        assert_eq!(place.look(&[], AT), (told("a.yaml", "…"), Some(AT + QUIET)));
        // A change of its mode is not the end of its writing.
        place.scan.note("a.yaml", Change::Touched, AT);
        assert_eq!(place.look(&[], AT).0, told("a.yaml", "…"));
        place.scan.note("a.yaml", Change::Settled, AT);
        assert_eq!(place.look(&[], AT), (told("a.yaml", "half"), None));
        // What was read before goes on while it is written again.
        place.scan.note("a.yaml", Change::Writing, AT);
        place.write("a.yaml", "whole");
        assert_eq!(place.look(&[], AT).0, told("a.yaml", "half"));
        assert_eq!(place.look(&[], AT + QUIET), (told("a.yaml", "whole"), None));
    }

    #[test]
    fn a_file_of_a_sandbox_may_be_gone_for_a_moment() {
        let mut place = Place::new();
        place.write("a.yaml", "a");
        place.look(&[], AT);
        std::fs::remove_file(place.path.path().join("a.yaml")).unwrap();
        assert_eq!(
            place.look(&["a.yaml"], AT),
            (told("a.yaml", "…"), Some(AT + GRACE))
        );
        place.write("a.yaml", "b");
        assert_eq!(
            place.look(&["a.yaml"], AT + GRACE / 2),
            (told("a.yaml", "b"), None)
        );
        std::fs::remove_file(place.path.path().join("a.yaml")).unwrap();
        // The grace begins anew.
        assert_eq!(place.look(&["a.yaml"], AT + GRACE).0, told("a.yaml", "…"));
        assert_eq!(place.look(&["a.yaml"], AT + GRACE * 2), (vec![], None));
    }

    #[test]
    fn a_file_of_no_sandbox_is_gone_at_once() {
        let mut place = Place::new();
        std::fs::write(place.path.path().join("a.yaml"), "typo").unwrap();
        assert_eq!(place.look(&[], AT).0.len(), 1);
        std::fs::remove_file(place.path.path().join("a.yaml")).unwrap();
        assert_eq!(place.look(&[], AT), (vec![], None));
    }

    #[test]
    fn what_cannot_be_read_says_why_until_it_can() {
        let mut place = Place::new();
        let secret = tempfile::NamedTempFile::new().unwrap();
        let link = place.path.path().join("a.yaml");
        std::os::unix::fs::symlink(secret.path(), &link).unwrap();
        let (seen, _) = place.look(&[], AT);
        assert!(
            seen[0]
                .1
                .ends_with("a.yaml is not a regular file: put the file itself here, no link to it"),
            "{seen:?}"
        );
        std::fs::remove_file(&link).unwrap();
        let large = std::fs::File::create(&link).unwrap();
        large.set_len(MAX_MANIFEST as u64 + 1).unwrap();
        let (seen, _) = place.look(&[], AT);
        assert!(
            seen[0]
                .1
                .contains("has 1048577 bytes; at most 1048576 are allowed"),
            "{seen:?}"
        );
        place.write("a.yaml", "a");
        place.scan.note("a.yaml", Change::Settled, AT);
        assert_eq!(place.look(&[], AT).0, told("a.yaml", "a"));
    }

    #[test]
    fn a_name_that_leaves_no_room_for_its_status_is_told() {
        let mut place = Place::new();
        let name = format!("{}.yaml", "n".repeat(MAX_NAME));
        place.write(&name, "a");
        let (seen, _) = place.look(&[], AT);
        assert!(
            seen[0].1.ends_with("at most 200 are allowed: rename it"),
            "{seen:?}"
        );
    }

    #[test]
    fn after_lost_events_everything_is_read_again() {
        let mut place = Place::new();
        place.write("a.yaml", "a");
        place.look(&[], AT);
        place.scan.note("a.yaml", Change::Writing, AT);
        place.scan.forget();
        assert!(place.scan.read.is_empty());
        assert_eq!(place.look(&[], AT), (told("a.yaml", "a"), None));
    }

    #[test]
    fn other_files_do_not_matter() {
        let mut scan = Scan::default();
        for file in [
            "a.status.yaml",
            ".cloche-writing.a.yaml",
            ".a.yaml.swp",
            "a.yaml~",
        ] {
            assert!(!scan.note(file, Change::Settled, AT), "{file}");
        }
    }
}
