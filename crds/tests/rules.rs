//! The table of accept and deny (`tests/rules/*.yaml`) against the rules.

#![allow(clippy::unwrap_used, clippy::panic)] // a whole file of tests; the functions beside them are not marked as such

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cloche_crds::rules::{RULES, Violation, check_update, validate};
use cloche_crds::{Sandbox, decode};
use serde_json::json;
use table::Case;

fn cases() -> Vec<(String, Case)> {
    table::cases(Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/rules"
    )))
}

fn paths(violations: &[Violation]) -> Vec<String> {
    violations
        .iter()
        .map(|violation| violation.path.clone())
        .collect()
}

/// What the rules, one by one, say of an object.
fn broken(sandbox: &Sandbox) -> BTreeMap<String, Vec<Violation>> {
    RULES
        .iter()
        .map(|rule| (rule.name.to_owned(), (rule.check)(sandbox)))
        .filter(|(_, violations)| !violations.is_empty())
        .collect()
}

#[test]
fn the_table_holds() {
    for (title, case) in cases() {
        let said: Vec<Violation> = match decode::sandbox(&case.object()) {
            Err(refusal) => {
                assert_eq!(paths(&refusal.0), case.refused, "{title}: {refusal}");
                refusal.0
            }
            Ok(sandbox) => {
                assert!(case.refused.is_empty(), "{title}: was read");
                let mut broken = broken(&sandbox);
                match validate(&sandbox) {
                    Ok(_) => assert!(broken.is_empty(), "{title}: {broken:?}"),
                    Err(violations) => {
                        let told: BTreeSet<_> = violations.0.into_iter().collect();
                        let each: BTreeSet<_> = broken.values().flatten().cloned().collect();
                        assert_eq!(told, each, "{title}");
                    }
                }
                if let Some(old) = case.old() {
                    let old = decode::sandbox(&old).unwrap();
                    let refused = check_update(&old, &sandbox);
                    if !refused.is_empty() {
                        broken.insert("update".to_owned(), refused);
                    }
                }
                let found: BTreeMap<_, _> = broken
                    .iter()
                    .map(|(rule, all)| (rule.clone(), paths(all)))
                    .collect();
                assert_eq!(found, case.breaks, "{title}");
                broken.into_values().flatten().collect()
            }
        };
        if let Some(says) = &case.says {
            assert!(
                said.iter().any(|v| v.message.contains(says.as_str())),
                "{title}: {said:?}"
            );
        }
    }
}

#[test]
fn every_rule_is_seen_to_accept_and_to_deny() {
    let cases = cases();
    let names: BTreeSet<_> = RULES.iter().map(|rule| rule.name).collect();
    assert_eq!(names.len(), RULES.len(), "two rules have one name");
    for name in names.iter().copied().chain(["update"]) {
        let denied = cases
            .iter()
            .filter(|(_, case)| case.breaks.contains_key(name))
            .count();
        assert!(denied > 0, "no case breaks {name}");
    }
    for (title, case) in &cases {
        for rule in case.breaks.keys() {
            assert!(
                names.contains(rule.as_str()) || rule == "update",
                "{title}: no rule {rule}"
            );
        }
    }
    assert!(
        cases
            .iter()
            .filter(|(_, case)| case.breaks.is_empty())
            .count()
            > 30
    );
}

#[test]
fn what_is_no_sandbox_is_told_so_and_nothing_else() {
    for (value, path) in [
        (json!(null), "object"),
        (json!([]), "object"),
        (json!("Sandbox"), "object"),
        (json!({"kind": "Sandbox"}), "apiVersion"),
        (
            json!({"apiVersion": "v1", "kind": "Sandbox", "extra": 1}),
            "apiVersion",
        ),
        (
            json!({"apiVersion": "cloche.dev/v1alpha1", "kind": "Pod"}),
            "kind",
        ),
        (
            json!({"apiVersion": "cloche.dev/v1alpha1", "kind": 1}),
            "kind",
        ),
    ] {
        let refusal = decode::sandbox(&value).unwrap_err();
        assert_eq!(paths(&refusal.0), [path], "{value}");
    }
    let neither = decode::sandbox(&json!({"apiVersion": "v1", "kind": "Pod"})).unwrap_err();
    assert_eq!(paths(&neither.0), ["apiVersion", "kind"]);
    let bare =
        json!({"apiVersion": "cloche.dev/v1alpha1", "kind": "Sandbox", "status": {}, "x": 1});
    let refusal = decode::sandbox(&bare).unwrap_err();
    assert_eq!(paths(&refusal.0), ["status", "x", "metadata", "spec"]);
}

#[test]
fn messages_stay_short_and_keep_secrets() {
    let secret = "hunter2".repeat(6000);
    let object = json!({
        "apiVersion": "cloche.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": "x".repeat(100_000)},
        "spec": {
            "image": "oci:../".repeat(70),
            "workingDir": "y".repeat(4000),
            "env": [{"name": "A", "value": secret}],
        },
    });
    let violations = validate(&decode::sandbox(&object).unwrap()).unwrap_err();
    assert_eq!(violations.0.len(), 4);
    for violation in &violations.0 {
        assert!(violation.to_string().len() < 1000, "{violation}");
        assert!(!violation.message.contains("hunter2"), "{violation}");
    }
}
