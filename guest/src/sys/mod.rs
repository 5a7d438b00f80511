//! The one place of `unsafe`: calls that the kernel has and nix has not, each behind a safe function.
#![allow(unsafe_code)]

pub(crate) mod capability;
pub(crate) mod process;
pub(crate) mod socket;
pub(crate) mod terminal;
