//! `run`.

use std::io::Write as _;
use std::time::Duration;

use cloche_proto::agent::v1alpha1::Open;
use cloche_proto::frame::MAIN_SESSION;

use super::watch::Watch;
use super::{exec, manifest, print, random_hex, rm};
use crate::NOT_RUN;
use crate::args::Run;
use crate::backend::Backend;
use crate::error::{self, Error};
use crate::object::{Object, full_name};
use crate::request;
use crate::session::{self, Left, Local, State};
use crate::terminal::{Event, Events, Input, Sink, asks_to_go, is_hangup};

/// The annotation by which `--rm` knows its sandbox where it was not told that it has made it: random.
const MARK: &str = "cloche.dev/run";

/// How long `--rm` waits until nothing is left; the deletion goes on without.
const REMOVAL: Duration = Duration::from_mins(1);

/// Makes a sandbox and runs the command in it; the command's exit code.
pub(super) async fn run(backend: &Backend, args: &Run) -> Result<u8, Error> {
    if args.rm && args.argv.is_empty() && !request::by_exec(args) {
        return Err(Error::Usage(
            "--rm needs a command, -i or -t: a sandbox without would be deleted at once".to_owned(),
        ));
    }
    let name = match &args.name {
        Some(name) => name.clone(),
        None => format!("run-{}", random_hex::<4>()?),
    };
    let mut sandbox = request::run(args, &name)?;
    let mark = random_hex::<16>()?;
    if args.rm {
        let annotations = sandbox.metadata.annotations.get_or_insert_default();
        annotations.insert(MARK.to_owned(), mark.clone());
    }
    let object = manifest(&sandbox, &name)?;
    // Before the sandbox exists, so that no signal finds it without its --rm.
    let events = Events::start().map_err(Error::Runtime)?;
    let made = match backend.create(&object).await {
        Ok(made) => made,
        Err(problem) => {
            if args.rm
                && problem.is_unanswered()
                && let Err(also) = remove_marked(backend, &name, &mark).await
            {
                error::print(&also);
            }
            return Err(problem);
        }
    };
    if args.name.is_none() {
        // On stderr: stdout is the command's.
        drop(writeln!(std::io::stderr(), "{} created", full_name(&name)));
    }
    let outcome = run_in(backend, args, &name, events).await;
    if args.rm
        && let Err(problem) = remove(backend, &name, made.and_then(|made| made.uid())).await
    {
        error::print(&problem);
        return outcome.map(|code| if code == 0 { NOT_RUN } else { code });
    }
    outcome
}

async fn run_in(
    backend: &Backend,
    args: &Run,
    name: &str,
    mut events: Events,
) -> Result<u8, Error> {
    let object = match started(backend, name, &mut events).await? {
        Started::Running => None,
        Started::Ended(object) => Some(object),
        Started::Left(signal) => return Ok(u8::try_from(128 + signal).unwrap_or(u8::MAX)),
    };
    if request::by_exec(args) {
        if let Some(object) = object {
            return Err(ended(name, &object));
        }
        let exec = request::exec_of(args, name);
        return exec::exec_with(backend, &exec, events)
            .await
            .map(|(code, _)| code);
    }
    if args.argv.is_empty() {
        return match object {
            Some(object) => Err(ended(name, &object)),
            None => print(&format!("{} running\n", full_name(name))).map(|()| 0),
        };
    }
    let outcome = main(backend, name, events).await;
    match (outcome, object) {
        // It ended without its command ever having been a session.
        (Err(problem), Some(object)) if problem.is_not_found() => match object.exit_code() {
            Some(code) => {
                error::print(&ended(name, &object));
                Ok(code)
            }
            None => Err(ended(name, &object)),
        },
        (outcome, _) => outcome,
    }
}

fn ended(name: &str, object: &Object) -> Error {
    Error::Unreachable(format!("sandbox {name} ended: it is {}", object.summary()))
}

enum Started {
    Running,
    Ended(Object),
    /// The user left, by this signal.
    Left(i32),
}

/// Waits until it runs, or has run, or will not.
async fn started(backend: &Backend, name: &str, events: &mut Events) -> Result<Started, Error> {
    let mut watch = Watch::new(backend, name);
    let mut seen = false;
    loop {
        // Polled on, not dropped, when a signal comes that asks for nothing.
        let mut next = std::pin::pin!(watch.next());
        let object = loop {
            tokio::select! {
                object = &mut next => break object?,
                event = events.next() => match event {
                    Event::Signal(number) if asks_to_go(number) || is_hangup(number) => {
                        return Ok(Started::Left(number));
                    }
                    Event::Signal(_) | Event::Resized => {}
                },
            }
        };
        match object {
            Some(object) if object.is_running() => return Ok(Started::Running),
            Some(object) if object.is_finished() => return Ok(Started::Ended(object)),
            Some(_) => seen = true,
            // Applied, and not yet taken up.
            None if !seen => {}
            None => {
                return Err(Error::Unreachable(format!(
                    "sandbox {name} was deleted before it was running"
                )));
            }
        }
    }
}

/// Attaches to the sandbox's own command from its first byte on.
async fn main(backend: &Backend, name: &str, events: Events) -> Result<u8, Error> {
    let open = Open {
        command_id: MAIN_SESSION.to_owned(),
        ..Open::default()
    };
    let mut local = Local {
        input: Input::none(),
        sink: Sink::start().map_err(Error::Runtime)?,
        events,
        tty: false,
        // The sandbox outlives its client unless --rm ends it.
        kill_when_left: false,
    };
    let operation = format!("follow the command of sandbox {name}");
    let left: Left =
        session::drive(backend, name, State::new(open), &mut local, &operation).await?;
    Ok(exec::finish(name, &left))
}

/// Deletes the sandbox that this run has made, if it has: the answer was lost. Nobody else's of its name bears its mark.
async fn remove_marked(backend: &Backend, name: &str, mark: &str) -> Result<(), Error> {
    let found = Watch::again(backend, name).next().await?;
    let found = found.filter(|found| {
        let annotations = found.at("/metadata/annotations");
        annotations.and_then(|annotations| annotations.get(MARK)?.as_str()) == Some(mark)
    });
    match found {
        Some(found) => remove(backend, name, found.uid()).await,
        None => Ok(()),
    }
}

async fn remove(backend: &Backend, name: &str, uid: Option<String>) -> Result<(), Error> {
    match backend.delete(name, uid.as_deref()).await {
        Err(problem) if problem.is_not_found() => return Ok(()),
        outcome => outcome?,
    }
    match tokio::time::timeout(REMOVAL, rm::wait_gone(backend, name)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::Unreachable(format!(
            "sandbox {name} is still being deleted after {} s",
            REMOVAL.as_secs()
        ))),
    }
}
