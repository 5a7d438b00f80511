//! From a spec and the objects that it names to the values of its environment. Pure.

use std::collections::{BTreeMap, BTreeSet};

use cloche_crds::limits::{ENV_VALUE, PROCESS_BYTES};
use cloche_crds::sandbox::{EnvReference, ReferenceKind};
use cloche_crds::{Effective, MainCommand};

/// Most faults that one message tells.
const TOLD: usize = 3;

/// An object by its kind and name; all are of the sandbox's namespace.
pub(super) type Named = (ReferenceKind, String);
/// What was found of the objects, each with its keys; `None` for one that is not there.
pub(super) type Found = BTreeMap<Named, Option<BTreeMap<String, Vec<u8>>>>;

/// The objects that the spec names, each with the keys that it names of it.
pub(super) fn objects(spec: &Effective) -> BTreeMap<Named, BTreeSet<String>> {
    let mut named: BTreeMap<Named, BTreeSet<String>> = BTreeMap::new();
    for reference in &spec.env_from {
        let object = (reference.kind, reference.object.clone());
        let keys = named.entry(object).or_default();
        keys.insert(reference.key.clone());
    }
    named
}

/// Of an object only what is wanted: the rest may be a thousand times as much. A value that is too long is cut to one that still is.
pub(super) fn wanted(
    data: impl IntoIterator<Item = (String, Vec<u8>)>,
    keys: &BTreeSet<String>,
) -> BTreeMap<String, Vec<u8>> {
    data.into_iter()
        .filter(|(key, _)| keys.contains(key))
        .map(|(key, mut bytes)| {
            if bytes.len() > ENV_VALUE {
                bytes.truncate(ENV_VALUE + 1);
                bytes.shrink_to_fit();
            }
            (key, bytes)
        })
        .collect()
}

/// Names and values of what the spec takes from `found`, without what is optional and not there; else what is wrong. No message shows a
/// value.
pub(super) fn values(spec: &Effective, found: &Found) -> Result<Vec<(String, String)>, String> {
    let mut values = Vec::new();
    let mut faults = Vec::new();
    for reference in &spec.env_from {
        match value(reference, found) {
            Ok(Some(value)) => values.push((reference, value)),
            Ok(None) => {}
            Err(fault) => faults.push(format!("env {}: {fault}", reference.name)),
        }
    }
    if !faults.is_empty() {
        let more = faults.len().saturating_sub(TOLD);
        faults.truncate(TOLD);
        if more > 0 {
            faults.push(format!("and {more} more"));
        }
        return Err(faults.join("; "));
    }
    fits(spec, &values)?;
    let owned = |(reference, value): (&EnvReference, &str)| {
        let name = reference.name.clone();
        (name, value.to_owned())
    };
    Ok(values.into_iter().map(owned).collect())
}

fn value<'a>(reference: &EnvReference, found: &'a Found) -> Result<Option<&'a str>, String> {
    let EnvReference {
        name: _,
        kind,
        object,
        key,
        optional,
    } = reference;
    let keys = found.get(&(*kind, object.clone())).and_then(Option::as_ref);
    let Some(bytes) = keys.and_then(|keys| keys.get(key)) else {
        return match (optional, keys) {
            (true, _) => Ok(None),
            (false, None) => Err(format!("there is no {kind} {object:?}")),
            (false, Some(_)) => Err(format!("the {kind} {object:?} has no key {key:?}")),
        };
    };
    let of = || format!("the value of key {key:?} of the {kind} {object:?}");
    if bytes.len() > ENV_VALUE {
        return Err(format!(
            "{} has more than {ENV_VALUE} bytes, the most that a variable may have",
            of()
        ));
    }
    let text = str::from_utf8(bytes)
        .map_err(|_| format!("{} is no text (UTF-8), as a variable's has to be", of()))?;
    if text.contains('\0') {
        return Err(format!(
            "{} contains a NUL character, which no variable can",
            of()
        ));
    }
    Ok(Some(text))
}

/// The rule `process-size` once more, with the values that it could not know.
fn fits(spec: &Effective, values: &[(&EnvReference, &str)]) -> Result<(), String> {
    let arguments = match &spec.main {
        MainCommand::Idle => &[],
        MainCommand::Entrypoint(all) | MainCommand::Command(all) => all.as_slice(),
    };
    let own = spec.env.iter();
    let total = arguments.iter().map(|text| text.len() + 1).sum::<usize>()
        + own.map(|v| v.name.len() + v.value.len() + 2).sum::<usize>()
        + values
            .iter()
            .map(|(reference, value)| reference.name.len() + value.len() + 2)
            .sum::<usize>();
    let longest = values.iter().max_by_key(|(_, value)| value.len());
    match longest {
        Some((reference, value)) if total > PROCESS_BYTES => Err(format!(
            "command, args and env have {total} bytes together; at most {PROCESS_BYTES} are allowed: the longest value, of env {}, is key {:?} \
             of the {} {:?} with {} bytes",
            reference.name,
            reference.key,
            reference.kind,
            reference.object,
            value.len()
        )),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use cloche_crds::decode;
    use cloche_crds::rules::validate;
    use serde_json::{Value, json};

    use super::*;

    fn spec(env: &Value) -> Effective {
        let object = json!({
            "apiVersion": "cloche.dev/v1alpha1",
            "kind": "Sandbox",
            "metadata": {"name": "demo"},
            "spec": {"image": "python", "env": env},
        });
        validate(&decode::sandbox(&object).unwrap()).unwrap()
    }

    fn secret(name: &str, key: &str) -> Value {
        json!({"name": name, "valueFrom": {"secretKeyRef": {"name": "db", "key": key}}})
    }

    fn found(keys: &[(&str, &[u8])]) -> Found {
        let keys = keys
            .iter()
            .map(|(key, bytes)| ((*key).to_owned(), bytes.to_vec()));
        [(
            (ReferenceKind::Secret, "db".to_owned()),
            Some(keys.collect()),
        )]
        .into()
    }

    #[test]
    fn only_what_the_spec_names_is_read_and_given() {
        let spec = spec(&json!([
            {"name": "PLAIN", "value": "x"},
            secret("PASSWORD", "password"),
            {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "db", "key": "level"}}},
        ]));
        let named = objects(&spec);
        let db = "db".to_owned();
        let keys = |key: &str| BTreeSet::from([key.to_owned()]);
        assert_eq!(
            named,
            [
                ((ReferenceKind::Secret, db.clone()), keys("password")),
                ((ReferenceKind::ConfigMap, db.clone()), keys("level"))
            ]
            .into()
        );
        let all = |length| ["password", "other"].map(|key| (key.to_owned(), vec![b'x'; length]));
        let kept = wanted(all(1 << 20), &keys("password"));
        assert_eq!(kept.len(), 1);
        assert_eq!(kept["password"].len(), ENV_VALUE + 1, "still too long");
        assert_eq!(wanted(all(3), &keys("password"))["password"], b"xxx");
        let mut found = found(&[("password", b"a=b\n"), ("other", b"hidden")]);
        let level = [("level".to_owned(), Vec::new())].into();
        found.insert((ReferenceKind::ConfigMap, db), Some(level));
        let values = values(&spec, &found).unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(values, [pair("PASSWORD", "a=b\n"), pair("LEVEL", "")]);
    }

    #[test]
    fn what_is_missing_or_cannot_be_a_value_is_named_and_not_shown() {
        let long = vec![b'z'; ENV_VALUE + 1];
        for (found, says) in [
            (Found::new(), "there is no Secret \"db\""),
            (found(&[]), "the Secret \"db\" has no key \"password\""),
            (found(&[("password", b"zz\0")]), "NUL"),
            (found(&[("password", b"zz\xff")]), "is no text (UTF-8)"),
            (found(&[("password", &long)]), "more than 32768 bytes"),
        ] {
            let fault = values(&spec(&json!([secret("A", "password")])), &found).unwrap_err();
            assert!(fault.starts_with("env A: "), "{fault}");
            assert!(fault.contains(says), "{fault}");
            assert!(fault.contains("\"db\"") && !fault.contains("zz"), "{fault}");
        }
        let many: Vec<Value> = (0..9).map(|at| secret(&format!("V{at}"), "k")).collect();
        let fault = values(&spec(&json!(many)), &found(&[])).unwrap_err();
        assert_eq!(fault.matches("has no key").count(), TOLD, "{fault}");
        assert!(fault.ends_with("; and 6 more"), "{fault}");
    }

    #[test]
    fn what_is_optional_is_left_out_but_never_taken_as_it_should_not_be() {
        let mut optional = secret("A", "password");
        optional["valueFrom"]["secretKeyRef"]["optional"] = json!(true);
        let spec = spec(&json!([optional]));
        for found in [Found::new(), found(&[])] {
            assert_eq!(values(&spec, &found), Ok(Vec::new()));
        }
        assert!(values(&spec, &found(&[("password", b"\0")])).is_err());
    }

    #[test]
    fn all_together_has_to_fit() {
        let value = vec![b'x'; ENV_VALUE];
        let env: Vec<Value> = (0..4).map(|at| secret(&format!("V{at}"), "long")).collect();
        let keys = found(&[("long", &value)]);
        let three = spec(&json!(env[..3]));
        assert_eq!(values(&three, &keys).unwrap().len(), 3);
        let fault = values(&spec(&json!(env)), &keys).unwrap_err();
        assert!(fault.contains("at most 131072"), "{fault}");
        assert!(
            fault.contains("key \"long\" of the Secret \"db\""),
            "{fault}"
        );
    }
}
