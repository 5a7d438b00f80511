//! The init inside every sandbox.
fn main() {}
