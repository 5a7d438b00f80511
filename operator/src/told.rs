//! How an error is told to a person.

use std::error::Error;

/// An error with all its causes, in one line. A cause that its effect already tells is not told twice: not all libraries keep to that.
pub fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        source = cause.source();
    }
    line
}
