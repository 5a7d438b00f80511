//! The apiserver as a client sees it that writes raw JSON.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use cloche_e2e::rig::ControlPlane;
use http::{Method, Request};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

const CHART: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../charts/cloche-crds/templates"
);

/// How a patch is meant.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patch {
    /// A list of operations (RFC 6902).
    Json,
    /// An object that is laid over (RFC 7386); null takes away.
    Merge,
}

/// What the apiserver answered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Done(Value),
    Refused(Refusal),
}

/// A refusal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    /// The status code of HTTP.
    pub(crate) code: u16,
    pub(crate) message: String,
    /// The fields that it names.
    pub(crate) fields: BTreeSet<String>,
}

impl Answer {
    /// The object that was stored.
    pub(crate) fn done(self, what: &str) -> Result<Value> {
        match self {
            Self::Done(object) => Ok(object),
            Self::Refused(refusal) => bail!("{what} was refused: {refusal:?}"),
        }
    }

    /// That it was refused with a code and words.
    pub(crate) fn refused(self, what: &str, code: u16, says: &str) -> Result<()> {
        match self {
            Self::Refused(refusal) if refusal.code == code && refusal.message.contains(says) => {
                Ok(())
            }
            Self::Refused(refusal) => bail!("{what} was refused by other words: {refusal:?}"),
            Self::Done(object) => bail!("{what} was accepted: {object}"),
        }
    }
}

/// A namespace of the shared control plane, which has the CRDs.
pub(crate) struct Server {
    client: kube::Client,
    namespace: String,
}

impl Server {
    /// The control plane and a new namespace in it.
    pub(crate) async fn new(namespace: &str) -> Result<Self> {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        let plane = ControlPlane::shared().await?;
        INSTALLED.get_or_try_init(|| install(plane)).await?;
        let server = Self {
            client: plane.client().await?,
            namespace: namespace.to_owned(),
        };
        let object =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        server
            .send(
                Method::POST,
                "/api/v1/namespaces",
                "application/json",
                &object,
            )
            .await?
            .done("a namespace")?;
        Ok(server)
    }

    fn path(&self, rest: &str) -> String {
        Self::path_in(&self.namespace, rest)
    }

    fn path_in(namespace: &str, rest: &str) -> String {
        // As kubectl asks: a field that it does not know is an error and no warning.
        format!(
            "/apis/cloche.dev/v1alpha1/namespaces/{namespace}/sandboxes{rest}?fieldValidation=Strict"
        )
    }

    /// In the namespace that the object names, if it does.
    pub(crate) async fn create(&self, object: &Value) -> Result<Answer> {
        let path = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Self::path_in(namespace, ""),
            None => self.path(""),
        };
        self.send(Method::POST, &path, "application/json", object)
            .await
    }

    /// Creates one, with what the apiserver gave it.
    pub(crate) async fn made(&self, name: &str, spec: Value) -> Result<Value> {
        let object = json!({
            "apiVersion": "cloche.dev/v1alpha1", "kind": "Sandbox", "metadata": {"name": name}, "spec": spec,
        });
        self.create(&object).await?.done(name)
    }

    /// `rest` is a name, or `NAME/status`.
    pub(crate) async fn replace(&self, rest: &str, object: &Value) -> Result<Answer> {
        let path = self.path(&format!("/{rest}"));
        self.send(Method::PUT, &path, "application/json", object)
            .await
    }

    pub(crate) async fn patch(&self, rest: &str, kind: Patch, change: &Value) -> Result<Answer> {
        let path = self.path(&format!("/{rest}"));
        let kind = match kind {
            Patch::Json => "application/json-patch+json",
            Patch::Merge => "application/merge-patch+json",
        };
        self.send(Method::PATCH, &path, kind, change).await
    }

    pub(crate) async fn get(&self, name: &str) -> Result<Value> {
        let path = self.path(&format!("/{name}"));
        self.send(Method::GET, &path, "application/json", &Value::Null)
            .await?
            .done(name)
    }

    /// Deletes one, as it was told.
    pub(crate) async fn delete(&self, object: &Value) -> Result<()> {
        let metadata = &object["metadata"];
        let (namespace, name) = (metadata["namespace"].as_str(), metadata["name"].as_str());
        let name = name.context("an object without a name")?;
        let path = Self::path_in(namespace.unwrap_or(&self.namespace), &format!("/{name}"));
        self.send(Method::DELETE, &path, "application/json", &Value::Null)
            .await?
            .done(name)?;
        Ok(())
    }

    /// Any request; null is no body.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> Result<Answer> {
        let body = match body {
            Value::Null => Vec::new(),
            body => serde_json::to_vec(body).context("write a request")?,
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind)
            .body(body)
            .context("make a request")?;
        match self.client.request::<Value>(request).await {
            Ok(object) => Ok(Answer::Done(object)),
            Err(kube::Error::Api(status)) => {
                let causes = status.details.iter().flat_map(|details| &details.causes);
                let fields = causes
                    .map(|cause| cause.field.clone())
                    // Said of no field: that there may be more to mend.
                    .filter(|field| !field.is_empty() && field != "<nil>")
                    .chain(unknown_fields(&status.message))
                    .collect();
                Ok(Answer::Refused(Refusal {
                    code: status.code,
                    message: status.message.clone(),
                    fields,
                }))
            }
            Err(problem) => Err(problem).with_context(|| format!("ask for {path}")),
        }
    }
}

/// Of `unknown field "a", unknown field "b"`.
fn unknown_fields(message: &str) -> Vec<String> {
    message
        .split("unknown field \"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .map(str::to_owned)
        .collect()
}

/// Installs the CRDs as a person would.
async fn install(plane: &ControlPlane) -> Result<()> {
    let chart = Path::new(CHART).to_string_lossy().into_owned();
    plane.kubectl_text(&["apply", "--filename", &chart]).await?;
    plane
        .kubectl_text(&[
            "wait",
            "--for=condition=Established",
            "--timeout=30s",
            "crd/sandboxes.cloche.dev",
            "crd/sandboxnodes.cloche.dev",
        ])
        .await?;
    Ok(())
}
