//! `top`.

use futures::StreamExt as _;

use super::print;
use crate::args::Top;
use crate::backend::{Backend, Selection};
use crate::error::{self, Error};
use crate::object::Object;
use crate::object::usage;

/// Sandboxes asked for at a time.
const AT_A_TIME: usize = 16;

/// Prints what sandboxes use; one that cannot be told of does not keep the others.
pub(super) async fn top(backend: &Backend, args: &Top) -> Result<(), Error> {
    let by_name = !args.names.is_empty();
    let mut objects = Vec::new();
    if by_name {
        for name in &args.names {
            objects.push(backend.get(name).await?);
        }
    } else {
        let selection = if args.all_namespaces {
            Selection::Everywhere(args.selector.clone())
        } else {
            Selection::All(args.selector.clone())
        };
        objects = backend.list(&selection).await?;
        // Only what runs uses anything.
        objects
            .retain(|object| object.word("/status/startedAt").is_some() && !object.is_finished());
    }
    if objects.is_empty() {
        use std::io::Write as _;
        drop(writeln!(std::io::stderr(), "No sandboxes run."));
        return Ok(());
    }
    let all = objects.len();
    let asked = futures::stream::iter(objects.into_iter().map(|object| async move {
        let used = one(backend, &object).await;
        (object, used)
    }));
    let answers: Vec<_> = asked.buffered(AT_A_TIME).collect().await;
    let mut told = Vec::new();
    let mut failed = 0;
    for (object, answer) in answers {
        match answer {
            Ok(used) => told.push((object, used)),
            // It ended since it was listed.
            Err(problem) if !by_name && problem.is_refused() => {}
            Err(problem) if all == 1 => return Err(problem),
            Err(problem) => {
                failed += 1;
                error::print(&problem);
            }
        }
    }
    print(&usage::table(&told, args.all_namespaces))?;
    if failed > 0 {
        return Err(Error::Some {
            failed,
            all,
            what: "told of",
        });
    }
    Ok(())
}

async fn one(backend: &Backend, object: &Object) -> Result<usage::Usage, Error> {
    let name = object.name();
    match object.word("/metadata/namespace") {
        Some(namespace) => backend.in_namespace(&namespace)?.usage(&name).await,
        None => backend.usage(&name).await,
    }
}
