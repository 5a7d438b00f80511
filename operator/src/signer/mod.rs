//! Certificates of agents, gateways and operators.
//!
//! ```text
//! CertificateSigningRequest ──review (pure)──► Grant ──authority──► certificate, for a day at most
//!                                └───────────► Refusal: Denied, with a message
//! ```
//! Who asks is what the apiserver wrote into the request, which nobody can forge: the account, and for an agent the node that its token
//! is bound to. Everything in a certificate is set here; of the request only the key is taken. The CA is a Secret that whoever acts
//! first makes; what certificates are checked by is published in a `ConfigMap`, for a day also what an earlier CA is checked by.

pub mod authority;
pub mod bundle;
pub mod review;
mod serve;

pub use serve::serve;
