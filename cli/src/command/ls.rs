//! `ls`.

use cloche_proto::agent::v1alpha1::{ListRequest, ListResponse, SandboxKey};
use jiff::Timestamp;

use super::{Context, print};
use crate::args::Ls;
use crate::error::Error;
use crate::object::{Object, list};

/// Prints the sandboxes.
pub(super) async fn ls(context: &Context, args: &Ls) -> Result<(), Error> {
    let mut objects = Vec::new();
    if args.names.is_empty() {
        objects = get(context, None).await?;
        if objects.is_empty() && args.output.is_none() {
            // On stderr as kubectl does, so that scripts count no line.
            use std::io::Write as _;
            drop(writeln!(std::io::stderr(), "No sandboxes found."));
            return Ok(());
        }
    }
    for name in &args.names {
        objects.extend(get(context, Some(context.key(name))).await?);
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

/// The sandboxes, or one of them.
pub(super) async fn get(context: &Context, key: Option<SandboxKey>) -> Result<Vec<Object>, Error> {
    let operation = key.as_ref().map_or_else(
        || "list sandboxes".to_owned(),
        |key| format!("get sandbox {}", key.name),
    );
    let mut client = context.agent.connect().await?;
    let ListResponse { objects } = client
        .list(ListRequest { key })
        .await
        .map_err(|status| Error::refused(operation.clone(), status))?
        .into_inner();
    objects
        .iter()
        .map(|object| Object::read(object))
        .collect::<Result<_, _>>()
        .map_err(|message| Error::Wrong { operation, message })
}
