//! `describe`.

use jiff::Timestamp;

use super::print;
use crate::args::Describe;
use crate::backend::Backend;
use crate::error::Error;
use crate::object::describe;

/// Prints all about a sandbox.
pub(super) async fn describe(backend: &Backend, args: &Describe) -> Result<(), Error> {
    let object = backend.get(&args.name).await?;
    print(&describe::describe(&object, Timestamp::now()))
}
