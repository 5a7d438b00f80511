//! The image store on the real kernel: needs root, loop devices, `fsck.erofs` and `docker-registry`.
// Test programs are started here, and files are looked at, directly.
#![allow(clippy::disallowed_methods)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// A test reads best when it says plainly what it makes.
#![allow(clippy::format_push_string, clippy::large_stack_arrays)]

mod confine;
mod fake;
mod local;
mod logins;
mod registry;
mod store;
mod support;
mod unpack;
