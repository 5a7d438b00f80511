//! Cloche's wire protocols.
//!
//! - [`frame`]: what the agent and `cloche-init` say to each other over one pair of pipes per sandbox. No dependency but
//!   prost, because it is compiled into the static init that runs inside every sandbox.
//! - [`agent`] (feature `grpc`): the API that an agent offers on its local socket, and to the gateway. The gateway hands its session
//!   messages on to clients over `WebSocket`s ([`SESSION_PROTOCOL`]).
//! - [`operator`] (feature `grpc`): what agents ask the operator for.
//! - `session` (feature `grpc`): what a client of that API keeps of a session, so that a broken connection loses and doubles nothing.
//!
//! This crate depends on nothing of ours, and holds no policy: bounds and bookkeeping of the wire and nothing else.

pub mod frame;

#[cfg(feature = "grpc")]
pub mod session;

/// The WebSocket subprotocol in which the gateway speaks of sessions as the agent does.
///
/// From the client each binary message is one `SessionRequest`, the first of them `open`, of which the gateway itself fills in key and
/// uid; to the client each is one `SessionResponse`. A text message to the client is a Kubernetes `Status` object in JSON: why the
/// stream ends before the command's end was told. It is the last; reason `ServiceUnavailable` in it means that the client should attach again
/// by its offsets. Messages are at most [`SESSION_MESSAGE`] bytes.
pub const SESSION_PROTOCOL: &str = "v1.session.cloche.dev";
/// Most bytes of one message of [`SESSION_PROTOCOL`], either way: the longest command ([`frame::MAX_FRAME`]), or piece of output, and what
/// goes with it.
pub const SESSION_MESSAGE: usize = frame::MAX_FRAME + (128 << 10);

#[cfg(feature = "grpc")]
mod generated {
    //! By `cargo xtask generate` from `proto/proto/`.
    #![allow(
        missing_docs,
        clippy::all,
        clippy::pedantic,
        unreachable_pub,
        unused_qualifications
    )]

    pub mod agent {
        //! The agent's gRPC API.
        /// Version `v1alpha1`.
        pub mod v1alpha1 {
            include!("generated/cloche.agent.v1alpha1.rs");
        }
    }

    pub mod operator {
        //! The operator's gRPC API.
        /// Version `v1alpha1`.
        pub mod v1alpha1 {
            include!("generated/cloche.operator.v1alpha1.rs");

            /// Without the value.
            impl std::fmt::Debug for Variable {
                fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    formatter.debug_tuple("Variable").field(&self.name).finish()
                }
            }

            /// Without user and password.
            impl std::fmt::Debug for Login {
                fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    formatter.debug_tuple("Login").field(&self.secret).finish()
                }
            }
        }
    }
}

#[cfg(feature = "grpc")]
pub use generated::{agent, operator};
