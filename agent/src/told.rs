//! How an error is told to a person.

use std::error::Error;

/// An error with all its causes, in one line. The texts themselves never repeat their causes, so this is where they meet.
pub fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        line.push_str(": ");
        line.push_str(&cause.to_string());
        source = cause.source();
    }
    line
}
