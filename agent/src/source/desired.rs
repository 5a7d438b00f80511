//! From what the files say to what is desired: pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cloche_crds::ConditionReason;
use cloche_crds::rules::{Violations, check_update};
use jiff::Timestamp;

use super::{Desired, DesiredSandbox, InvalidManifest, Manifest, SandboxKey};

/// What one file says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FileState {
    /// One valid object.
    Valid(Arc<Manifest>),
    /// Why there is none.
    Invalid(String),
    /// Nothing at present: it is being written, or gone for less than the grace.
    Unsettled,
}

impl Desired {
    /// What is desired after `self`, now that `files` are all that there are.
    ///
    /// `removed` are sandboxes that were deleted by request: nothing of them is kept, and a file that has their name again
    /// means a new one. `next_incarnation` is counted up for each new sandbox.
    pub(super) fn next(
        &self,
        files: &BTreeMap<String, FileState>,
        removed: &BTreeSet<SandboxKey>,
        next_incarnation: &mut u64,
        now: Timestamp,
    ) -> Self {
        let mut next = Self::default();
        let mut claims: BTreeMap<&SandboxKey, Vec<(&String, &Manifest)>> = BTreeMap::new();
        let mut report = Report {
            before: self,
            invalid: BTreeMap::new(),
            now,
        };
        let before: BTreeMap<&SandboxKey, &Arc<DesiredSandbox>> = self
            .sandboxes
            .iter()
            .filter(|(key, _)| !removed.contains(key))
            .collect();
        let holders = before
            .values()
            .map(|held| &held.file)
            .filter(|file| files.contains_key(*file));
        let stems = first_of_each_stem(holders.chain(files.keys()));

        for (file, state) in files {
            match state {
                FileState::Valid(manifest) => claims
                    .entry(&manifest.key)
                    .or_default()
                    .push((file, manifest)),
                FileState::Invalid(message) => {
                    report.add(file, None, ConditionReason::Invalid, message);
                }
                FileState::Unsettled => {}
            }
        }
        for (key, held) in &before {
            // While its file says nothing that can be used, what it said last holds.
            match files.get(&held.file) {
                Some(FileState::Unsettled) => {
                    next.sandboxes.insert((*key).clone(), Arc::clone(held));
                }
                Some(FileState::Invalid(message)) => {
                    report.add(&held.file, Some(key), ConditionReason::Invalid, message);
                    next.sandboxes.insert((*key).clone(), Arc::clone(held));
                }
                Some(FileState::Valid(_)) | None => {}
            }
        }
        for (key, claims) in claims {
            let held = before.get(key).copied();
            let kept = next.sandboxes.get(key).map(|kept| kept.file.clone());
            let owner = kept.or_else(|| {
                let holder = held
                    .map(|held| &held.file)
                    .filter(|file| claims.iter().any(|(claim, _)| claim == file));
                let usable = || {
                    claims
                        .iter()
                        .map(|(file, _)| *file)
                        .find(|file| stems.contains(file.as_str()))
                };
                holder.or_else(usable).cloned()
            });
            for (file, manifest) in claims {
                if owner.as_ref() == Some(file) {
                    let sandbox = take(file, manifest, held, next_incarnation, &mut report);
                    next.sandboxes.insert(key.clone(), sandbox);
                } else if let Some(owner) = &owner {
                    let message = format!(
                        "sandbox {} is already the object of {owner}, which keeps it: rename one of the two, or remove {file}",
                        key.name
                    );
                    report.add(file, None, ConditionReason::Invalid, &message);
                } else {
                    let message = "another file has the same name but for its ending, and so the same status file: rename one";
                    report.add(file, None, ConditionReason::Invalid, message);
                }
            }
        }
        next.invalid = report.invalid.into_values().collect();
        next
    }
}

/// The sandbox of a valid file, or what it was where the file changes what cannot change.
fn take(
    file: &str,
    manifest: &Manifest,
    held: Option<&Arc<DesiredSandbox>>,
    next_incarnation: &mut u64,
    report: &mut Report<'_>,
) -> Arc<DesiredSandbox> {
    let Some(held) = held else {
        let incarnation = *next_incarnation;
        *next_incarnation += 1;
        return Arc::new(DesiredSandbox {
            file: file.to_owned(),
            incarnation,
            object: manifest.object.clone(),
            effective: manifest.effective.clone(),
            spec_hash: manifest.spec_hash.clone(),
        });
    };
    let violations = check_update(&held.object, &manifest.object);
    let immutable = !violations.is_empty();
    if immutable {
        let message = Violations(violations).to_string();
        let key = Some(&manifest.key);
        report.add(file, key, ConditionReason::Immutable, &message);
    }
    if held.file == file && (immutable || held.object == manifest.object) {
        return Arc::clone(held);
    }
    let mut next = DesiredSandbox::clone(held);
    file.clone_into(&mut next.file);
    if !immutable {
        next.object.clone_from(&manifest.object);
        next.effective.clone_from(&manifest.effective);
        next.spec_hash.clone_from(&manifest.spec_hash);
    }
    Arc::new(next)
}

struct Report<'a> {
    before: &'a Desired,
    invalid: BTreeMap<String, InvalidManifest>,
    now: Timestamp,
}

impl Report<'_> {
    fn add(
        &mut self,
        file: &str,
        keeps: Option<&SandboxKey>,
        reason: ConditionReason,
        message: &str,
    ) {
        let message = format!("{file}: {message}");
        let same = self.before.invalid.iter().find(|old| {
            old.file == file
                && old.reason == reason
                && old.message == message
                && old.keeps.as_ref() == keeps
        });
        let since = same.map_or(self.now, |old| old.since);
        let invalid = InvalidManifest {
            file: file.to_owned(),
            keeps: keeps.cloned(),
            reason,
            message,
            since,
        };
        self.invalid.insert(file.to_owned(), invalid);
    }
}

/// Of files whose names differ by their ending alone, the first: their status would go to one file.
fn first_of_each_stem<'a>(files: impl Iterator<Item = &'a String>) -> BTreeSet<&'a str> {
    let mut stems = BTreeSet::new();
    files
        .filter(|file| stems.insert(crate::status::stem(file)))
        .map(String::as_str)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Remembered, decode};

    /// A directory as it might be, looked at again and again.
    struct Story {
        desired: Desired,
        next_incarnation: u64,
        second: i64,
    }

    impl Story {
        fn new() -> Self {
            Self {
                desired: Desired::default(),
                next_incarnation: 1,
                second: 0,
            }
        }

        fn look(&mut self, files: &[(&str, FileState)]) -> &Desired {
            self.look_after_removal(files, &[])
        }

        fn look_after_removal(
            &mut self,
            files: &[(&str, FileState)],
            removed: &[&str],
        ) -> &Desired {
            let files = files
                .iter()
                .map(|(file, state)| ((*file).to_owned(), state.clone()))
                .collect();
            let removed = removed.iter().map(|name| key(name)).collect();
            let now = Timestamp::from_second(self.second).unwrap();
            self.second += 1;
            self.desired = self
                .desired
                .next(&files, &removed, &mut self.next_incarnation, now);
            &self.desired
        }
    }

    impl Desired {
        fn of(&self, name: &str) -> (&str, u64, &str) {
            let sandbox = &self.sandboxes[&key(name)];
            (
                &sandbox.file,
                sandbox.incarnation,
                &sandbox.object.spec.image,
            )
        }

        fn names(&self) -> Vec<&str> {
            self.sandboxes.keys().map(|key| key.name.as_str()).collect()
        }
    }

    fn key(name: &str) -> SandboxKey {
        SandboxKey {
            namespace: "default".to_owned(),
            name: name.to_owned(),
        }
    }

    fn valid(name: &str, image: &str) -> FileState {
        with(name, &format!("image: {image}"))
    }

    fn with(name: &str, spec: &str) -> FileState {
        let text = format!(
            "apiVersion: cloche.dev/v1alpha1\nkind: Sandbox\nmetadata: {{name: {name}}}\nspec: {{{spec}}}"
        );
        FileState::Valid(Arc::new(decode(text.as_bytes()).unwrap()))
    }

    fn invalid() -> FileState {
        FileState::Invalid("a typo".to_owned())
    }

    #[test]
    fn what_an_earlier_run_took_over_is_held_as_what_was_seen() {
        let FileState::Valid(manifest) = valid("a", "x") else {
            panic!()
        };
        let remembered = || Remembered {
            key: key("a"),
            file: "mine.yaml".to_owned(),
            object: manifest.object.clone(),
            effective: manifest.effective.clone(),
        };
        let story = || {
            let mut story = Story::new();
            story.desired =
                Desired::remembered(vec![remembered()], &mut story.next_incarnation).unwrap();
            story
        };
        for unusable in [invalid(), FileState::Unsettled] {
            let mut story = story();
            story.look(&[("mine.yaml", unusable)]);
            assert_eq!(story.desired.of("a"), ("mine.yaml", 1, "x"));
        }
        let mut changed = story();
        changed.look(&[("mine.yaml", valid("a", "y"))]);
        assert_eq!(changed.desired.of("a").2, "x", "an image cannot change");
        assert_eq!(changed.desired.invalid.len(), 1);
        let mut gone = story();
        gone.look(&[]);
        assert!(gone.desired.names().is_empty());
    }

    #[test]
    fn files_come_and_go() {
        let mut story = Story::new();
        assert_eq!(
            story.look(&[("a.yaml", valid("a", "x"))]).of("a"),
            ("a.yaml", 1, "x")
        );
        let both = story.look(&[("a.yaml", valid("a", "x")), ("b.yaml", valid("b", "y"))]);
        assert_eq!(both.of("a"), ("a.yaml", 1, "x"));
        assert_eq!(both.of("b"), ("b.yaml", 2, "y"));
        assert_eq!(story.look(&[("b.yaml", valid("b", "y"))]).names(), ["b"]);
        assert_eq!(
            story.look(&[("a.yaml", valid("a", "z"))]).of("a"),
            ("a.yaml", 3, "z")
        );
        assert!(story.desired.invalid.is_empty());
    }

    #[test]
    fn a_typo_disturbs_nothing_and_is_told() {
        let mut story = Story::new();
        story.look(&[("a.yaml", valid("a", "x"))]);
        let desired = story.look(&[("a.yaml", invalid())]);
        assert_eq!(desired.of("a"), ("a.yaml", 1, "x"));
        assert_eq!(desired.invalid.len(), 1);
        assert_eq!(desired.invalid[0].keeps, Some(key("a")));
        assert_eq!(desired.invalid[0].reason, ConditionReason::Invalid);
        assert_eq!(desired.invalid[0].message, "a.yaml: a typo");
        let since = desired.invalid[0].since;
        assert_eq!(story.look(&[("a.yaml", invalid())]).invalid[0].since, since);
        let desired = story.look(&[("a.yaml", valid("a", "x"))]);
        assert_eq!(desired.of("a"), ("a.yaml", 1, "x"));
        assert!(desired.invalid.is_empty());
    }

    #[test]
    fn a_typo_in_a_new_file_is_told() {
        let mut story = Story::new();
        let desired = story.look(&[("a.yaml", invalid())]);
        assert!(desired.sandboxes.is_empty());
        assert_eq!(desired.invalid[0].keeps, None);
    }

    #[test]
    fn a_file_that_says_nothing_for_now_keeps_what_it_said() {
        let mut story = Story::new();
        assert!(
            story
                .look(&[("a.yaml", FileState::Unsettled)])
                .sandboxes
                .is_empty()
        );
        story.look(&[("a.yaml", valid("a", "x"))]);
        let desired = story.look(&[("a.yaml", FileState::Unsettled)]);
        assert_eq!(desired.of("a"), ("a.yaml", 1, "x"));
        assert!(desired.invalid.is_empty());
    }

    #[test]
    fn the_lifecycle_can_change_and_nothing_else() {
        let mut story = Story::new();
        story.look(&[("a.yaml", valid("a", "x"))]);
        let desired = story.look(&[("a.yaml", with("a", "image: x, lifecycle: {ttlSeconds: 5}"))]);
        assert_eq!(desired.of("a"), ("a.yaml", 1, "x"));
        assert_eq!(
            desired.sandboxes[&key("a")]
                .effective
                .ttl
                .map(|ttl| ttl.as_secs()),
            Some(5)
        );
        let hash = desired.sandboxes[&key("a")].spec_hash.clone();
        let desired = story.look(&[("a.yaml", with("a", "image: y, shell: /bin/sh"))]);
        assert_eq!(desired.of("a"), ("a.yaml", 1, "x"));
        assert_eq!(desired.sandboxes[&key("a")].spec_hash, hash);
        let told = &desired.invalid[0];
        assert_eq!(
            (told.reason, &told.keeps),
            (ConditionReason::Immutable, &Some(key("a")))
        );
        assert!(
            told.message
                .starts_with("a.yaml: spec.image: cannot change"),
            "{}",
            told.message
        );
        assert!(
            told.message.contains("\nspec.shell: cannot change"),
            "{}",
            told.message
        );
    }

    #[test]
    fn a_name_is_kept_by_the_file_that_has_it() {
        let mut story = Story::new();
        story.look(&[("m.yaml", valid("a", "x"))]);
        let files = [
            ("b.yaml", valid("a", "y")),
            ("m.yaml", valid("a", "x")),
            ("z.yaml", valid("a", "x")),
        ];
        let desired = story.look(&files);
        assert_eq!(desired.of("a"), ("m.yaml", 1, "x"));
        let told: Vec<_> = desired
            .invalid
            .iter()
            .map(|invalid| invalid.message.as_str())
            .collect();
        assert_eq!(told.len(), 2);
        for (message, file) in told.iter().zip(["b.yaml", "z.yaml"]) {
            assert!(
                message.starts_with(&format!(
                    "{file}: sandbox a is already the object of m.yaml"
                )),
                "{message}"
            );
        }
        // Also while the file that has it is broken, or being written.
        for state in [invalid(), FileState::Unsettled] {
            let desired = story.look(&[("b.yaml", valid("a", "y")), ("m.yaml", state)]);
            assert_eq!(desired.of("a"), ("m.yaml", 1, "x"));
            assert!(desired.invalid.iter().any(|told| told.file == "b.yaml"));
        }
    }

    #[test]
    fn among_new_files_the_first_by_name_gets_the_name() {
        let mut story = Story::new();
        let desired = story.look(&[("b.yaml", valid("a", "x")), ("c.yaml", valid("a", "y"))]);
        assert_eq!(desired.of("a"), ("b.yaml", 1, "x"));
        assert_eq!(desired.invalid[0].file, "c.yaml");
    }

    #[test]
    fn a_file_may_be_renamed() {
        let mut story = Story::new();
        story.look(&[("a.yaml", valid("a", "x"))]);
        let desired = story.look(&[("b.yaml", valid("a", "x"))]);
        assert_eq!(desired.of("a"), ("b.yaml", 1, "x"));
        let desired = story.look(&[("c.yaml", valid("a", "y"))]);
        assert_eq!(
            desired.of("a"),
            ("c.yaml", 1, "x"),
            "renamed and edited is edited"
        );
        assert_eq!(desired.invalid[0].reason, ConditionReason::Immutable);
    }

    #[test]
    fn another_name_in_the_same_file_is_another_sandbox() {
        let mut story = Story::new();
        story.look(&[("a.yaml", valid("a", "x"))]);
        let desired = story.look(&[("a.yaml", valid("b", "x"))]);
        assert_eq!(desired.names(), ["b"]);
        assert_eq!(desired.of("b"), ("a.yaml", 2, "x"));
    }

    #[test]
    fn what_was_removed_by_request_is_never_kept() {
        let mut story = Story::new();
        story.look(&[("a.yaml", valid("a", "x"))]);
        let desired = story.look_after_removal(&[("a.yaml", valid("a", "y"))], &["a"]);
        assert_eq!(
            desired.of("a"),
            ("a.yaml", 2, "y"),
            "made anew, and so not an update"
        );
        assert!(
            story
                .look_after_removal(&[("a.yaml", invalid())], &["a"])
                .sandboxes
                .is_empty()
        );
    }

    #[test]
    fn two_files_never_share_a_status_file() {
        let mut story = Story::new();
        let desired = story.look(&[("a.yaml", valid("a", "x")), ("a.yml", valid("b", "x"))]);
        assert_eq!(desired.names(), ["a"]);
        assert!(
            desired.invalid[0]
                .message
                .starts_with("a.yml: another file has the same name")
        );
        let mut story = Story::new();
        story.look(&[("a.yml", valid("b", "x"))]);
        let desired = story.look(&[("a.json", valid("a", "x")), ("a.yml", valid("b", "x"))]);
        assert_eq!(desired.names(), ["b"], "what is there stays");
        assert_eq!(desired.invalid[0].file, "a.json");
    }

    proptest::proptest! {
        /// Whatever the files do, a sandbox vanishes only if no file could stand for it, and its spec never changes but for the
        /// lifecycle within one incarnation.
        #[test]
        fn nothing_is_disturbed(
            looks in proptest::collection::vec(
                proptest::collection::vec(proptest::option::of((0_usize..3, 0_usize..2, 0_usize..4)), 3),
                1..8,
            ),
        ) {
            let mut story = Story::new();
            for look in looks {
                let files: Vec<_> = ["a.yaml", "b.yaml", "c.yaml"].into_iter().zip(look).filter_map(|(file, state)| {
                    let (name, image, kind) = state?;
                    Some((file, match kind {
                        0 => invalid(),
                        1 => FileState::Unsettled,
                        _ => valid(["p", "q", "r"][name], ["x", "y"][image]),
                    }))
                }).collect();
                let before = story.desired.clone();
                let after = story.look(&files).clone();
                for (key, old) in &before.sandboxes {
                    let stands = files.iter().any(|(file, state)| match state {
                        FileState::Valid(manifest) => manifest.key == *key,
                        FileState::Invalid(_) | FileState::Unsettled => *file == old.file,
                    });
                    proptest::prop_assert_eq!(stands, after.sandboxes.contains_key(key));
                    if let Some(new) = after.sandboxes.get(key) {
                        proptest::prop_assert_eq!(old.incarnation, new.incarnation);
                        proptest::prop_assert!(old.effective.same_but_lifecycle(&new.effective));
                    }
                }
                // Every valid or broken file is either an object's or told.
                for (file, state) in &files {
                    let owns = after.sandboxes.values().any(|sandbox| sandbox.file == *file);
                    let told = after.invalid.iter().any(|invalid| invalid.file == *file);
                    proptest::prop_assert!(owns || told || *state == FileState::Unsettled);
                }
            }
        }
    }
}
