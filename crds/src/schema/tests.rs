use super::*;

fn root() -> Value {
    schema_of(sandbox())
}

fn schema_of(crd: Result<CustomResourceDefinition, SchemaError>) -> Value {
    let crd = serde_json::to_value(crd.unwrap()).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// Calls `look` with every schema below, and its path.
fn walk(path: &str, schema: &Value, look: &mut impl FnMut(&str, &Value)) {
    look(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), property, look);
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            walk(&format!("{path}[]"), &schema[inner], look);
        }
    }
}

#[test]
fn every_string_list_and_map_is_bounded() {
    assert_bounded(&root(), 50);
    assert_bounded(&schema_of(sandbox_node()), 20);
}

fn assert_bounded(root: &Value, least: usize) {
    let mut seen = 0;
    walk("", root, &mut |path, schema| {
        seen += 1;
        let is_text = schema["type"] == "string" || schema["x-kubernetes-int-or-string"] == true;
        // The apiserver's own, and short by nature.
        let is_root = [".apiVersion", ".kind"].contains(&path);
        if is_text && !is_root {
            let bounded = ["maxLength", "enum", "format"];
            assert!(
                bounded.iter().any(|key| !schema[key].is_null()),
                "{path}: {schema}"
            );
        }
        if schema["type"] == "array" {
            assert!(schema["maxItems"].is_number(), "{path}: {schema}");
            assert!(
                schema["x-kubernetes-list-type"].is_string(),
                "{path}: {schema}"
            );
        }
        if schema["additionalProperties"].is_object() {
            assert!(schema["maxProperties"].is_number(), "{path}: {schema}");
        }
        assert!(
            schema["x-kubernetes-preserve-unknown-fields"].is_null(),
            "{path}: {schema}"
        );
        let has_default = schema
            .get("default")
            .is_some_and(|default| !default.is_null());
        assert!(!has_default, "{path} has a default: {schema}");
    });
    assert!(seen > least, "{seen} schemas looked at");
}

/// A field that is added to the spec is either changeable or fixed, on purpose.
#[test]
fn what_is_not_lifecycle_is_fixed() {
    let root = root();
    let fields = root["properties"]["spec"]["properties"]
        .as_object()
        .unwrap();
    let mut known: Vec<&str> = FIXED.to_vec();
    known.push("lifecycle");
    known.sort_unstable();
    let found: Vec<&str> = fields.keys().map(String::as_str).collect();
    assert_eq!(found, known);
}

#[test]
fn a_bound_of_no_field_is_an_error() {
    let mut root = root();
    for path in ["spec.nope", "spec.env[].nope", "spec.image[]"] {
        let error = add(&mut root, path, json!({"maxLength": 1})).unwrap_err();
        assert!(error.to_string().contains(path), "{error}");
    }
}
