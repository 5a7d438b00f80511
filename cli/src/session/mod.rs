//! A command's session: its bytes, exactly once and in order, over any number of connections.

mod drive;
mod end;
mod insistence;

pub(crate) use cloche_proto::session::{Received, State};
pub(crate) use drive::{Left, Local, drive};
pub(crate) use end::{code, remark};
