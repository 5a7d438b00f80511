//! Sessions of one sandbox: the channel to cloche-init, and output kept on the node.
//!
//! Interface that the rest of the agent builds on (the owner of this folder fills it in and may refine it):
//!
//! - `log`: output files `sessions/<command id>/{stdout,stderr}`, capped by punching holes.
//! - `channel`: one task per sandbox that owns the pipes: epochs, frames, acknowledgements, bridge.
//! - `Sessions`: the handle that drivers and the api hold.
