//! The whole gateway, between a made-up apiserver and a made-up agent, over real sockets.

mod access;
mod real;
mod remote;
mod session;
mod support;
