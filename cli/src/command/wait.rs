//! `wait`.

use tokio::time::timeout;

use super::print;
use super::watch::Watch;
use crate::args::Wait;
use crate::backend::Backend;
use crate::error::Error;
use crate::object::goal::{Goal, Progress};
use crate::object::{Object, full_name};

/// Returns when the sandbox is in the state; an error when it never will be, or was not in time.
pub(super) async fn wait(backend: &Backend, args: &Wait) -> Result<(), Error> {
    let goal = Goal::parse(&args.state).map_err(Error::Usage)?;
    let mut last = None;
    let reached = if args.timeout.is_zero() {
        // Once: by a list, so that a slow answer is not taken for "not so".
        match backend.get(&args.name).await {
            Ok(object) => last = Some(object),
            Err(problem) if problem.is_not_found() => {}
            Err(problem) => return Err(problem),
        }
        step(&goal, &args.name, last.as_ref())?
    } else {
        match timeout(args.timeout, follow(backend, &goal, &args.name, &mut last)).await {
            Ok(outcome) => {
                outcome?;
                true
            }
            Err(_) => false,
        }
    };
    if reached {
        return print(&format!("{} condition met\n", full_name(&args.name)));
    }
    Err(Error::TimedOut {
        name: args.name.clone(),
        state: goal.to_string(),
        seconds: args.timeout.as_secs(),
        now: last.map_or_else(|| "not there".to_owned(), |object| object.summary()),
    })
}

/// Follows the sandbox to the goal, also one that is not there yet; `last` is how it was last seen.
pub(super) async fn follow(
    backend: &Backend,
    goal: &Goal,
    name: &str,
    last: &mut Option<Object>,
) -> Result<(), Error> {
    let mut watch = Watch::new(backend, name);
    loop {
        let object = watch.next().await?;
        let was_there = last.is_some();
        if object.is_none() && !was_there && *goal != Goal::Deleted {
            // A manifest that was just put down shows a moment later.
            continue;
        }
        if let Some(object) = &object {
            *last = Some(object.clone());
        }
        if object.is_none() && was_there && *goal != Goal::Deleted {
            return Err(Error::Unreachable(format!(
                "sandbox {name} was deleted while waiting for {goal}"
            )));
        }
        if step(goal, name, object.as_ref())? {
            return Ok(());
        }
    }
}

fn step(goal: &Goal, name: &str, object: Option<&Object>) -> Result<bool, Error> {
    match goal.progress(object) {
        Progress::Reached => Ok(true),
        Progress::Pending => Ok(false),
        Progress::Impossible => Err(Error::Unreachable(match object {
            Some(object) => format!(
                "sandbox {name} has ended and will not reach {goal}: it is {}",
                object.summary()
            ),
            None => format!(
                "there is no sandbox {name} (`kubectl sandbox ls` shows the sandboxes that there are)"
            ),
        })),
    }
}
