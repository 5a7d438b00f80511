//! `drain`.

use cloche_crds::Phase;
use tokio::time::timeout;

use super::print;
use super::watch::Steady;
use crate::args::Drain;
use crate::backend::{Backend, Selection};
use crate::error::Error;
use crate::object::Object;

/// Has everything end that runs on a node, and waits for that; or takes that back.
pub(super) async fn drain(backend: &Backend, args: &Drain) -> Result<(), Error> {
    let name = &args.node;
    backend.set_drained(name, !args.undo).await?;
    if args.undo {
        return print(&format!("node/{name} takes sandboxes again\n"));
    }
    print(&format!("node/{name} drains\n"))?;
    if args.timeout.is_zero() {
        return Ok(());
    }
    let on_node = Selection::OnNode(name.clone());
    let Ok(stopped) = timeout(args.timeout, empty(backend, &on_node)).await else {
        let left = backend.list(&on_node).await?;
        let left = left.iter().filter(|object| runs(object)).count();
        return Err(Error::Unreachable(format!(
            "{left} sandboxes run on node {name} still, after {} s: `kubectl sandbox ls -A` shows them; it goes on to drain",
            args.timeout.as_secs()
        )));
    };
    let stopped = match stopped? {
        0 => String::new(),
        count => {
            format!(
                ": {count} stopped sandboxes have their files there, and are lost with the node"
            )
        }
    };
    print(&format!("node/{name} drained{stopped}\n"))
}

/// Waits until nothing runs there; how many are stopped there.
async fn empty(backend: &Backend, on_node: &Selection) -> Result<usize, Error> {
    let mut changes = Steady::new(backend, on_node);
    loop {
        let there = backend.list(on_node).await?;
        if !there.iter().any(runs) {
            return Ok(there.iter().filter(|object| is_stopped(object)).count());
        }
        changes.next("watch the sandboxes of a node").await?;
    }
}

fn runs(object: &Object) -> bool {
    !object.is_finished() && !is_stopped(object)
}

fn is_stopped(object: &Object) -> bool {
    object.phase() == Phase::Stopped.as_str()
}
