//! Requests for objects. Pure.

use cloche_crds::cluster::{DRAIN_TAINT, GROUP, SUBRESOURCES_GROUP, VERSION};
use cloche_proto::agent::v1alpha1::LogRequest;
use http::Request;
use http::header::CONTENT_TYPE;
use kube::core::Request as Requests;
use kube::core::params::{
    DeleteParams, GetParams, ListParams, Patch, PatchParams, Preconditions, ValidationDirective,
    WatchParams,
};
use serde_json::{Value, json};

use crate::backend::{Failure, Refusal, Selection};

/// Who writes, in `metadata.managedFields`.
const MANAGER: &str = "kubectl-sandbox";
/// Objects of one answer to a list, as kubectl asks for them.
const PAGE: u32 = 500;
/// How long a watch lasts before it is asked for again, in seconds: kube allows no longer one.
const WATCH: u32 = 290;
/// Longest name of an object or namespace.
const NAME: usize = 253;

/// A request, or why there can be none.
type Asking = Result<Request<Vec<u8>>, Failure>;

/// The objects of a namespace.
#[derive(Debug, Clone)]
pub(super) struct Objects {
    namespace: String,
}

impl Objects {
    pub(super) fn new(namespace: &str) -> Result<Self, Refusal> {
        if !is_name(namespace) {
            return Err(Refusal::other(&format!("{namespace:?} is no namespace")));
        }
        Ok(Self {
            namespace: namespace.to_owned(),
        })
    }

    fn requests(&self, selection: &Selection) -> Requests {
        Requests::new(match selection {
            Selection::Everywhere(_) | Selection::OnNode(_) => {
                format!("/apis/{GROUP}/{VERSION}/sandboxes")
            }
            Selection::One(_) | Selection::All(_) => format!(
                "/apis/{GROUP}/{VERSION}/namespaces/{}/sandboxes",
                self.namespace
            ),
        })
    }

    fn one(&self) -> Requests {
        self.requests(&Selection::All(None))
    }

    pub(super) fn get(&self, name: &str) -> Asking {
        built(self.one().get(checked(name)?, &GetParams::default()))
    }

    /// A page of a list, at `next` of the page before.
    pub(super) fn list(&self, selection: &Selection, next: Option<&str>) -> Asking {
        let mut params = ListParams::default().limit(PAGE);
        params.continue_token = next.map(str::to_owned);
        match selection {
            Selection::One(name) => {
                params = params.fields(&format!("metadata.name={}", checked(name)?));
            }
            Selection::OnNode(node) => {
                params = params.fields(&format!("status.nodeName={}", checked(node)?));
            }
            Selection::All(labels) | Selection::Everywhere(labels) => {
                params.label_selector.clone_from(labels);
            }
        }
        built(self.requests(selection).list(&params))
    }

    /// All changes after `version`.
    pub(super) fn watch(&self, selection: &Selection, version: &str) -> Asking {
        let mut params = WatchParams::default().timeout(WATCH);
        match selection {
            Selection::One(name) => {
                params = params.fields(&format!("metadata.name={}", checked(name)?));
            }
            Selection::OnNode(node) => {
                params = params.fields(&format!("status.nodeName={}", checked(node)?));
            }
            Selection::All(labels) | Selection::Everywhere(labels) => {
                params.label_selector.clone_from(labels);
            }
        }
        built(self.requests(selection).watch(&params, version))
    }

    /// `check_only`: all but storing it.
    pub(super) fn create(&self, manifest: Vec<u8>, check_only: bool) -> Asking {
        // A field that is not known is refused, as by kubectl: nothing is accepted and ignored. Kube has no way to ask for that.
        let mut path = format!(
            "{}?fieldManager={MANAGER}&fieldValidation=Strict",
            self.one().url_path
        );
        if check_only {
            path.push_str("&dryRun=All");
        }
        Request::post(path)
            .header(CONTENT_TYPE, "application/json")
            .body(manifest)
            .map_err(|problem| Failure::Refused(Refusal::other(&problem.to_string())))
    }

    /// Changes what `patch` names.
    pub(super) fn merge(&self, name: &str, patch: &Value) -> Asking {
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            // A server that is older than a field drops it otherwise, and says so only in a header.
            field_validation: Some(ValidationDirective::Strict),
            ..PatchParams::default()
        };
        built(
            self.one()
                .patch(checked(name)?, &params, &Patch::Merge(patch)),
        )
    }

    /// Of this UID alone, where one is given.
    pub(super) fn delete(&self, name: &str, uid: Option<&str>) -> Asking {
        let params = DeleteParams {
            preconditions: uid.map(|uid| Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        built(self.one().delete(checked(name)?, &params))
    }

    /// Events of the object of this UID.
    pub(super) fn events(&self, uid: &str) -> Asking {
        let params = ListParams::default()
            .limit(PAGE)
            .fields(&format!("involvedObject.uid={uid}"));
        built(Requests::new(format!("/api/v1/namespaces/{}/events", self.namespace)).list(&params))
    }

    /// What a sandbox uses.
    pub(super) fn usage(&self, name: &str) -> Asking {
        Request::get(self.subresource(name, "usage")?)
            .body(Vec::new())
            .map_err(|problem| Failure::Refused(Refusal::other(&problem.to_string())))
    }

    /// Path of a session: whoever has a command runs it, and whoever has none attaches.
    pub(super) fn session(&self, name: &str, runs: bool) -> Result<String, Failure> {
        self.subresource(name, if runs { "exec" } else { "attach" })
    }

    /// Path and query of a log.
    pub(super) fn log(&self, name: &str, request: &LogRequest) -> Result<String, Failure> {
        let mut query = Vec::new();
        if !request.command_id.is_empty() {
            // Not the apiserver's to judge, but nothing else can stand in a query unescaped.
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            if !request.command_id.bytes().all(is_plain) {
                return Err(Failure::Refused(Refusal::other(&format!(
                    "{:?} names no command: letters, digits, '.', '_' and '-' may stand in a name",
                    request.command_id
                ))));
            }
            query.push(format!("commandId={}", request.command_id));
        }
        if request.follow {
            query.push("follow=true".to_owned());
        }
        if request.tail_bytes > 0 {
            query.push(format!("tailBytes={}", request.tail_bytes));
        }
        if let Some(offset) = request.stdout_offset {
            query.push(format!("stdoutOffset={offset}"));
        }
        if let Some(offset) = request.stderr_offset {
            query.push(format!("stderrOffset={offset}"));
        }
        let path = self.subresource(name, "log")?;
        Ok(if query.is_empty() {
            path
        } else {
            format!("{path}?{}", query.join("&"))
        })
    }

    fn subresource(&self, name: &str, what: &str) -> Result<String, Failure> {
        Ok(format!(
            "/apis/{SUBRESOURCES_GROUP}/{VERSION}/namespaces/{}/sandboxes/{}/{what}",
            self.namespace,
            checked(name)?
        ))
    }
}

/// Nothing that could lead elsewhere in a path.
fn is_name(name: &str) -> bool {
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
    (1..=NAME).contains(&name.len())
        && name.bytes().all(is_plain)
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
}

fn checked(name: &str) -> Result<&str, Failure> {
    if is_name(name) {
        Ok(name)
    } else {
        Err(Failure::Refused(Refusal::other(&format!(
            "{name:?} is no name of a sandbox: lower case letters, digits and '-' may stand in one"
        ))))
    }
}

fn built(request: Result<Request<Vec<u8>>, kube::core::request::Error>) -> Asking {
    request.map_err(|problem| Failure::Refused(Refusal::other(&problem.to_string())))
}

/// A Node.
pub(super) fn node(name: &str) -> Asking {
    built(Requests::new("/api/v1/nodes").get(checked(name)?, &GetParams::default()))
}

/// Changes a Node.
pub(super) fn patch_node(name: &str, patch: &Value) -> Asking {
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    built(Requests::new("/api/v1/nodes").patch(checked(name)?, &params, &Patch::Merge(patch)))
}

/// What has a Node drained, or not any more, if it is otherwise; refused where somebody else has written it since.
pub(super) fn taints(node: &Value, is_drained: bool) -> Option<Value> {
    let is_it = |taint: &&Value| taint["key"] == DRAIN_TAINT;
    let before = node.pointer("/spec/taints").and_then(Value::as_array);
    let before = before.map_or(&[][..], Vec::as_slice);
    if before.iter().any(|taint| is_it(&taint)) == is_drained {
        return None;
    }
    let others = before.iter().filter(|taint| !is_it(taint)).cloned();
    let ours = is_drained.then(|| json!({"key": DRAIN_TAINT, "effect": "NoSchedule"}));
    let taints: Vec<Value> = others.chain(ours).collect();
    Some(json!({
        "metadata": {"resourceVersion": node.pointer("/metadata/resourceVersion")},
        "spec": {"taints": taints},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        let objects = Objects::new("team").unwrap();
        let one = Selection::One("demo".into());
        let some = Selection::All(Some("a=b,c".into()));
        let asked = [
            objects.get("demo"),
            objects.list(&one, None),
            objects.list(&some, Some("next")),
            objects.list(&Selection::Everywhere(None), None),
            objects.watch(&one, "7"),
            objects.watch(&some, "7"),
            objects.create(b"{}".to_vec(), false),
            objects.create(b"{}".to_vec(), true),
            objects.delete("demo", None),
            objects.events("u-1"),
        ];
        let mut lines: Vec<String> = asked
            .into_iter()
            .map(|asked| asked.unwrap())
            .map(|request| format!("{} {}", request.method(), request.uri()))
            .collect();
        let log = LogRequest {
            command_id: "one".into(),
            follow: true,
            tail_bytes: 5,
            ..LogRequest::default()
        };
        lines.extend([
            objects.session("demo", true).unwrap(),
            objects.session("demo", false).unwrap(),
            objects.log("demo", &LogRequest::default()).unwrap(),
            objects.log("demo", &log).unwrap(),
        ]);
        insta::assert_snapshot!(lines.join("\n"));
        let of_uid = objects.delete("demo", Some("u-1")).unwrap().into_body();
        let of_uid: Value = serde_json::from_slice(&of_uid).unwrap();
        assert_eq!(of_uid["preconditions"], serde_json::json!({"uid": "u-1"}));
    }

    #[test]
    fn what_names_nothing_is_not_asked_for() {
        let objects = Objects::new("team").unwrap();
        for name in ["", ".", "..", "a/b", "a?b", "A", "-a", &"a".repeat(254)] {
            assert!(objects.get(name).is_err(), "{name}");
            assert!(objects.session(name, true).is_err(), "{name}");
            assert!(Objects::new(name).is_err(), "{name}");
        }
        let log = LogRequest {
            command_id: "a&follow=true".into(),
            ..LogRequest::default()
        };
        assert!(objects.log("demo", &log).is_err());
    }

    #[test]
    fn a_drain_keeps_other_taints_and_writes_only_what_changes() {
        let other = json!({"key": "gpu", "effect": "NoSchedule"});
        let node = |taints: Value| json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": taints}});
        let patch = taints(&node(json!([other])), true).unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["spec"]["taints"][0], other);
        assert_eq!(patch["spec"]["taints"][1]["key"], DRAIN_TAINT);
        let drained = node(patch["spec"]["taints"].clone());
        assert_eq!(taints(&drained, true), None);
        let undone = taints(&drained, false).unwrap();
        assert_eq!(undone["spec"]["taints"], json!([other]));
        assert_eq!(taints(&json!({}), false), None);
    }
}
