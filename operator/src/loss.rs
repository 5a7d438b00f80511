//! When an agent is silent, and when a node is lost. Pure.
//!
//! A silent agent only means that the *agent* is not heard: what runs on its node goes on. A node is lost when the *node* is gone. All
//! ages are of what this process observed: they begin anew with its start and when it could not watch for a while.

use std::fmt;
use std::time::Duration;

use cloche_crds::cluster::LEASE_SECONDS;

use crate::index::node::{Node, OUT_OF_SERVICE};

/// How long a Node must be seen not to be Ready until it is lost.
pub const NOT_READY: Duration = Duration::from_mins(5);
/// How long an agent's Lease must be seen not to be renewed until the agent is silent.
#[allow(clippy::cast_sign_loss)] // a constant above 0
pub const SILENCE: Duration = Duration::from_secs(LEASE_SECONDS as u64);

/// What a node is judged to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Its agent is not heard.
    pub silent: bool,
    /// Everything on it is lost, whatever UID it is bound to.
    pub lost: Option<Loss>,
}

/// Why what ran on a node is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// There is no Node of this name.
    Deleted,
    /// The Node of this name is another one.
    Replaced,
    /// An administrator said that it is down for good.
    OutOfService,
    /// It has not been Ready for [`NOT_READY`].
    NotReady,
}

impl fmt::Display for Loss {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted => formatter.write_str("its Node was deleted"),
            Self::Replaced => formatter.write_str("its Node was deleted and made anew"),
            Self::OutOfService => write!(formatter, "its Node has the taint {OUT_OF_SERVICE}"),
            Self::NotReady => write!(
                formatter,
                "its Node has not been Ready for {} s",
                NOT_READY.as_secs()
            ),
        }
    }
}

/// What a node is, by itself.
pub fn judge(node: &Node, now: Duration) -> Judgement {
    let silent = node.machine.is_some()
        && node
            .heard
            .as_ref()
            .is_some_and(|heard| now.saturating_sub(heard.at) > SILENCE);
    let lost = match &node.machine {
        None => Some(Loss::Deleted),
        Some(machine) if machine.out_of_service => Some(Loss::OutOfService),
        Some(_) => {
            let since = node.not_ready_since;
            let long = since.is_some_and(|since| now.saturating_sub(since) >= NOT_READY);
            long.then_some(Loss::NotReady)
        }
    };
    Judgement { silent, lost }
}

/// Whether so much is silent that the fault is rather between us and the nodes: then nothing is declared lost. Counts Nodes that exist
/// and that no administrator gave up.
pub fn is_brake(nodes: usize, silent: usize) -> bool {
    silent > 1 && silent * 3 > nodes
}

/// Whether a node counts for [`is_brake`].
pub fn counts(node: &Node) -> bool {
    node.heard.is_some()
        && node
            .machine
            .as_ref()
            .is_some_and(|machine| !machine.out_of_service)
}

/// Why a sandbox that is bound to this UID of a node is lost, if it is. What is stopped is on the node's disk: it outlasts a node that is not
/// Ready for a while.
pub fn loss_of(
    node: Option<&Node>,
    uid: Option<&str>,
    is_stopped: bool,
    brake: bool,
) -> Option<Loss> {
    if brake {
        return None;
    }
    let Some(node) = node else {
        return Some(Loss::Deleted);
    };
    if node.machine.is_some() && !node.is_still(uid) {
        return Some(Loss::Replaced);
    }
    let lost = node.judged.lost;
    lost.filter(|loss| !(is_stopped && *loss == Loss::NotReady))
}

#[cfg(test)]
mod tests;
