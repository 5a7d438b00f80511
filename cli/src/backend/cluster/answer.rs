//! What the cluster said instead of what was asked for. Pure.

use kube::core::Status;

use crate::backend::{Failure, Refusal};
use crate::error::{Error, chain};

/// Who was asked, through the apiserver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// The apiserver itself, for objects.
    Objects,
    /// The gateway, for sessions and logs.
    Gateway,
}

impl Asked {
    /// What there is none of where its whole path is not known.
    const fn absent(self) -> &'static str {
        match self {
            Self::Objects => {
                "the cluster has no resource sandboxes.cloche.dev: install the chart cloche-crds"
            }
            Self::Gateway => {
                "the cluster has no API subresources.cloche.dev, which Cloche's gateway serves: install the chart cloche"
            }
        }
    }
}

/// The failure of a request to `server`.
pub(super) fn failure(problem: kube::Error, asked: Asked, server: &str) -> Failure {
    match problem {
        kube::Error::Api(answer) => status(&answer, asked),
        kube::Error::Service(source) => {
            match source.downcast_ref::<hyper_util::client::legacy::Error>() {
                Some(problem) if problem.is_connect() => Failure::Unconnected(Error::Unreached {
                    server: server.to_owned(),
                    message: chain(std::error::Error::source(problem).unwrap_or(problem)),
                }),
                Some(_) | None => Failure::broken(&chain(&*source)),
            }
        }
        kube::Error::Auth(problem) => Failure::Unconnected(Error::Credentials {
            server: server.to_owned(),
            message: chain(&problem),
        }),
        problem @ (kube::Error::HyperError(_) | kube::Error::ReadEvents(_)) => {
            Failure::broken(&chain(&problem))
        }
        // Kube's own list of errors, which may grow.
        problem => Failure::Wrong(chain(&problem)),
    }
}

/// What a `Status` means.
pub(super) fn status(status: &Status, asked: Asked) -> Failure {
    let message = &status.message;
    // Kube puts the text of an answer that is no `Status` into one of a code alone.
    let is_object = status.status.is_some() && !status.reason.contains(' ');
    match status.code {
        401 => Failure::Refused(Refusal::other(
            "the cluster does not know who you are (Unauthorized): log in again, or choose another --context",
        )),
        403 => Failure::Refused(Refusal::other(&format!(
            "{message} (a Role that allows it can be given by an administrator)"
        ))),
        404 if !is_object => Failure::Refused(Refusal::other(asked.absent())),
        404 if is_sandbox(status, asked) => Failure::Refused(Refusal::not_found(message)),
        422 => Failure::Refused(invalid(status)),
        503 if !is_object && asked == Asked::Gateway => {
            Failure::Absent(Error::Gateway(crate::object::text::plain(message)))
        }
        502..=504 if !is_object => Failure::broken(message),
        503 => Failure::broken(message),
        429 | 500 if asked == Asked::Objects => Failure::broken(message),
        code if message.is_empty() => {
            Failure::Refused(Refusal::other(&format!("the answer was {code}")))
        }
        _ => Failure::Refused(Refusal::other(message)),
    }
}

/// Whether a 404 is of the sandbox, and not of a namespace or of a command in the sandbox.
fn is_sandbox(status: &Status, asked: Asked) -> bool {
    match (&status.details, asked) {
        (Some(details), _) => details.kind.is_empty() || details.kind == "sandboxes",
        (None, Asked::Gateway) => true,
        (None, Asked::Objects) => false,
    }
}

/// A refusal with a line for each field.
fn invalid(status: &Status) -> Refusal {
    let causes = status
        .details
        .as_ref()
        .map_or(&[][..], |details| &details.causes[..]);
    let fields: Vec<String> = causes
        .iter()
        .map(|cause| match cause.field.as_str() {
            "" | "<nil>" => cause.message.clone(),
            field => format!("{field}: {}", cause.message),
        })
        .collect();
    if fields.is_empty() {
        Refusal::other(&status.message)
    } else {
        Refusal::fields("it is not valid", &fields)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> Status {
        serde_json::from_value(value).unwrap()
    }

    fn told(status: &Status, asked: Asked) -> String {
        match super::status(status, asked) {
            Failure::Refused(refusal) => format!("refused: {refusal}"),
            Failure::Broken(message) => format!("broken: {message}"),
            Failure::Unconnected(problem) => format!("unconnected: {problem}"),
            Failure::Absent(problem) => format!("absent: {problem}"),
            Failure::Wrong(message) => format!("wrong: {message}"),
        }
    }

    #[test]
    fn answers() {
        let of = |code: u16, reason: &str, message: &str| {
            read(
                json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}),
            )
        };
        let text = |code: u16, message: &str| {
            Status::failure(message, "Failed to parse error data").with_code(code)
        };
        let mut absent = of(404, "NotFound", "sandboxes.cloche.dev \"demo\" not found");
        absent.details = serde_json::from_value(json!({"kind": "sandboxes"})).unwrap();
        let mut namespace = of(404, "NotFound", "namespaces \"nope\" not found");
        namespace.details = serde_json::from_value(json!({"kind": "namespaces"})).unwrap();
        let mut invalid = of(
            422,
            "Invalid",
            "Sandbox.cloche.dev \"demo\" is invalid: ...",
        );
        invalid.details = serde_json::from_value(json!({"causes": [
            {"field": "spec.image", "message": "Invalid value: \"\": must not be empty"},
            {"field": "<nil>", "message": "some rules were not checked\u{1b}"},
        ]}))
        .unwrap();
        let lines: Vec<String> = [
            (of(401, "Unauthorized", "Unauthorized"), Asked::Objects),
            (of(403, "Forbidden", "no"), Asked::Objects),
            (absent, Asked::Objects),
            (namespace, Asked::Objects),
            (text(404, "404 page not found"), Asked::Objects),
            (text(404, "404 page not found"), Asked::Gateway),
            (of(404, "NotFound", "no such command"), Asked::Gateway),
            (invalid, Asked::Objects),
            (of(409, "AlreadyExists", "exists"), Asked::Objects),
            (of(409, "Conflict", "not running"), Asked::Gateway),
            (text(503, "service unavailable"), Asked::Gateway),
            (
                of(503, "ServiceUnavailable", "agent silent"),
                Asked::Gateway,
            ),
            (of(503, "ServiceUnavailable", "leader"), Asked::Objects),
            (of(500, "InternalError", "etcd"), Asked::Objects),
            (of(500, "InternalError", "bug"), Asked::Gateway),
            (of(429, "TooManyRequests", "later"), Asked::Gateway),
            (text(502, "<html>"), Asked::Gateway),
            (of(0, "ServiceUnavailable", ""), Asked::Gateway),
        ]
        .iter()
        .map(|(status, asked)| told(status, *asked))
        .collect();
        insta::assert_snapshot!(lines.join("\n"));
    }
}
