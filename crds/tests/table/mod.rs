//! The table of accept and deny, `crds/tests/rules/*.yaml`. Read here for the rules in Rust, and by the end-to-end tests for the real
//! apiserver.

#![allow(dead_code, reason = "each of its readers leaves a part of it alone")]

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

/// One object, or one update of it, and what is said of it. `rules/README.md` tells what each field is.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    #[serde(rename = "case")]
    pub(crate) title: String,
    metadata: Option<Value>,
    old: Option<Value>,
    spec: Value,
    #[serde(default)]
    pub(crate) breaks: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub(crate) refused: Vec<String>,
    pub(crate) says: Option<String>,
    pub(crate) apiserver: Option<Apiserver>,
}

/// What the apiserver says where it differs.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Apiserver {
    Word(Word),
    /// It refuses, and names these.
    Names(Vec<String>),
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Word {
    Accepts,
    /// It refuses, and names no field.
    Refuses,
}

impl Case {
    /// The object.
    pub(crate) fn object(&self) -> Value {
        self.with(&self.spec)
    }

    /// What it was before, for an update.
    pub(crate) fn old(&self) -> Option<Value> {
        self.old.as_ref().map(|old| self.with(old))
    }

    fn with(&self, spec: &Value) -> Value {
        json!({
            "apiVersion": "cloche.dev/v1alpha1",
            "kind": "Sandbox",
            "metadata": self.metadata.clone().map_or_else(|| json!({"name": "demo"}), expand),
            "spec": expand(spec.clone()),
        })
    }
}

/// Replaces `$text` and `$item` by what they stand for.
fn expand(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let times = map.get("$times").and_then(Value::as_u64);
            if let (Some(Value::String(text)), Some(times)) = (map.get("$text"), times) {
                return text.repeat(usize::try_from(times).unwrap()).into();
            }
            if let (Some(item), Some(times)) = (map.get("$item"), times) {
                return (0..times).map(|index| number(item, index)).collect();
            }
            Value::Object(
                map.into_iter()
                    .map(|(key, value)| (key, expand(value)))
                    .collect(),
            )
        }
        Value::Array(items) => items.into_iter().map(expand).collect(),
        plain => plain,
    }
}

fn number(value: &Value, index: u64) -> Value {
    match value {
        Value::String(text) => text.replace('#', &index.to_string()).into(),
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), number(value, index)))
            .collect(),
        plain => plain.clone(),
    }
}

/// Every case of a folder of files, with the name of its file before its title.
pub(crate) fn cases(folder: &Path) -> Vec<(String, Case)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let cases: Vec<Case> = serde_saphyr::from_str(&text)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        all.extend(
            cases
                .into_iter()
                .map(|case| (format!("{name}: {}", case.title), case)),
        );
    }
    all
}
