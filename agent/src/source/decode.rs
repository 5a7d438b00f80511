//! From the bytes of a manifest to one valid Sandbox, or what is wrong with them.

use cloche_crds::rules::{Violation, Violations, validate};
use cloche_crds::{Effective, Sandbox, SandboxSpec, decode as object};
use serde_saphyr::{
    Error as YamlError, MessageFormatter as _, UserMessageFormatter, budget, options,
};
use sha2::{Digest, Sha256};

use super::{NAMESPACE, SandboxKey};

/// Most bytes of a manifest.
pub const MAX_MANIFEST: usize = 1024 * 1024;

/// A manifest that kept every rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// What it is called.
    pub key: SandboxKey,
    /// As it was written, its namespace filled in.
    pub object: Sandbox,
    /// What it means.
    pub effective: Effective,
    /// Hex SHA-256 of the spec's JSON.
    pub spec_hash: String,
}

/// Why bytes are no manifest. Never shows the bytes themselves: they may hold secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Nothing but white space and comments.
    #[error("the file is empty: write one Sandbox, or remove it")]
    Empty,
    /// More than [`MAX_MANIFEST`].
    #[error("the manifest has {0} bytes; at most {MAX_MANIFEST} are allowed")]
    TooLarge(usize),
    /// Two or more objects.
    #[error("the file holds more than one object: put each into a file of its own")]
    Several,
    /// No YAML, and so no JSON either.
    #[error("line {line}, column {column}: not YAML: {message}")]
    Syntax {
        /// From 1.
        line: u64,
        /// From 1.
        column: u64,
        /// What the parser says.
        message: String,
    },
    /// An object that is not a Sandbox, has unknown fields, or breaks rules.
    #[error(transparent)]
    Object(#[from] Violations),
}

/// Reads `bytes`, YAML or JSON, as exactly one valid Sandbox.
pub fn decode(bytes: &[u8]) -> Result<Manifest, DecodeError> {
    if bytes.len() > MAX_MANIFEST {
        return Err(DecodeError::TooLarge(bytes.len()));
    }
    let value = parse(bytes)?;
    let mut object = object::sandbox(&value)?;
    let namespace = object
        .metadata
        .namespace
        .get_or_insert_with(|| NAMESPACE.to_owned())
        .clone();
    if namespace != NAMESPACE {
        let message =
            format!("standalone has one namespace, {NAMESPACE}: write that or leave it out");
        let path = "metadata.namespace".to_owned();
        return Err(Violations(vec![Violation { path, message }]).into());
    }
    let elsewhere = of_a_cluster(&object.spec);
    if !elsewhere.is_empty() {
        return Err(Violations(elsewhere).into());
    }
    let effective = validate(&object)?;
    let name = object.metadata.name.clone().unwrap_or_default();
    let spec_hash = spec_hash(&object.spec).map_err(|error| {
        let (path, message) = ("spec".to_owned(), error.to_string());
        Violations(vec![Violation { path, message }])
    })?;
    Ok(Manifest {
        key: SandboxKey { namespace, name },
        object,
        effective,
        spec_hash,
    })
}

/// What only a cluster does.
fn of_a_cluster(spec: &SandboxSpec) -> Vec<Violation> {
    let lifecycle = spec.lifecycle.as_ref();
    let one_node = "standalone has one node, this one: leave it out";
    let own_folder = "standalone deletes no manifests: leave it out";
    let no_objects = "standalone has no Secrets and ConfigMaps: write value, and keep the manifest readable by its owner alone";
    let env = spec.env.iter().flatten();
    let mut from_objects = env.filter(|variable| variable.value_from.is_some());
    [
        (
            "spec.imagePullSecrets",
            spec.image_pull_secrets.iter().flatten().next().is_some(),
            "standalone has no Secrets: take the image from a registry or mirror that asks for no user, or from the local image directory",
        ),
        ("spec.env", from_objects.next().is_some(), no_objects),
        (
            "spec.nodeSelector",
            spec.node_selector.iter().flatten().next().is_some(),
            one_node,
        ),
        (
            "spec.tolerations",
            spec.tolerations.iter().flatten().next().is_some(),
            one_node,
        ),
        (
            "spec.lifecycle.scheduleTimeoutSeconds",
            lifecycle.is_some_and(|lifecycle| lifecycle.schedule_timeout_seconds.is_some()),
            one_node,
        ),
        (
            "spec.lifecycle.ttlSecondsAfterFinished",
            lifecycle.is_some_and(|lifecycle| lifecycle.ttl_seconds_after_finished.is_some()),
            own_folder,
        ),
    ]
    .into_iter()
    .filter(|(_, is_there, _)| *is_there)
    .map(|(path, _, message)| Violation {
        path: path.to_owned(),
        message: message.to_owned(),
    })
    .collect()
}

/// Hex SHA-256 of the spec's JSON. Its fields are written in the order of the type, so that equal specs give equal bytes.
pub(super) fn spec_hash(spec: &SandboxSpec) -> Result<String, serde_json::Error> {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(serde_json::to_vec(spec)?) {
        for half in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(u32::from(half), 16));
        }
    }
    Ok(text)
}

/// YAML by the rules that the apiserver's clients apply: only `true` and `false` are booleans, a key stands once. What one
/// megabyte may expand to by aliases is bounded.
fn parse(bytes: &[u8]) -> Result<serde_json::Value, DecodeError> {
    let options = options! {
        strict_booleans: true,
        with_snippet: false,
        budget: budget! {
            max_nodes: 50_000,
            max_events: 200_000,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_merge_keys: 1_000,
            max_depth: 32,
            max_total_scalar_bytes: MAX_MANIFEST,
        },
    };
    match serde_saphyr::from_slice_with_options::<serde_json::Value>(bytes, options) {
        Ok(serde_json::Value::Null) => Err(DecodeError::Empty),
        Ok(value) => Ok(value),
        Err(error) => Err(match error.without_snippet() {
            YamlError::MultipleDocuments { .. } => DecodeError::Several,
            other => {
                let location = other.location();
                DecodeError::Syntax {
                    line: location.map_or(1, |location| location.line()),
                    column: location.map_or(1, |location| location.column()),
                    message: UserMessageFormatter.format_message(other).into_owned(),
                }
            }
        }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "apiVersion: cloche.dev/v1alpha1\nkind: Sandbox\nmetadata: {name: demo}\nspec: {image: python}\n";

    fn refused(text: &str) -> String {
        decode(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_manifest_is_read_with_its_namespace_filled_in() {
        let manifest = decode(GOOD.as_bytes()).unwrap();
        assert_eq!(manifest.key.to_string(), "default/demo");
        assert_eq!(
            manifest.object.metadata.namespace.as_deref(),
            Some("default")
        );
        assert_eq!(manifest.effective.hostname, "demo");
        let explicit = GOOD.replace("{name: demo}", "{name: demo, namespace: default}");
        assert_eq!(decode(explicit.as_bytes()).unwrap(), manifest);
    }

    #[test]
    fn json_comments_and_document_marks_are_fine() {
        let manifest = decode(GOOD.as_bytes()).unwrap();
        let json = r#"{"apiVersion": "cloche.dev/v1alpha1", "kind": "Sandbox", "metadata": {"name": "demo"}, "spec": {"image": "python"}}"#;
        for text in [
            json.to_owned(),
            format!("# a comment\n---\n{GOOD}"),
            format!("\u{feff}{GOOD}"),
            GOOD.replace('\n', "\r\n"),
        ] {
            assert_eq!(decode(text.as_bytes()).unwrap(), manifest, "{text}");
        }
    }

    #[test]
    fn the_hash_is_that_of_the_spec_alone_and_does_not_depend_on_its_writing() {
        let hash = |text: &str| decode(text.as_bytes()).unwrap().spec_hash;
        let named = GOOD.replace("demo", "other");
        let ordered = GOOD.replace("{image: python}", "{shell: /bin/sh, image: python}");
        let reordered = GOOD.replace("{image: python}", "{image: 'python', shell: /bin/sh}");
        assert_eq!(hash(GOOD), hash(&named));
        assert_eq!(hash(&ordered), hash(&reordered));
        assert_ne!(hash(GOOD), hash(&ordered));
        // Kept in records: it must not change between versions.
        assert_eq!(
            hash(GOOD),
            "bb6ec912b2c649f962c7b2c228569c77bd37671960e398dbb3ae981fb64223c3"
        );
    }

    #[test]
    fn what_is_no_manifest_says_what_to_do() {
        for (text, says) in [
            ("", "the file is empty"),
            ("# nothing\n", "the file is empty"),
            ("---\n", "the file is empty"),
            ("hello", "object: is not an object: begin with apiVersion"),
            ("[1]", "object: is not an object"),
            ("a: b\n  c: d: e\n", "line 2, column"),
            ("spec: {image: python", "line 1, column"),
            (
                "a: 1\na: 2\n",
                "line 2, column 1: not YAML: duplicate mapping key `a`",
            ),
            ("a: &x [*x]", "not YAML"),
            (
                "kind: Sandbox",
                "apiVersion: is missing: write cloche.dev/v1alpha1",
            ),
            (
                &GOOD.replace("v1alpha1", "v1"),
                r#"apiVersion: is "cloche.dev/v1": write cloche.dev/v1alpha1"#,
            ),
            (
                &GOOD.replace("Sandbox", "Pod"),
                r#"kind: is "Pod": write Sandbox"#,
            ),
            (
                &GOOD.replace("name: demo", "name: demo, namespace: kube-system"),
                "metadata.namespace: standalone has one",
            ),
            (
                &GOOD.replace("image: python", "image: python, egres: {}"),
                "spec.egres: unknown field",
            ),
            (
                &GOOD.replace("image: python", "image: python, nodeSelector: {disk: ssd}"),
                "spec.nodeSelector: standalone has one node",
            ),
            (
                &GOOD.replace(
                    "image: python",
                    "image: python, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]",
                ),
                "spec.env: standalone has no Secrets",
            ),
            (
                &GOOD.replace(
                    "image: python",
                    "image: python, imagePullSecrets: [{name: regcred}]",
                ),
                "spec.imagePullSecrets: standalone has no Secrets",
            ),
            (
                &GOOD.replace(
                    "image: python",
                    "image: python, tolerations: [{operator: Exists}]",
                ),
                "spec.tolerations: standalone has one node",
            ),
            (
                &GOOD.replace(
                    "image: python",
                    "image: python, lifecycle: {scheduleTimeoutSeconds: 5}",
                ),
                "spec.lifecycle.scheduleTimeoutSeconds: standalone has one node",
            ),
            (
                &GOOD.replace(
                    "image: python",
                    "image: python, lifecycle: {ttlSecondsAfterFinished: 5}",
                ),
                "spec.lifecycle.ttlSecondsAfterFinished: standalone deletes no manifests",
            ),
            (
                &GOOD.replace("image: python", "image: Python"),
                "spec.image: \"Python\" is not a repository",
            ),
            (&format!("{GOOD}---\n{GOOD}"), "more than one object"),
            (
                &format!("{GOOD}status: {{}}\n"),
                "status: is written by Cloche alone",
            ),
            (&format!("{GOOD}---\nkind: [\n"), "more than one object"),
        ] {
            let message = refused(text);
            assert!(message.contains(says), "{text:?}: {message}");
        }
    }

    #[test]
    fn yes_is_a_word_and_one_is_a_number() {
        let with = |value: &str| {
            GOOD.replace(
                "image: python",
                &format!("image: python, env: [{{name: A, value: {value}}}]"),
            )
        };
        for word in ["yes", "on", "'1'", "1.2.3", "~x"] {
            decode(with(word).as_bytes()).unwrap_or_else(|error| panic!("{word}: {error}"));
        }
        for other in ["true", "1", "1.5", "0x10", "[]"] {
            assert!(
                refused(&with(other)).starts_with("spec.env[0].value: "),
                "{other}"
            );
        }
    }

    #[test]
    fn too_large_and_too_many_are_refused() {
        let large = vec![b' '; MAX_MANIFEST + 1];
        assert_eq!(
            decode(&large).unwrap_err(),
            DecodeError::TooLarge(MAX_MANIFEST + 1)
        );
        let many = format!("a: [{}]", "1,".repeat(100_000));
        assert!(refused(&many).contains("not YAML"), "{}", refused(&many));
        let deep = "[".repeat(10_000);
        assert!(refused(&deep).contains("not YAML"));
        let laughs: Vec<_> = (1..12)
            .map(|level| {
                let below = format!("*a{}, ", level - 1).repeat(9);
                format!("a{level}: &a{level} [{below}]\n")
            })
            .collect();
        let laughs = format!("a0: &a0 [x, x, x, x, x, x, x, x, x]\n{}", laughs.concat());
        assert!(refused(&laughs).contains("not YAML"));
    }

    #[test]
    fn no_secret_is_shown() {
        for text in [
            "env: hunter2hunter2\n  broken: [",
            "password: hunter2\npassword: hunter2\n",
            "a: \"hunter2",
        ] {
            assert!(!refused(text).contains("hunter2"), "{}", refused(text));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(decode(&bytes));
        }

        #[test]
        fn any_damage_to_a_manifest_is_read_or_refused(at in 0_usize..90, with in "\\PC{0,4}") {
            let mut text = GOOD.to_owned();
            let at = at.min(text.len());
            text.insert_str(at, &with);
            drop(decode(text.as_bytes()));
        }
    }
}
