//! `rm`.

use super::watch::Watch;
use super::{print, wait};
use crate::args::Rm;
use crate::backend::{Backend, Selection};
use crate::error::{self, Error};
use crate::object::goal::Goal;
use crate::object::{Object, full_name};

/// Deletes sandboxes; one that fails does not keep the others. Where it is waited for, each line says how the sandbox ended.
pub(super) async fn rm(backend: &Backend, args: &Rm) -> Result<(), Error> {
    let watched = args.wait.unwrap_or_else(|| backend.waits_for_deletions());
    let by_name = !args.names.is_empty();
    let names: Vec<(String, Option<String>)> = if by_name {
        args.names.iter().map(|name| (name.clone(), None)).collect()
    } else {
        let all = backend.list(&Selection::All(args.selector.clone())).await?;
        if all.is_empty() {
            use std::io::Write as _;
            drop(writeln!(std::io::stderr(), "No sandboxes found."));
        }
        all.iter()
            .map(|object| (object.name(), object.uid()))
            .collect()
    };
    let mut failed = 0;
    let mut deleted = Vec::new();
    for (name, uid) in &names {
        match begin(backend, name, uid.clone(), watched).await {
            Ok(watch) => deleted.push((name, watch)),
            // Gone since it was listed: what was wanted.
            Err(problem) if !by_name && problem.is_not_found() => {}
            Err(problem) if names.len() == 1 => return Err(problem),
            Err(problem) => {
                failed += 1;
                error::print(&problem);
            }
        }
    }
    for (name, watch) in deleted {
        let end = match watch {
            Some(watch) => follow(watch).await?,
            None => None,
        };
        let end = end.map_or_else(String::new, |end| format!(" ({end})"));
        print(&format!("{} deleted{end}\n", full_name(name)))?;
    }
    if failed > 0 {
        return Err(Error::Some {
            failed,
            all: names.len(),
            what: "deleted",
        });
    }
    Ok(())
}

/// Asks for the deletion; watched from before it, so that the end is seen however quick it is.
async fn begin(
    backend: &Backend,
    name: &str,
    uid: Option<String>,
    watched: bool,
) -> Result<Option<Watch>, Error> {
    let mut watch = watched.then(|| Watch::new(backend, name));
    let mut seen = None;
    if let Some(watch) = &mut watch {
        // Where there is no such sandbox, the deletion says so.
        seen = watch.next().await?;
    }
    let uid = uid.or_else(|| seen.as_ref().and_then(Object::uid));
    backend.delete(name, uid.as_deref()).await?;
    Ok(watch)
}

/// Until nothing of it is left; how it ended, if that was told.
async fn follow(mut watch: Watch) -> Result<Option<String>, Error> {
    while watch.next().await?.is_some() {}
    Ok(watch.last().and_then(Object::end))
}

/// Waits until nothing of it is left.
pub(super) async fn wait_gone(backend: &Backend, name: &str) -> Result<(), Error> {
    wait::follow(backend, &Goal::Deleted, name, &mut None).await
}
