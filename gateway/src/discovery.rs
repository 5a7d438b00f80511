//! What the gateway offers, as clients of Kubernetes ask for it. Constant: an aggregated API whose discovery fails holds up the deletion
//! of every namespace of the cluster.

use axum::Json;
use axum::Router;
use axum::routing::get;
use cloche_crds::cluster::{SUBRESOURCES_GROUP, VERSION};
use cloche_crds::sandbox::KIND;
use serde_json::{Value, json};

/// The path of the version.
pub(crate) const ROOT: &str = "/apis/subresources.cloche.dev/v1alpha1";

/// Everything that is known without asking anybody.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/apis", get(|| async { Json(groups()) }))
        .route(
            "/apis/subresources.cloche.dev",
            get(|| async { Json(group()) }),
        )
        .route(ROOT, get(|| async { Json(resources()) }))
        // The apiserver merges these into its own; there are no types here to speak of.
        .route("/openapi/v2", get(|| async { Json(openapi()) }))
        .route("/openapi/v3", get(|| async { Json(json!({"paths": {}})) }))
        .route(
            "/version",
            get(|| async { Json(json!({"gitVersion": concat!("v", env!("CARGO_PKG_VERSION"))})) }),
        )
}

fn version() -> Value {
    json!({"groupVersion": format!("{SUBRESOURCES_GROUP}/{VERSION}"), "version": VERSION})
}

fn group() -> Value {
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": SUBRESOURCES_GROUP,
        "versions": [version()], "preferredVersion": version(),
    })
}

fn groups() -> Value {
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]})
}

fn resources() -> Value {
    let resource = |name: &str, verbs: &[&str]| {
        json!({
            "name": format!("sandboxes/{name}"), "singularName": "", "namespaced": true, "kind": KIND, "verbs": verbs,
        })
    };
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{SUBRESOURCES_GROUP}/{VERSION}"),
        "resources": [
            resource("attach", &["create", "get"]),
            resource("exec", &["create", "get"]),
            resource("log", &["get"]),
            resource("usage", &["get"]),
        ],
    })
}

fn openapi() -> Value {
    json!({"swagger": "2.0", "info": {"title": "Cloche", "version": VERSION}, "paths": {}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_names_the_same_version() {
        assert_eq!(ROOT, format!("/apis/{SUBRESOURCES_GROUP}/{VERSION}"));
        let listed = resources();
        assert_eq!(listed["groupVersion"], version()["groupVersion"]);
        assert_eq!(groups()["groups"][0], group());
    }
}
