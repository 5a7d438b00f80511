//! kubectl sandbox.
fn main() {}
