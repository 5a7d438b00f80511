//! `pause`, `resume`, `stop` and `start`.

use cloche_crds::{ConditionReason, ConditionType, DesiredState, Phase};
use serde_json::Value;

use super::print;
use super::watch::Watch;
use crate::args::Pace;
use crate::backend::Backend;
use crate::error::{self, Error};
use crate::object::{Object, field, full_name};

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
    let mut failed = 0;
    let mut asked = Vec::new();
    for name in &args.names {
        match backend.set_desired_state(name, desired).await {
            Ok(generation) => asked.push((name, generation)),
            Err(problem) if args.names.len() == 1 => return Err(problem),
            Err(problem) => {
                failed += 1;
                error::print(&problem);
            }
        }
    }
    for (name, generation) in asked {
        let outcome = if args.wait {
            follow(backend, name, goal, generation).await
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

/// Follows the sandbox until it is so, and says what holds that up.
async fn follow(backend: &Backend, name: &str, goal: Phase, generation: i64) -> Result<(), Error> {
    let mut watch = Watch::new(backend, name);
    let mut was_there = false;
    let mut told = String::new();
    loop {
        let Some(object) = watch.next().await? else {
            if was_there {
                return Err(Error::Unreachable(format!(
                    "sandbox {name} was deleted while waiting for it to be {goal}"
                )));
            }
            continue;
        };
        was_there = true;
        if is_so(&object, goal, generation) {
            return Ok(());
        }
        if object.is_finished() {
            return Err(Error::Unreachable(format!(
                "sandbox {name} has ended and will not be {goal}: it is {}",
                object.summary()
            )));
        }
        if let Some(why) = held_up(&object).filter(|why| *why != told) {
            error::note(&format!("waiting for sandbox {name}: {why}"));
            told = why;
        }
    }
}

/// Whether it is in that phase, as the generation wants it; and one that runs serves commands.
fn is_so(object: &Object, goal: Phase, generation: i64) -> bool {
    let observed = object.json().pointer("/status/observedGeneration");
    let is_ready = || {
        let ready = object.condition(ConditionType::Ready.as_str());
        ready.and_then(|ready| field(ready, "status")).as_deref() == Some("True")
    };
    observed.and_then(Value::as_i64) >= Some(generation)
        && object.phase() == goal.as_str()
        && (goal != Phase::Running || is_ready())
}

/// What a person may have to do something about.
fn held_up(object: &Object) -> Option<String> {
    let ready = object.condition(ConditionType::Ready.as_str())?;
    let reason = field(ready, "reason")?;
    let is_held_up = [ConditionReason::WakePending, ConditionReason::Stopping]
        .iter()
        .any(|one| one.as_str() == reason);
    field(ready, "message").filter(|message| is_held_up && !message.is_empty())
}
