//! A command's session: its bytes, exactly once and in order, over any number of connections.

mod drive;
mod end;
mod insistence;
mod output;
mod state;
mod stdin;

pub(crate) use drive::{Left, Local, drive};
pub(crate) use end::{code, remark};
pub(crate) use state::{Received, State};
