//! Who a part of Cloche is to another.
//!
//! ```text
//! Identity ──► key and CertificateSigningRequest ──► apiserver ──► operator (signs) ──► Credentials ──► rustls configurations
//!                        └──────────────── renewed after two thirds of the certificate's life ◄──────────────┘
//! ```
//!
//! Each part makes its own key, which never leaves the process. The role, and for an agent its node, stand in the certificate as a
//! URI; both ends of a connection check them. A certificate of an agent therefore serves neither as a gateway's nor for another node,
//! though both are of one CA.
//!
//! No certificate is read from a file, and none is written to one: a restart asks for a new one.

mod credentials;
mod name;
mod renewal;
mod request;
mod tls;

pub use credentials::{Credentials, CredentialsError};
pub use name::{Identity, NameError};
pub use renewal::keep;
pub use request::{Applicant, RequestError};
pub use tls::peer;
