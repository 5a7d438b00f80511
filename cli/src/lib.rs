//! kubectl sandbox.
