//! Manifests as a person writes them.

use cloche_crds::sandbox::{API_VERSION, KIND};
use serde_json::Value;

use super::Object;

/// Every object of a file in YAML or JSON; of a `List` each item. Their fields are judged by whoever takes them, who may be newer.
/// The error is a sentence.
pub(crate) fn read(text: &str) -> Result<Vec<Object>, String> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|problem| problem.to_string())?;
    let mut objects = Vec::new();
    for document in documents {
        match document {
            // As between two lines of dashes.
            Value::Null => {}
            Value::Object(mut list) if list.get("kind").is_some_and(|kind| kind == "List") => {
                let Some(Value::Array(items)) = list.remove("items") else {
                    return Err("a List without items".to_owned());
                };
                objects.extend(
                    items
                        .into_iter()
                        .map(sandbox)
                        .collect::<Result<Vec<_>, _>>()?,
                );
            }
            other => objects.push(sandbox(other)?),
        }
    }
    if objects.is_empty() {
        return Err("there is no sandbox in it".to_owned());
    }
    Ok(objects)
}

fn sandbox(value: Value) -> Result<Object, String> {
    let object = Object::of(value)?;
    let found = |pointer| object.word(pointer).unwrap_or_else(|| "nothing".to_owned());
    for (pointer, wanted) in [("/apiVersion", API_VERSION), ("/kind", KIND)] {
        let found = found(pointer);
        if found != wanted {
            return Err(format!(
                "{} is {found}: write {wanted}",
                pointer.trim_start_matches('/')
            ));
        }
    }
    if object.name().is_empty() {
        return Err("metadata.name is missing: give it a name".to_owned());
    }
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests() {
        let one = "apiVersion: cloche.dev/v1alpha1\nkind: Sandbox\nmetadata: {name: a}\n";
        let list = "{kind: List, items: [{apiVersion: cloche.dev/v1alpha1, kind: Sandbox, metadata: {name: b}}]}";
        let names = |text: &str| {
            read(text).map(|objects| objects.iter().map(Object::name).collect::<Vec<_>>())
        };
        assert_eq!(names(one), Ok(vec!["a".to_owned()]));
        assert_eq!(
            names(&format!("{one}---\n---\n{list}\n")),
            Ok(vec!["a".to_owned(), "b".to_owned()])
        );
        for (wrong, why) in [
            ("", "there is no sandbox in it"),
            (
                "kind: Pod",
                "apiVersion is nothing: write cloche.dev/v1alpha1",
            ),
            (
                "{apiVersion: cloche.dev/v1alpha1, kind: Pod}",
                "kind is Pod: write Sandbox",
            ),
            (
                "{apiVersion: cloche.dev/v1alpha1, kind: Sandbox}",
                "metadata.name is missing: give it a name",
            ),
            ("kind: List", "a List without items"),
            ("[]", "a sandbox that is not an object"),
        ] {
            assert_eq!(names(wrong), Err(why.to_owned()), "{wrong}");
        }
        assert!(names("{").is_err());
    }
}
