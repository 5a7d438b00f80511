//! A made-up apiserver: as much of it as the gateway asks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, http};
use serde_json::{Value, json};

use super::authority::Authority;

/// What there is in it.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Mutex<Objects>>);

struct Objects {
    authority: Arc<Authority>,
    front_proxy: String,
    /// By namespace and name.
    sandboxes: BTreeMap<(String, String), Value>,
    nodes: BTreeMap<String, Value>,
    signed: Option<Value>,
    /// Verbs and subresources that the user may not.
    denied: Vec<(String, String)>,
    /// Every question after a user's rights.
    reviews: Vec<Value>,
    /// It answers nothing but errors.
    is_broken: bool,
}

impl Cluster {
    /// With nothing in it but the front proxy's CA, in PEM.
    pub(crate) fn new(authority: Arc<Authority>, front_proxy: String) -> Self {
        Self(Arc::new(Mutex::new(Objects {
            authority,
            front_proxy,
            sandboxes: BTreeMap::new(),
            nodes: BTreeMap::new(),
            signed: None,
            denied: Vec::new(),
            reviews: Vec::new(),
            is_broken: false,
        })))
    }

    /// A client of it.
    pub(crate) fn client(&self) -> kube::Client {
        let router = Router::new()
            .route(
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                post(review),
            )
            .route(
                "/apis/cloche.dev/v1alpha1/namespaces/{namespace}/sandboxes/{name}",
                get(sandbox),
            )
            .route("/apis/cloche.dev/v1alpha1/sandboxnodes/{name}", get(node))
            .route("/api/v1/nodes/{name}", get(address))
            .route("/api/v1/namespaces/{namespace}/configmaps", get(maps))
            .route("/api/v1/namespaces/{namespace}/configmaps/{name}", get(ca))
            .route(
                "/apis/apiregistration.k8s.io/v1/apiservices",
                get(|query| async { list(query, &[]) }),
            )
            .route(
                "/apis/certificates.k8s.io/v1/certificatesigningrequests",
                post(sign).get(signed),
            )
            .with_state(self.clone());
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let router = router.clone();
            async move { tower::ServiceExt::oneshot(router, request.map(Body::new)).await }
        });
        kube::Client::new(service, "default")
    }

    /// A sandbox, with its status.
    pub(crate) fn put_sandbox(&self, namespace: &str, name: &str, status: &Value) {
        let object = json!({
            "apiVersion": "cloche.dev/v1alpha1", "kind": "Sandbox",
            "metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{name}")},
            "spec": {"image": "python"}, "status": status,
        });
        let key = (namespace.to_owned(), name.to_owned());
        self.0.lock().unwrap().sandboxes.insert(key, object);
    }

    /// A node whose agent is at `endpoint`.
    pub(crate) fn put_node(&self, name: &str, endpoint: &str) {
        let object = json!({
            "apiVersion": "cloche.dev/v1alpha1", "kind": "SandboxNode", "metadata": {"name": name},
            "spec": {"nodeUID": "x"}, "status": {"endpoint": endpoint},
        });
        self.0.lock().unwrap().nodes.insert(name.to_owned(), object);
    }

    /// Nobody may this any more.
    pub(crate) fn deny(&self, verb: &str, subresource: &str) {
        let denied = (verb.to_owned(), subresource.to_owned());
        self.0.lock().unwrap().denied.push(denied);
    }

    /// It answers nothing but errors from now on.
    pub(crate) fn break_down(&self) {
        self.0.lock().unwrap().is_broken = true;
    }

    /// What it was asked last about a user's rights.
    pub(crate) fn last_review(&self) -> Option<Value> {
        self.0.lock().unwrap().reviews.last().cloned()
    }
}

async fn review(State(cluster): State<Cluster>, Json(mut review): Json<Value>) -> Response {
    let mut objects = cluster.0.lock().unwrap();
    if objects.is_broken {
        return refused(500);
    }
    objects.reviews.push(review.clone());
    let asked = &review["spec"]["resourceAttributes"];
    let asked = (
        asked["verb"].as_str().unwrap().to_owned(),
        asked["subresource"].as_str().unwrap().to_owned(),
    );
    let allowed = !objects.denied.contains(&asked);
    review["status"] = json!({"allowed": allowed});
    Json(review).into_response()
}

async fn sandbox(State(cluster): State<Cluster>, Path(key): Path<(String, String)>) -> Response {
    let objects = cluster.0.lock().unwrap();
    found(objects.sandboxes.get(&key))
}

async fn node(State(cluster): State<Cluster>, Path(name): Path<String>) -> Response {
    let objects = cluster.0.lock().unwrap();
    found(objects.nodes.get(&name))
}

/// Every node is this machine.
async fn address(Path(name): Path<String>) -> Response {
    let addresses = json!([{"type": "InternalIP", "address": "127.0.0.1"}]);
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"addresses": addresses},
    });
    found(Some(&node))
}

async fn ca(State(cluster): State<Cluster>) -> Response {
    let ca = cluster.0.lock().unwrap().authority.pem();
    found(Some(&map("cloche-ca", &json!({"ca.crt": ca}))))
}

async fn maps(
    State(cluster): State<Cluster>,
    Path(namespace): Path<String>,
    query: RawQuery,
) -> Response {
    let front_proxy = cluster.0.lock().unwrap().front_proxy.clone();
    let data = json!({
        "requestheader-client-ca-file": front_proxy, "requestheader-allowed-names": "[\"front-proxy\"]",
    });
    let items = match namespace.as_str() {
        "kube-system" => vec![map("extension-apiserver-authentication", &data)],
        _ => Vec::new(),
    };
    list(query, &items)
}

async fn sign(State(cluster): State<Cluster>, Json(mut request): Json<Value>) -> Response {
    use k8s_openapi::ByteString;
    let mut objects = cluster.0.lock().unwrap();
    let asked: ByteString = serde_json::from_value(request["spec"]["request"].clone()).unwrap();
    let certificate = objects.authority.sign(&asked.0);
    request["metadata"] = json!({"name": "request", "resourceVersion": "1"});
    request["status"] = json!({"certificate": ByteString(certificate.into_bytes())});
    objects.signed = Some(request.clone());
    Json(request).into_response()
}

async fn signed(State(cluster): State<Cluster>, query: RawQuery) -> Response {
    let signed = cluster.0.lock().unwrap().signed.clone();
    list(query, signed.as_slice())
}

fn map(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "resourceVersion": "1"}, "data": data})
}

fn list(RawQuery(query): RawQuery, items: &[Value]) -> Response {
    if query.unwrap_or_default().contains("watch=true") {
        // Nothing ever changes.
        let silence = futures::stream::pending::<Result<bytes::Bytes, std::io::Error>>();
        return Body::from_stream(silence).into_response();
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items});
    Json(list).into_response()
}

fn found(object: Option<&Value>) -> Response {
    match object {
        Some(object) => Json(object.clone()).into_response(),
        None => refused(404),
    }
}

fn refused(code: u16) -> Response {
    let reason = if code == 404 {
        "NotFound"
    } else {
        "InternalError"
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason});
    let code = http::StatusCode::from_u16(code).unwrap();
    (code, Json(status)).into_response()
}
