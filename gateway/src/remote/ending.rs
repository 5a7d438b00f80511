//! The end of a command as a `Status` of Kubernetes. Pure.

use cloche_crds::condition::bounded;
use cloche_proto::agent::v1alpha1::Exit;
use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause};

use crate::refusal::{Kind, failure};

/// The reason by which clients know that the command ran and ended by itself (`k8s.io/apimachinery/pkg/util/remotecommand`).
const NON_ZERO: &str = "NonZeroExitCode";
/// The cause that holds the exit code.
const EXIT_CODE: &str = "ExitCode";

/// `lost`: bytes of output that the client was to get, could not be told of in between, and never will.
pub(super) fn status(exit: &Exit, lost: u64) -> Status {
    if lost > 0 {
        let code = exit.code;
        let message = format!(
            "the command ended with exit code {code}, but {lost} bytes of its output are lost: they are no longer kept"
        );
        return failed(Kind::InternalError, &message);
    }
    // The agent promises 0 to 255 for an end that is known, and clients refuse another number.
    match exit.code {
        // Of a success there is nothing to say but that it is not whole: the end of its output is lost.
        0 if !exit.message.is_empty() => {
            let message = format!("the command ended with exit code 0, but {}", exit.message);
            failed(Kind::InternalError, &message)
        }
        0 => Status {
            status: Some("Success".to_owned()),
            ..Status::default()
        },
        1..=255 => {
            let cause = |reason: &str, message: String| StatusCause {
                reason: Some(reason.to_owned()),
                message: Some(message),
                field: None,
            };
            let mut causes = vec![cause(EXIT_CODE, exit.code.to_string())];
            if exit.signal > 0 {
                causes.push(cause("Signal", exit.signal.to_string()));
            }
            if exit.timed_out {
                causes.push(cause("TimedOut", format!("{} ms", exit.duration_ms)));
            }
            if !exit.sandbox_reason.is_empty() {
                causes.push(cause("SandboxEnded", bounded(&exit.sandbox_reason)));
            }
            failure(
                NON_ZERO,
                &message(exit),
                StatusCode::INTERNAL_SERVER_ERROR,
                Some(causes),
            )
        }
        _ if exit.message.is_empty() => {
            failed(Kind::InternalError, "how the command ended is not known")
        }
        _ => {
            let message = format!("how the command ended is not known: {}", exit.message);
            failed(Kind::InternalError, &message)
        }
    }
}

fn failed(kind: Kind, message: &str) -> Status {
    failure(kind.reason(), &bounded(message), kind.code(), None)
}

fn message(exit: &Exit) -> String {
    let mut message = format!(
        "command terminated with non-zero exit code: exit status {}",
        exit.code
    );
    if exit.timed_out {
        message.push_str(": its timeout was over");
    }
    if !exit.message.is_empty() {
        message.push_str(": ");
        message.push_str(&exit.message);
    }
    bounded(&message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ends_are_told_as_clients_read_them() {
        let ok = status(&Exit::default(), 0);
        assert_eq!(ok.status.as_deref(), Some("Success"));
        let killed = Exit {
            code: 137,
            signal: 9,
            timed_out: true,
            duration_ms: 1500,
            ..Exit::default()
        };
        let wanted = json!({
            "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "code": 500,
            "message": "command terminated with non-zero exit code: exit status 137: its timeout was over",
            "details": {"group": "cloche.dev", "kind": "sandboxes", "causes": [
                {"reason": "ExitCode", "message": "137"}, {"reason": "Signal", "message": "9"},
                {"reason": "TimedOut", "message": "1500 ms"}]},
        });
        assert_eq!(serde_json::to_value(status(&killed, 0)).unwrap(), wanted);
    }

    #[test]
    fn an_end_that_is_not_known_is_no_exit_code() {
        let lost = Exit {
            code: -1,
            message: "init no longer knows it".into(),
            ..Exit::default()
        };
        let cut_short = Exit {
            message: "the end of its output is lost".into(),
            ..Exit::default()
        };
        for status in [
            status(&lost, 0),
            status(&Exit { code: 256, ..lost }, 0),
            status(&Exit::default(), 7),
            status(&cut_short, 0),
        ] {
            assert_eq!(status.reason.as_deref(), Some("InternalError"));
            assert_eq!(status.details, None);
        }
    }
}
