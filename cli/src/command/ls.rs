//! `ls`.

use jiff::Timestamp;

use super::print;
use crate::args::Ls;
use crate::backend::Backend;
use crate::error::Error;
use crate::object::list;

/// Prints the sandboxes.
pub(super) async fn ls(backend: &Backend, args: &Ls) -> Result<(), Error> {
    let mut objects = Vec::new();
    if args.names.is_empty() {
        objects = backend.list().await?;
        if objects.is_empty() && args.output.is_none() {
            // On stderr as kubectl does, so that scripts count no line.
            use std::io::Write as _;
            drop(writeln!(std::io::stderr(), "No sandboxes found."));
            return Ok(());
        }
    }
    for name in &args.names {
        objects.push(backend.get(name).await?);
    }
    let text = list::print(
        &objects,
        args.output,
        args.names.len() == 1,
        Timestamp::now(),
    );
    print(&text.map_err(|message| Error::Wrong {
        operation: "print sandboxes".to_owned(),
        message,
    })?)
}
