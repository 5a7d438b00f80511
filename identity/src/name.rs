//! The name of a part, as its certificate carries it.

use std::fmt;
use std::str::FromStr;

use cloche_crds::cluster::{AGENT_SIGNER, GATEWAY_SIGNER, OPERATOR_SIGNER, gateway_host};

/// Before the role. The scheme and form of SPIFFE identifiers, with the API group as the trust domain.
const PREFIX: &str = "spiffe://cloche.dev/";
/// Longest name of a node: a DNS subdomain (RFC 1123).
const NODE: usize = 253;

/// A part of Cloche.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    /// The agent of a node.
    Agent {
        /// The node's name: a DNS subdomain.
        node: String,
    },
    /// A gateway. All of its replicas are one.
    Gateway,
    /// An operator. All of its replicas are one.
    Operator,
}

/// Why a URI names no part of Cloche.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no part of Cloche")]
pub struct NameError(String);

impl Identity {
    /// The agent of `node`; `None` where that is no DNS subdomain.
    pub fn agent(node: &str) -> Option<Self> {
        let is_label = |label: &str| {
            !label.is_empty()
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        };
        (node.len() <= NODE && node.split('.').all(is_label)).then(|| Self::Agent {
            node: node.to_owned(),
        })
    }

    /// The signer that is asked for its certificate.
    pub const fn signer(&self) -> &'static str {
        match self {
            Self::Agent { .. } => AGENT_SIGNER,
            Self::Gateway => GATEWAY_SIGNER,
            Self::Operator => OPERATOR_SIGNER,
        }
    }

    /// The DNS name in its certificate that stands for the role where a TLS client has to name a host. It is never resolved: a node's
    /// name may be as long as a DNS name can be, so the role alone is in it, and the URI has the rest.
    pub const fn server_name(&self) -> &'static str {
        match self {
            Self::Agent { .. } => "agent.cloche.internal",
            Self::Gateway => "gateway.cloche.internal",
            Self::Operator => "operator.cloche.internal",
        }
    }

    /// The DNS name by which others than parts of Cloche connect to it, where Cloche is installed in `namespace`. Its certificate has it
    /// beside [`Self::server_name`].
    pub fn host(&self, namespace: &str) -> Option<String> {
        match self {
            Self::Agent { .. } | Self::Operator => None,
            Self::Gateway => Some(gateway_host(namespace)),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent { node } => write!(formatter, "{PREFIX}agent/{node}"),
            Self::Gateway => write!(formatter, "{PREFIX}gateway"),
            Self::Operator => write!(formatter, "{PREFIX}operator"),
        }
    }
}

impl FromStr for Identity {
    type Err = NameError;

    fn from_str(uri: &str) -> Result<Self, NameError> {
        let identity = match uri.strip_prefix(PREFIX) {
            Some("gateway") => Some(Self::Gateway),
            Some("operator") => Some(Self::Operator),
            Some(path) => path.strip_prefix("agent/").and_then(Self::agent),
            None => None,
        };
        identity.ok_or_else(|| NameError(uri.chars().take(NODE).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_were() {
        for identity in [
            Identity::Gateway,
            Identity::Operator,
            Identity::agent("node-1").unwrap(),
            Identity::agent("ip-10-0-0-1.eu.compute.internal").unwrap(),
        ] {
            assert_eq!(identity.to_string().parse(), Ok(identity));
        }
    }

    #[test]
    fn what_names_no_part_is_refused() {
        for uri in [
            "",
            "gateway",
            "spiffe://cloche.dev/",
            "spiffe://cloche.dev/gateway/",
            "spiffe://cloche.dev/gateway/x",
            "spiffe://cloche.dev/operator/x",
            "spiffe://cloche.dev/agent",
            "spiffe://cloche.dev/agent/",
            "spiffe://cloche.dev/agent/a/b",
            "spiffe://cloche.dev/agent/A",
            "spiffe://cloche.dev/agent/-a",
            "spiffe://cloche.dev/agent/a..b",
            "spiffe://example.com/agent/a",
            "https://cloche.dev/agent/a",
        ] {
            assert!(uri.parse::<Identity>().is_err(), "{uri}");
        }
        assert_eq!(Identity::agent(&"a".repeat(254)), None);
    }
}
