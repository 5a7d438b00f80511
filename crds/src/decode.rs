//! From a JSON value to an object, strictly: what is not understood is refused, with its path.

use serde_json::Value;

use crate::rules::{Violation, Violations};
use crate::sandbox::{API_VERSION, KIND, Sandbox};

/// What a person may write in `metadata`. All else of it is written by Kubernetes or by Cloche.
const METADATA: [&str; 4] = ["annotations", "labels", "name", "namespace"];

/// Reads an object that a person wrote. A field that is not in the schema is an error, also where the apiserver would only
/// warn: nothing is accepted and ignored. The rules are not looked at ([`validate`](crate::rules::validate)).
pub fn sandbox(value: &Value) -> Result<Sandbox, Violations> {
    let Value::Object(object) = value else {
        return Err(one(
            "",
            "is not an object: begin with apiVersion, kind, metadata and spec",
        ));
    };
    let mut broken = Vec::new();
    for (field, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        match object.get(field).and_then(Value::as_str) {
            Some(found) if found == wanted => {}
            Some(found) => {
                let found: String = found.chars().take(64).collect();
                broken.push(Violation::new(
                    field,
                    format!("is {found:?}: write {wanted}"),
                ));
            }
            None => broken.push(Violation::new(field, format!("is missing: write {wanted}"))),
        }
    }
    if !broken.is_empty() {
        // Of another kind: whatever else could be said of it would be noise.
        return Err(Violations(broken));
    }
    for field in object.keys() {
        match field.as_str() {
            "apiVersion" | "kind" | "metadata" | "spec" => {}
            "status" => {
                broken.push(Violation::new(
                    "status",
                    "is written by Cloche alone: take it out",
                ));
            }
            unknown => broken.push(unknown_field(
                "",
                unknown,
                "apiVersion, kind, metadata, spec",
            )),
        }
    }
    match object.get("metadata") {
        Some(Value::Object(metadata)) => {
            for field in metadata
                .keys()
                .filter(|field| !METADATA.contains(&field.as_str()))
            {
                broken.push(unknown_field("metadata.", field, &METADATA.join(", ")));
            }
        }
        Some(_) => broken.push(Violation::new("metadata", "is not a map: give it a name")),
        None => broken.push(Violation::new("metadata", "is missing: give it a name")),
    }
    if !object.contains_key("spec") {
        broken.push(Violation::new("spec", "is missing: give it an image"));
    }
    if !broken.is_empty() {
        return Err(Violations(broken));
    }
    let sandbox: Sandbox = serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        one(&path, &error.into_inner().to_string())
    })?;
    let written = serde_json::to_value(&sandbox).map_err(|error| one("", &error.to_string()))?;
    lists_for_maps("", value, &written, &mut broken);
    if broken.is_empty() {
        Ok(sandbox)
    } else {
        Err(Violations(broken))
    }
}

/// Serde reads a list as a struct, field by field; the apiserver does not. Told by writing the object again.
fn lists_for_maps(path: &str, read: &Value, written: &Value, broken: &mut Vec<Violation>) {
    match (read, written) {
        (Value::Array(_), Value::Object(_)) => {
            broken.push(Violation::new(
                path,
                "is a list: write a map of fields and values",
            ));
        }
        (Value::Object(read), Value::Object(written)) => {
            for (field, value) in read {
                if let Some(written) = written.get(field) {
                    let dot = if path.is_empty() { "" } else { "." };
                    lists_for_maps(&format!("{path}{dot}{field}"), value, written, broken);
                }
            }
        }
        (Value::Array(read), Value::Array(written)) => {
            for (index, (value, written)) in read.iter().zip(written).enumerate() {
                lists_for_maps(&format!("{path}[{index}]"), value, written, broken);
            }
        }
        _ => {}
    }
}

fn one(path: &str, message: &str) -> Violations {
    let path = if path.is_empty() || path == "." {
        "object"
    } else {
        path
    };
    Violations(vec![Violation::new(path, message)])
}

fn unknown_field(parent: &str, field: &str, known: &str) -> Violation {
    let field: String = field.chars().take(64).collect();
    Violation::new(
        format!("{parent}{field}"),
        format!("cannot be set: take it out; what can is {known}"),
    )
}
