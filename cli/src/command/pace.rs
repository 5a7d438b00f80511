//! `pause`, `resume`, `stop` and `start`.

use cloche_crds::{DesiredState, Phase};

use super::{print, wait};
use crate::args::Pace;
use crate::backend::Backend;
use crate::error::{self, Error};
use crate::object::full_name;
use crate::object::goal::Goal;

/// What is to become of sandboxes.
pub(super) struct Wish {
    desired: DesiredState,
    goal: Phase,
    /// What is said of one of which it is so.
    done: &'static str,
}

pub(super) const PAUSE: Wish = Wish {
    desired: DesiredState::Paused,
    goal: Phase::Paused,
    done: "paused",
};
pub(super) const RESUME: Wish = Wish {
    desired: DesiredState::Running,
    goal: Phase::Running,
    done: "resumed",
};
pub(super) const STOP: Wish = Wish {
    desired: DesiredState::Stopped,
    goal: Phase::Stopped,
    done: "stopped",
};
pub(super) const START: Wish = Wish {
    done: "started",
    ..RESUME
};

/// Says what state the sandboxes are to be in, and waits until they are; one that fails does not keep the others.
pub(super) async fn set(backend: &Backend, args: &Pace, wish: Wish) -> Result<(), Error> {
    let Wish {
        desired,
        goal,
        done,
    } = wish;
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
