//! `pause` and `resume`.

use cloche_crds::{DesiredState, Phase};

use super::{print, wait};
use crate::args::Pace;
use crate::backend::Backend;
use crate::error::{self, Error};
use crate::object::full_name;
use crate::object::goal::Goal;

/// Says what state the sandboxes are to be in, and waits until they are; one that fails does not keep the others.
pub(super) async fn set(
    backend: &Backend,
    args: &Pace,
    desired: DesiredState,
) -> Result<(), Error> {
    let (goal, done) = match desired {
        DesiredState::Running => (Phase::Running, "resumed"),
        DesiredState::Paused => (Phase::Paused, "paused"),
    };
    let goal = Goal::Phase(goal.to_string());
    let mut failed = 0;
    let mut asked = Vec::new();
    for name in &args.names {
        match backend.set_desired_state(name, desired).await {
            Ok(()) => asked.push(name),
            Err(problem) if args.names.len() == 1 => return Err(problem),
            Err(problem) => {
                failed += 1;
                error::print(&problem);
            }
        }
    }
    for name in asked {
        let outcome = if args.wait {
            wait::follow(backend, &goal, name, &mut None).await
        } else {
            Ok(())
        };
        match outcome {
            Ok(()) => print(&format!("{} {done}\n", full_name(name)))?,
            Err(problem) if args.names.len() == 1 => return Err(problem),
            Err(problem) => {
                failed += 1;
                error::print(&problem);
            }
        }
    }
    if failed > 0 {
        return Err(Error::Some {
            failed,
            all: args.names.len(),
            what: done,
        });
    }
    Ok(())
}
