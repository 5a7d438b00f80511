//! `attach`.

use cloche_proto::agent::v1alpha1::Open;
use cloche_proto::frame::MAIN_SESSION;

use super::exec;
use crate::args::Attach;
use crate::backend::Backend;
use crate::error::Error;
use crate::object::text::plain;
use crate::session::State;
use crate::terminal::Events;

/// Attaches to a command; its exit code.
pub(super) async fn attach(backend: &Backend, args: &Attach) -> Result<u8, Error> {
    let events = Events::start().map_err(Error::Runtime)?;
    let command_id = args.command_id.as_deref().unwrap_or(MAIN_SESSION);
    let open = Open {
        command_id: command_id.to_owned(),
        stdin: args.interaction.stdin,
        ..Open::default()
    };
    let session = exec::Session {
        name: &args.name,
        state: State::new(open),
        interaction: args.interaction,
        // It is not this program's.
        kill_when_left: false,
        operation: format!(
            "attach to command {} of sandbox {}",
            plain(command_id),
            plain(&args.name)
        ),
    };
    session.drive(backend, events).await.map(|(code, _)| code)
}
