//! Why an image could not be had.

use cloche_crds::Reason;

use super::digest::Digest;
use super::unpack::Fault;

/// Why an image could not be had. The text says what happened, to what, and what to do; it is shown to the user as it is.
/// Cloned to everyone who waited for the same pull: so it carries texts, not sources.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// There is no such image where the reference points.
    #[error("there is no image {image}: {detail}; check its name and tag")]
    NotFound {
        /// The reference.
        image: String,
        /// What was looked for.
        detail: String,
    },
    /// It is not on the node, and the policy forbids to pull it.
    #[error(
        "image {image} is not on this node and imagePullPolicy is Never: pull it before, or use IfNotPresent"
    )]
    NotPresent {
        /// The reference.
        image: String,
    },
    /// The registry wants credentials, or others.
    #[error("registry {registry} refuses to give image {image} {how} ({detail}): {advice}")]
    Unauthorized {
        /// The reference.
        image: String,
        /// Where.
        registry: String,
        /// Without credentials, or with whose.
        how: String,
        /// What to do.
        advice: &'static str,
        /// What it said.
        detail: String,
    },
    /// The pull broke off.
    #[error("pull image {image}: {detail}; check its source and the way from this node to it")]
    Pull {
        /// The reference.
        image: String,
        /// What went wrong.
        detail: String,
    },
    /// The image's disk is full.
    #[error(
        "pull image {image}: no space left on the node's image disk; free some, or use a smaller image"
    )]
    NoSpace {
        /// The reference.
        image: String,
    },
    /// The image breaks a rule.
    #[error("image {image} cannot be used: {detail}; the image has to be built anew")]
    Invalid {
        /// The reference.
        image: String,
        /// Which rule.
        detail: String,
    },
    /// The node itself failed.
    #[error("prepare image {image} on this node: {detail}")]
    Node {
        /// The reference.
        image: String,
        /// What failed.
        detail: String,
    },
}

impl ImageError {
    /// How the object's status calls it.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotFound { .. } | Self::NotPresent { .. } => Reason::ImageNotFound,
            Self::Unauthorized { .. } => Reason::ImageUnauthorized,
            Self::Invalid { .. } => Reason::ImageInvalid,
            Self::Pull { .. } | Self::NoSpace { .. } | Self::Node { .. } => Reason::ImagePullFailed,
        }
    }
}

/// What went wrong at a source, before it is known for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    NotFound(String),
    Unauthorized {
        registry: String,
        how: String,
        advice: &'static str,
        detail: String,
    },
    Pull(String),
    NoSpace,
    Invalid(String),
    Node(String),
}

impl Failure {
    /// Of the image `image`.
    pub(super) fn of(self, image: &str) -> ImageError {
        let image = image.to_owned();
        match self {
            Self::NotFound(detail) => ImageError::NotFound { image, detail },
            Self::Unauthorized {
                registry,
                how,
                advice,
                detail,
            } => ImageError::Unauthorized {
                image,
                registry,
                how,
                advice,
                detail,
            },
            Self::Pull(detail) => ImageError::Pull { image, detail },
            Self::NoSpace => ImageError::NoSpace { image },
            Self::Invalid(detail) => ImageError::Invalid { image, detail },
            Self::Node(detail) => ImageError::Node { image, detail },
        }
    }

    /// A failed operation on a file of the store.
    pub(super) fn io(operation: impl std::fmt::Display, error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(nix::libc::ENOSPC | nix::libc::EDQUOT) => Self::NoSpace,
            _ => Self::Node(format!("{operation}: {error}")),
        }
    }

    /// Content that is not what was announced.
    pub(super) fn mismatch(what: &str, wanted: &Digest, found: &str) -> Self {
        Self::Pull(format!(
            "{what} should be {wanted} and is {found}: its source is damaged or was tampered with"
        ))
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Invalid(detail) => Self::Invalid(detail),
            Fault::NoSpace => Self::NoSpace,
            Fault::Node(detail) => Self::Node(detail),
        }
    }
}
