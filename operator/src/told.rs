//! How an error is told to a person.

use std::error::Error;

/// An error with all its causes, in one line. A cause that its effect already tells is not told twice: not all libraries keep to that.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut line = text(error);
    let mut source = error.source();
    while let Some(cause) = source {
        let text = text(cause);
        if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        // What the apiserver said is its last word.
        if of_apiserver(cause).is_some() {
            break;
        }
        source = cause.source();
    }
    line
}

/// The client tells an answer with all of its fields.
fn text(error: &(dyn Error + 'static)) -> String {
    of_apiserver(error).map_or_else(
        || error.to_string(),
        |status| format!("{} ({}, {})", status.message, status.code, status.reason),
    )
}

fn of_apiserver<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a kube::core::Status> {
    let error = error
        .downcast_ref::<kube::Error>()
        .or_else(|| error.downcast_ref::<Box<kube::Error>>().map(AsRef::as_ref));
    match error? {
        kube::Error::Api(status) => Some(status),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("write it")]
    struct Outer(#[source] Box<kube::Error>);

    #[test]
    fn an_answer_is_told_in_its_own_words() {
        let status = kube::core::Status::failure("no such thing", "NotFound").with_code(404);
        let error = Outer(Box::new(kube::Error::Api(Box::new(status))));
        assert_eq!(chain(&error), "write it: no such thing (404, NotFound)");
    }
}
