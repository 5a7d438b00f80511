//! `describe`.

use jiff::Timestamp;

use super::print;
use crate::args::Describe;
use crate::backend::Backend;
use crate::error::{self, Error};
use crate::object::describe;

/// Prints all about a sandbox.
pub(super) async fn describe(backend: &Backend, args: &Describe) -> Result<(), Error> {
    let object = backend.get(&args.name).await?;
    let events = backend.events(&object).await;
    let now = Timestamp::now();
    print(&describe::describe(&object, now))?;
    match events {
        Ok(events) => print(&describe::events(&events, now)),
        Err(problem) => {
            // All else was told.
            error::print(&problem);
            Ok(())
        }
    }
}
