//! What agents may know of Secrets and `ConfigMap`s, on which they have no right: what the specs of their node's sandboxes name.
//!
//! ```text
//!   agent of a node ──mTLS──► serve ──live GETs──► Sandbox, Node ──► binding (pure): is it that node's?
//!                               └─────live GETs──► Secrets, ConfigMaps that its spec names ──► environment, docker (pure) ──► values
//! ```
//! Nobody can ask for an object or a key: which are read stands in the spec alone. Every replica answers, also one that stands by: nothing
//! is taken from what the watches have seen, nothing is kept, and no value is logged. Whoever may create Sandboxes in a namespace can have
//! every Secret of it, as whoever may create pods there; but Cloche's own CA nobody gets.

mod binding;
mod docker;
mod environment;
mod serve;

pub use serve::serve;
