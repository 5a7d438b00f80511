//! `exec`.

use super::random_hex;
use crate::args::Exec;
use crate::backend::Backend;
use crate::error::Error;
use crate::session::{self, Left, Local, State};
use crate::terminal::{self, Events, Input, RawMode, Sink};
use crate::{object::text::plain, request};

/// Runs a command or attaches to one; its exit code.
pub(super) async fn exec(backend: &Backend, args: &Exec) -> Result<u8, Error> {
    let events = Events::start().map_err(Error::Runtime)?;
    exec_with(backend, args, events).await.map(|(code, _)| code)
}

/// The same with signals that are caught already, which are given back.
pub(super) async fn exec_with(
    backend: &Backend,
    args: &Exec,
    events: Events,
) -> Result<(u8, Events), Error> {
    let made_up = format!("exec-{}", random_hex::<8>()?);
    let open = request::exec(args, made_up, terminal::size())?;
    let interaction = args.interaction;
    // Before anything is sent: the first key belongs to the command. Held to the end of this function.
    let raw = if interaction.tty && interaction.stdin {
        RawMode::enter()?
    } else {
        None
    };
    let mut local = Local {
        input: if interaction.stdin {
            Input::start().map_err(Error::Runtime)?
        } else {
            Input::none()
        },
        sink: Sink::start().map_err(Error::Runtime)?,
        events,
        tty: interaction.tty,
        kill_when_left: args.command_id.is_none(),
    };
    if interaction.tty && interaction.stdin && raw.is_none() {
        local
            .sink
            .say("standard input is not a terminal: keys are passed on line by line");
    }
    let operation = format!("run a command in sandbox {}", plain(&args.name));
    let state = if args.command_id.is_some() {
        State::new(open)
    } else {
        State::made_up(open)
    };
    let left = session::drive(backend, &args.name, state, &mut local, &operation).await;
    drop(raw);
    Ok((finish(&args.name, &left?), local.events))
}

/// The exit code; says on standard error what it does not say.
pub(super) fn finish(name: &str, left: &Left) -> u8 {
    let (code, remark) = match left {
        Left::Exit(exit) => (session::code(exit), session::remark(name, exit)),
        Left::Detached(signal) => (
            u8::try_from(128 + signal).unwrap_or(u8::MAX),
            Some("left before the command's end".to_owned()),
        ),
    };
    if let Some(remark) = remark {
        use std::io::Write as _;
        drop(writeln!(std::io::stderr(), "kubectl-sandbox: {remark}"));
    }
    code
}
