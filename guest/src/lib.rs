//! The init inside every sandbox.
