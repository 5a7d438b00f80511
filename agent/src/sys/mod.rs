//! The one module of this crate in which `unsafe` is allowed: system calls that no safe wrapper offers.
#![allow(unsafe_code)]
