//! `exec`.

use super::random_hex;
use crate::args::{Exec, Interaction};
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
    let session = Session {
        name: &args.name,
        state: if args.command_id.is_some() {
            State::new(open)
        } else {
            State::made_up(open)
        },
        interaction: args.interaction,
        kill_when_left: args.command_id.is_none(),
        operation: format!("run a command in sandbox {}", plain(&args.name)),
    };
    session.drive(backend, events).await
}

/// A session to hold at the local terminal.
pub(super) struct Session<'a> {
    /// Of the sandbox.
    pub(super) name: &'a str,
    /// What to ask for.
    pub(super) state: State,
    /// How it meets the terminal.
    pub(super) interaction: Interaction,
    /// A command that the user leaves is killed.
    pub(super) kill_when_left: bool,
    /// What to call it in an error: verb and object.
    pub(super) operation: String,
}

impl Session<'_> {
    /// Holds it to its end; the exit code.
    pub(super) async fn drive(
        self,
        backend: &Backend,
        events: Events,
    ) -> Result<(u8, Events), Error> {
        let interaction = self.interaction;
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
            kill_when_left: self.kill_when_left,
        };
        if interaction.tty && interaction.stdin && raw.is_none() {
            local
                .sink
                .say("standard input is not a terminal: keys are passed on line by line");
        }
        let left =
            session::drive(backend, self.name, self.state, &mut local, &self.operation).await;
        drop(raw);
        Ok((finish(self.name, &left?), local.events))
    }
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
