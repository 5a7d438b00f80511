//! What a failed request to the apiserver means for whoever made it.

use std::time::Duration;

use cloche_crds::refusal::Refusal;
use kube::Error;
use kube::core::Status;

/// What to do about a failure. The word is told in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// What was written on has changed: look again.
    Conflict,
    /// It may go well later: again with growing pauses.
    Transient,
    /// The object is gone.
    Gone,
    /// It is refused as it is: wait until the object changes.
    Invalid,
    /// It was never to happen.
    Bug,
}

impl Class {
    /// The word for the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "Conflict",
            Self::Transient => "Transient",
            Self::Gone => "Gone",
            Self::Invalid => "Invalid",
            Self::Bug => "Bug",
        }
    }
}

/// The class of a failed request.
pub fn class(error: &Error) -> Class {
    match error {
        Error::Api(status) => of_status(status),
        Error::SerdeError(_) | Error::BuildRequest(_) => Class::Bug,
        // The rest is the network, or what stands between us and the apiserver.
        _ => Class::Transient,
    }
}

fn of_status(status: &Status) -> Class {
    match status.code {
        404 | 410 => Class::Gone,
        409 => Class::Conflict,
        400 | 405 | 415 => Class::Bug,
        422 => match Refusal::of(status) {
            Refusal::Rule => Class::Invalid,
            Refusal::Test => Class::Conflict,
            Refusal::Foreign => Class::Transient,
        },
        // Also 403: a role that is missing may come, and a namespace that is being deleted goes.
        _ => Class::Transient,
    }
}

/// How long to wait before the attempt after this many failures. Spread by `seed`, so that objects that failed together do not come back
/// together.
pub fn pause(failures: u32, seed: u64) -> Duration {
    const FIRST: Duration = Duration::from_millis(500);
    const MOST: Duration = Duration::from_mins(1);
    let doubled = FIRST.saturating_mul(1 << failures.min(10));
    let base = doubled.min(MOST);
    // From a half to three halves.
    let spread = u32::try_from(mix(seed ^ u64::from(failures)) % 1000).unwrap_or(0);
    base / 2 + base * spread / 1000
}

/// Any bits to well spread ones (the finaliser of `SplitMix64`).
const fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use kube::core::response::{StatusCause, StatusDetails};

    use super::*;

    fn status(code: u16, causes: &[(&str, &str)]) -> Error {
        let causes = causes.iter().map(|(reason, field)| StatusCause {
            reason: (*reason).to_owned(),
            message: String::new(),
            field: (*field).to_owned(),
        });
        let mut status = Status::failure("", "").with_code(code);
        status.details = Some(StatusDetails {
            causes: causes.collect(),
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            retry_after_seconds: 0,
        });
        Error::Api(Box::new(status))
    }

    #[test]
    fn every_answer_has_a_class() {
        for (error, expected) in [
            (status(404, &[]), Class::Gone),
            (status(409, &[]), Class::Conflict),
            (
                status(422, &[("UnexpectedServerResponse", "")]),
                Class::Conflict,
            ),
            (
                status(422, &[("FieldValueInvalid", "status.nodeName")]),
                Class::Invalid,
            ),
            (status(422, &[]), Class::Conflict),
            (status(422, &[("", "")]), Class::Transient),
            (status(400, &[]), Class::Bug),
            (status(403, &[]), Class::Transient),
            (status(429, &[]), Class::Transient),
            (status(500, &[]), Class::Transient),
            (status(504, &[]), Class::Transient),
        ] {
            assert_eq!(class(&error), expected, "{error}");
        }
    }

    #[test]
    fn pauses_grow_to_a_bound_and_are_spread() {
        for failures in 0..40 {
            for seed in 0..50 {
                let pause = pause(failures, seed);
                assert!(pause >= Duration::from_millis(250), "{pause:?}");
                assert!(pause <= Duration::from_secs(90), "{pause:?}");
            }
        }
        assert!(pause(9, 1) > pause(0, 1) * 10);
        let distinct: std::collections::HashSet<_> = (0..50).map(|seed| pause(3, seed)).collect();
        assert!(distinct.len() > 40);
    }
}
