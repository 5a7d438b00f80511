//! Records on disk, written before the effect that they describe.
