//! What `ls` prints.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::text::{age, table};
use super::{Object, full_name};
use crate::args::Output;

/// What else matters for how objects are printed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Form {
    /// A single object was asked for by name: it is printed as itself, not as a list.
    pub(crate) one: bool,
    /// They may be of several namespaces.
    pub(crate) namespaces: bool,
}

/// The objects in the asked form.
pub(crate) fn print(
    objects: &[Object],
    output: Option<Output>,
    form: Form,
    now: Timestamp,
) -> Result<String, String> {
    match output {
        None => Ok(table(&rows(objects, false, form, now))),
        Some(Output::Wide) => Ok(table(&rows(objects, true, form, now))),
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
            let mut text = serde_json::to_string_pretty(&value(objects, form.one))
                .map_err(|problem| problem.to_string())?;
            text.push('\n');
            Ok(text)
        }
        Some(Output::Yaml) => serde_saphyr::to_string(&value(objects, form.one))
            .map_err(|problem| problem.to_string()),
    }
}

fn value(objects: &[Object], one: bool) -> Value {
    match objects {
        [object] if one => shown(object),
        _ => json!({
            "apiVersion": "v1",
            "kind": "List",
            "metadata": {},
            "items": objects.iter().map(shown).collect::<Vec<_>>(),
        }),
    }
}

/// As it came, but for who wrote which field: as kubectl leaves it out.
fn shown(object: &Object) -> Value {
    let mut value = object.json().clone();
    if let Some(Value::Object(metadata)) = value.get_mut("metadata") {
        metadata.remove("managedFields");
    }
    value
}

/// The table's rows, its header first.
pub(crate) fn rows(objects: &[Object], wide: bool, form: Form, now: Timestamp) -> Vec<Vec<String>> {
    let mut header = vec!["NAME", "PHASE", "REASON", "AGE"];
    if form.namespaces {
        header.insert(0, "NAMESPACE");
    }
    if wide {
        header.extend(["EXIT", "IMAGE", "IMAGE DIGEST", "EXPIRES"]);
    }
    let header = header.into_iter().map(str::to_owned).collect();
    std::iter::once(header)
        .chain(objects.iter().map(|object| row(object, wide, form, now)))
        .collect()
}

/// One object's row.
pub(crate) fn row(object: &Object, wide: bool, form: Form, now: Timestamp) -> Vec<String> {
    let or_none = |word: Option<String>| word.unwrap_or_else(|| "<none>".to_owned());
    let mut row = vec![
        object.name(),
        object.phase(),
        object.reason().unwrap_or_default(),
        object
            .time("/metadata/creationTimestamp")
            .map_or_else(|| "<unknown>".to_owned(), |since| age(since, now)),
    ];
    if form.namespaces {
        row.insert(0, object.word("/metadata/namespace").unwrap_or_default());
    }
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
}

#[cfg(test)]
mod tests {
    use super::super::describe::{describe, events};
    use super::super::tests::object;
    use super::*;

    const ONE: Form = Form {
        one: true,
        namespaces: false,
    };

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
            insta::assert_snapshot!(
                name,
                print(&objects, output, Form::default(), now()).unwrap()
            );
        }
        let everywhere = Form {
            namespaces: true,
            ..Form::default()
        };
        for (name, output) in [("ls_all", None), ("ls_all_wide", Some(Output::Wide))] {
            insta::assert_snapshot!(name, print(&objects, output, everywhere, now()).unwrap());
        }
        let one = print(&objects[3..], Some(Output::Yaml), ONE, now()).unwrap();
        insta::assert_snapshot!("ls_one_yaml", one);
    }

    #[test]
    fn yaml_and_json_can_be_read_back_whole() {
        let objects = objects();
        for output in [Output::Yaml, Output::Json] {
            let text = print(&objects[1..2], Some(output), ONE, now()).unwrap();
            let back: Value = serde_saphyr::from_str(&text).unwrap();
            assert_eq!(&back, objects[1].json());
        }
    }

    #[test]
    fn who_wrote_which_field_is_left_out() {
        let written = object("{metadata: {name: a, managedFields: [{manager: b}]}}");
        let text = print(&[written], Some(Output::Json), ONE, now()).unwrap();
        let back: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(back, json!({"metadata": {"name": "a"}}));
    }

    #[test]
    fn what_was_told_of_one() {
        let told = [
            "{type: Warning, reason: BackOff, count: 3, lastTimestamp: '2026-03-01T11:59:00Z',
              reportingComponent: '', source: {component: cloche-agent}, message: again}",
            "{type: Normal, reason: Scheduled, eventTime: '2026-03-01T11:00:00.123456Z',
              reportingComponent: cloche-operator, message: \"to node1\\n\"}",
            "{type: Normal, reason: Odd}",
        ]
        .map(object);
        insta::assert_snapshot!("describe_events", events(&told, now()));
        assert_eq!(events(&[], now()), "");
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
