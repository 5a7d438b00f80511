//! What `ls` prints.

use jiff::Timestamp;
use serde_json::json;

use super::text::{age, table};
use super::{Object, full_name};
use crate::args::Output;

/// The objects in the asked form. A single object that was asked for by name (`one`) is printed as itself, not as a list.
pub(crate) fn print(
    objects: &[Object],
    output: Option<Output>,
    one: bool,
    now: Timestamp,
) -> Result<String, String> {
    match output {
        None => Ok(table(&rows(objects, false, now))),
        Some(Output::Wide) => Ok(table(&rows(objects, true, now))),
        Some(Output::Name) => Ok(objects
            .iter()
            .flat_map(|object| {
                [
                    full_name(&object.name()),
                    "
"
                    .to_owned(),
                ]
            })
            .collect()),
        Some(Output::Json) => {
            let mut text = serde_json::to_string_pretty(&value(objects, one))
                .map_err(|problem| problem.to_string())?;
            text.push('\n');
            Ok(text)
        }
        Some(Output::Yaml) => {
            serde_saphyr::to_string(&value(objects, one)).map_err(|problem| problem.to_string())
        }
    }
}

fn value(objects: &[Object], one: bool) -> serde_json::Value {
    match objects {
        [object] if one => object.json().clone(),
        _ => json!({
            "apiVersion": "v1",
            "kind": "List",
            "metadata": {},
            "items": objects.iter().map(Object::json).collect::<Vec<_>>(),
        }),
    }
}

fn rows(objects: &[Object], wide: bool, now: Timestamp) -> Vec<Vec<String>> {
    let mut header = vec!["NAME", "PHASE", "REASON", "AGE"];
    if wide {
        header.extend(["EXIT", "IMAGE", "IMAGE DIGEST", "EXPIRES"]);
    }
    let header = header.into_iter().map(str::to_owned).collect();
    let row = |object: &Object| {
        let or_none = |word: Option<String>| word.unwrap_or_else(|| "<none>".to_owned());
        let mut row = vec![
            object.name(),
            object.phase(),
            object.reason().unwrap_or_default(),
            object
                .time("/metadata/creationTimestamp")
                .map_or_else(|| "<unknown>".to_owned(), |since| age(since, now)),
        ];
        if wide {
            row.extend([
                or_none(object.word("/status/termination/exitCode")),
                or_none(object.word("/spec/image")),
                or_none(object.word("/status/imageDigest")),
                or_none(object.time("/status/expiresAt").map(|end| {
                    if object.is_finished() {
                        "<none>".to_owned()
                    } else {
                        format!("in {}", age(now, end))
                    }
                })),
            ]);
        }
        row
    };
    std::iter::once(header)
        .chain(objects.iter().map(row))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::describe::describe;
    use super::super::tests::object;
    use super::*;

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    fn objects() -> Vec<Object> {
        [
            include_str!("fixtures/running.yaml"),
            include_str!("fixtures/oom.yaml"),
            include_str!("fixtures/pulling.yaml"),
            include_str!("fixtures/refused.yaml"),
        ]
        .map(object)
        .to_vec()
    }

    #[test]
    fn every_form() {
        let objects = objects();
        for (name, output) in [
            ("ls", None),
            ("ls_wide", Some(Output::Wide)),
            ("ls_name", Some(Output::Name)),
            ("ls_json", Some(Output::Json)),
            ("ls_yaml", Some(Output::Yaml)),
        ] {
            insta::assert_snapshot!(name, print(&objects, output, false, now()).unwrap());
        }
        let one = print(&objects[3..], Some(Output::Yaml), true, now()).unwrap();
        insta::assert_snapshot!("ls_one_yaml", one);
    }

    #[test]
    fn yaml_and_json_can_be_read_back_whole() {
        let objects = objects();
        for output in [Output::Yaml, Output::Json] {
            let text = print(&objects[1..2], Some(output), true, now()).unwrap();
            let back: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
            assert_eq!(&back, objects[1].json());
        }
    }

    #[test]
    fn all_about_each() {
        for object in objects() {
            insta::assert_snapshot!(
                format!("describe_{}", object.name()),
                describe(&object, now())
            );
        }
    }
}
