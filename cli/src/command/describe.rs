//! `describe`.

use jiff::Timestamp;

use super::{Context, ls, print};
use crate::args::Describe;
use crate::error::Error;
use crate::object::describe;

/// Prints all about a sandbox.
pub(super) async fn describe(context: &Context, args: &Describe) -> Result<(), Error> {
    for object in ls::get(context, Some(context.key(&args.name))).await? {
        print(&describe::describe(&object, Timestamp::now()))?;
    }
    Ok(())
}
