//! `cargo +nightly fuzz run hostile` in `guest`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../entry.rs"]
mod entry;

fuzz_target!(|bytes: &[u8]| entry::drive(bytes));
