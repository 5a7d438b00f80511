//! What it means that the apiserver finds an object invalid (422).

use kube::core::Status;

/// Who refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The schema, or a rule in it: it names a field, and will refuse the same again.
    Rule,
    /// A JSON patch one of whose tests failed: what it was made for has changed. It is told without a cause that is anybody's but the
    /// apiserver's.
    Test,
    /// A policy or a webhook of somebody else, who may think otherwise later.
    Foreign,
}

impl Refusal {
    /// Of an answer with the code 422.
    pub fn of(status: &Status) -> Self {
        let causes = status.details.as_ref();
        let causes = causes.map_or(&[][..], |details| &details.causes);
        if causes.iter().any(|cause| !cause.field.is_empty()) {
            return Self::Rule;
        }
        let is_apiservers = causes
            .iter()
            .all(|cause| cause.reason == "UnexpectedServerResponse");
        if is_apiservers && !status.message.starts_with("admission webhook") {
            Self::Test
        } else {
            Self::Foreign
        }
    }
}
