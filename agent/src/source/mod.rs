//! Where desired objects come from: the manifest directory.
