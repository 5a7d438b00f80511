//! Which sandbox goes to which node. Pure.

pub mod fit;
pub mod queue;
