//! Why something is not done, in the words of the Kubernetes API: a `Status`. Pure.

use axum::response::{IntoResponse, Response};
use cloche_crds::cluster::GROUP;
use cloche_crds::condition::bounded;
use http::{HeaderValue, StatusCode, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};

/// The kind of a refusal: code and reason of its `Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What was asked makes no sense.
    BadRequest,
    /// Who asks cannot be told.
    Unauthorized,
    /// Who asks may not.
    Forbidden,
    /// There is no such thing.
    NotFound,
    /// This method, or this way to ask, is not offered.
    MethodNotAllowed,
    /// It cannot be done in the state that the thing is in.
    Conflict,
    /// Too much at a time.
    TooManyRequests,
    /// A fault of ours.
    InternalError,
    /// It may work again soon.
    ServiceUnavailable,
    /// Somebody did not answer in time.
    Timeout,
}

impl Kind {
    /// The HTTP status.
    pub(crate) const fn code(self) -> StatusCode {
        match self {
            Self::BadRequest => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Conflict => StatusCode::CONFLICT,
            Self::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            Self::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
            Self::ServiceUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// The word in `Status.reason`.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::BadRequest => "BadRequest",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::Conflict => "Conflict",
            Self::TooManyRequests => "TooManyRequests",
            Self::InternalError => "InternalError",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::Timeout => "Timeout",
        }
    }

    /// What an agent's refusal is.
    const fn of(code: tonic::Code) -> Self {
        use tonic::Code;
        match code {
            Code::InvalidArgument | Code::OutOfRange => Self::BadRequest,
            Code::NotFound => Self::NotFound,
            Code::FailedPrecondition | Code::AlreadyExists | Code::Aborted => Self::Conflict,
            Code::ResourceExhausted => Self::TooManyRequests,
            Code::Unavailable | Code::Cancelled => Self::ServiceUnavailable,
            Code::DeadlineExceeded => Self::Timeout,
            Code::Unimplemented => Self::MethodNotAllowed,
            // An agent that refuses a gateway is no matter of the user's rights.
            Code::Ok
            | Code::Unknown
            | Code::Internal
            | Code::DataLoss
            | Code::PermissionDenied
            | Code::Unauthenticated => Self::InternalError,
        }
    }
}

/// A refusal: one sentence for a person, and what kind it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    /// What kind.
    pub(crate) kind: Kind,
    /// What happened, to what, and what to do.
    pub(crate) message: String,
}

impl Refusal {
    /// With a bounded message without control characters: parts of it may come from a guest.
    pub(crate) fn new(kind: Kind, message: impl AsRef<str>) -> Self {
        Self {
            kind,
            message: bounded(message.as_ref()),
        }
    }

    /// As an agent put it.
    pub(crate) fn of_agent(status: &tonic::Status) -> Self {
        Self::new(Kind::of(status.code()), status.message())
    }

    /// The Kubernetes object.
    pub(crate) fn status(&self) -> Status {
        failure(self.kind.reason(), &self.message, self.kind.code(), None)
    }

    /// The same as JSON.
    pub(crate) fn json(&self) -> String {
        json(&self.status())
    }
}

/// A `Status` that tells a failure.
pub(crate) fn failure(
    reason: &str,
    message: &str,
    code: StatusCode,
    causes: Option<Vec<StatusCause>>,
) -> Status {
    Status {
        status: Some("Failure".to_owned()),
        message: Some(message.to_owned()),
        reason: Some(reason.to_owned()),
        code: Some(i32::from(code.as_u16())),
        details: causes.map(|causes| StatusDetails {
            causes: Some(causes),
            group: Some(GROUP.to_owned()),
            kind: Some("sandboxes".to_owned()),
            ..StatusDetails::default()
        }),
        ..Status::default()
    }
}

/// A `Status` as it goes over the wire.
pub(crate) fn json(status: &Status) -> String {
    // Plain strings and numbers: there is nothing in it that could fail.
    serde_json::to_string(status).unwrap_or_default()
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.kind.code(), self.json()).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if matches!(
            self.kind,
            Kind::TooManyRequests | Kind::ServiceUnavailable | Kind::Timeout
        ) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_status_of_kubernetes() {
        let refusal = Refusal::new(Kind::NotFound, "no\u{1b}[31m sandbox");
        let told: serde_json::Value = serde_json::from_str(&refusal.json()).unwrap();
        let wanted = serde_json::json!({
            "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
            "message": "no\u{fffd}[31m sandbox", "reason": "NotFound", "code": 404,
        });
        assert_eq!(told, wanted);
        let response = Refusal::new(Kind::TooManyRequests, "").into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }

    #[test]
    fn what_an_agent_refuses_is_told_as_what_it_is() {
        for (status, kind) in [
            (tonic::Status::not_found("x"), Kind::NotFound),
            (tonic::Status::failed_precondition("x"), Kind::Conflict),
            (tonic::Status::unauthenticated("x"), Kind::InternalError),
            (tonic::Status::unavailable("x"), Kind::ServiceUnavailable),
        ] {
            assert_eq!(Refusal::of_agent(&status), Refusal::new(kind, "x"));
        }
    }
}
