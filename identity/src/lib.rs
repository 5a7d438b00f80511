//! Who a part of Cloche is to another.
//!
//! ```text
//! Identity ──► key and CertificateSigningRequest ──► apiserver ──► operator (signs) ──► Credentials ──► rustls configurations
//!                        └──────────────── renewed after two thirds of the certificate's life ◄──────────────┘
//! ```
//!
//! Each part makes its own key. The role, and for an agent its node, stand in the certificate as a
//! URI; both ends of a connection check them. A certificate of an agent therefore serves neither as a gateway's nor for another node,
//! though both are of one CA.
//!
//! Servers [`accept`] by them, clients [`connect`].
//!
//! A part may keep its key and certificate in a [`Store`], on its own machine: started again, it serves at once, also while nobody signs.

mod accept;
#[cfg(test)]
mod ca;
mod connect;
mod credentials;
mod name;
mod renewal;
mod request;
mod store;
mod tls;

pub use accept::{Peer, accept};
pub use connect::connect;
pub use credentials::{Credentials, CredentialsError};
pub use name::{Identity, NameError};
pub use renewal::keep;
pub use request::{Applicant, RequestError};
pub use store::{Store, StoreError};
pub use tls::peer;
