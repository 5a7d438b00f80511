//! Whether a node can take a sandbox, which one is best, and why none can.

use cloche_crds::sandbox::{TaintEffect, Toleration, TolerationOperator};

use crate::index::node::{Amount, Machine, Node, NodeName, Offer, Taint};
use crate::index::shape::Shape;

/// Why a node cannot take a sandbox: the first that holds, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unfit {
    /// No agent ever offered anything of this Node.
    NoAgent,
    /// The Node is not Ready.
    NotReady,
    /// The agent is not heard, or says that it is not ready.
    AgentNotReady,
    /// `spec.unschedulable`.
    Cordoned,
    /// It lacks a label that the sandbox asks for.
    NotSelected,
    /// It has a taint that the sandbox does not tolerate.
    Tainted,
    /// Its processors are taken.
    Cpu,
    /// Its memory is taken.
    Memory,
    /// Its disk is taken.
    Disk,
}

impl Unfit {
    /// Every reason, in the order in which they are told.
    pub const ALL: [Self; 9] = [
        Self::NoAgent,
        Self::NotReady,
        Self::AgentNotReady,
        Self::Cordoned,
        Self::NotSelected,
        Self::Tainted,
        Self::Cpu,
        Self::Memory,
        Self::Disk,
    ];

    /// What is told of a node.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoAgent => "without an agent",
            Self::NotReady => "not ready",
            Self::AgentNotReady => "whose agent is not ready",
            Self::Cordoned => "cordoned",
            Self::NotSelected => "not selected",
            Self::Tainted => "tainted",
            Self::Cpu => "not enough cpu",
            Self::Memory => "not enough memory",
            Self::Disk => "not enough ephemeral-storage",
        }
    }

    const fn index(self) -> usize {
        self as usize
    }
}

/// What is told where there is no Node at all.
const NO_NODES: &str = "the cluster has none";

/// How well a node would do. The greater the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fit {
    /// Whether no taint asks to leave it to others.
    pub untainted: bool,
    /// What would stay free of what is scarcer, in millionths of what there is.
    pub free: u64,
}

/// Why no node can take a sandbox: how many nodes for each reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally([u32; Unfit::ALL.len()]);

impl Tally {
    /// Counts a node.
    pub fn count(&mut self, why: Unfit) {
        self.0[why.index()] += 1;
    }

    /// Which reasons there are: one bit for each.
    pub fn set(self) -> u16 {
        let bit = |why: Unfit| u16::from(self.0[why.index()] > 0) << why.index();
        Unfit::ALL
            .into_iter()
            .map(bit)
            .fold(0, |all, bit| all | bit)
    }

    /// For a condition: `0/3 nodes: 2 not enough memory, 1 tainted`.
    pub fn message(self) -> String {
        let all: u32 = self.0.iter().sum();
        let told = |why: Unfit| {
            let count = self.0[why.index()];
            (count > 0).then(|| format!("{count} {}", why.as_str()))
        };
        let reasons: Vec<_> = Unfit::ALL.into_iter().filter_map(told).collect();
        if all == 0 {
            return format!("0/0 nodes: {NO_NODES}");
        }
        format!("0/{all} nodes: {}", reasons.join(", "))
    }
}

/// The reasons that a message of [`Tally::message`] names; `None` where it is another's.
pub fn set_of_message(message: &str) -> Option<u16> {
    let (_, reasons) = message.split_once(" nodes: ")?;
    if reasons == NO_NODES {
        return Some(0);
    }
    reasons.split(", ").try_fold(0, |set, reason| {
        let (_, words) = reason.split_once(' ')?;
        let why = Unfit::ALL.into_iter().find(|why| why.as_str() == words)?;
        Some(set | 1 << why.index())
    })
}

/// Whether a node can take one more sandbox of this shape.
pub fn fit(shape: &Shape, node: &Node) -> Result<Fit, Unfit> {
    let untainted = suits(shape, node)?;
    let (machine, offer) = able(node)?;
    let free = room(shape, node, machine.ceiling, offer)?;
    Ok(Fit { untainted, free })
}

/// Whether a node can take sandboxes of this shape, whatever room it has; and whether no taint asks to leave it to others.
pub fn suits(shape: &Shape, node: &Node) -> Result<bool, Unfit> {
    let (machine, _) = able(node)?;
    if machine.cordoned {
        return Err(Unfit::Cordoned);
    }
    let has = |(key, value): (&String, &String)| machine.labels.get(key) == Some(value);
    if !shape.selector.iter().all(has) {
        return Err(Unfit::NotSelected);
    }
    let mut untainted = true;
    for taint in &machine.taints {
        if tolerated(&shape.tolerations, taint) {
            continue;
        }
        match taint.effect {
            TaintEffect::NoSchedule | TaintEffect::NoExecute => return Err(Unfit::Tainted),
            TaintEffect::PreferNoSchedule => untainted = false,
        }
    }
    Ok(untainted)
}

/// The Node and its agent, if both can take anything at all.
fn able(node: &Node) -> Result<(&Machine, &Offer), Unfit> {
    let (Some(machine), Some(offer)) = (&node.machine, &node.offer) else {
        return Err(Unfit::NoAgent);
    };
    if machine.uid != offer.node_uid {
        return Err(Unfit::NoAgent);
    }
    if !machine.ready || machine.out_of_service {
        return Err(Unfit::NotReady);
    }
    if !offer.ready || node.judged.silent {
        return Err(Unfit::AgentNotReady);
    }
    Ok((machine, offer))
}

/// What stays free, in millionths. The agent narrows what the Node allows, and never widens it.
fn room(shape: &Shape, node: &Node, ceiling: Amount, offer: &Offer) -> Result<u64, Unfit> {
    let cpu = u128::from(ceiling.cpu.min(offer.budget.cpu).0);
    let memory = u128::from(ceiling.memory.min(offer.budget.memory).0);
    let overheads = (u128::from(node.count) + 1) * u128::from(offer.overhead.0);
    let free_cpu = cpu.checked_sub(u128::from(node.used.cpu.0) + u128::from(shape.cpu.0));
    let wanted = u128::from(node.used.memory.0) + u128::from(shape.memory.0) + overheads;
    let free_cpu = free_cpu.ok_or(Unfit::Cpu)?;
    let free_memory = memory.checked_sub(wanted).ok_or(Unfit::Memory)?;
    let disk = ceiling.disk.min(offer.budget.disk).0;
    let wanted = node.used.disk.0.saturating_add(shape.disk.0);
    let free_disk = disk.checked_sub(wanted).ok_or(Unfit::Disk)?;
    let part = |free: u128, all: u128| free * 1_000_000 / all.max(1);
    let least = part(free_cpu, cpu)
        .min(part(free_memory, memory))
        .min(part(free_disk.into(), disk.into()));
    Ok(u64::try_from(least).unwrap_or(u64::MAX))
}

fn tolerated(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|toleration| {
        let Toleration {
            key,
            operator,
            value,
            effect,
        } = toleration;
        let key_matches = key.as_ref().is_none_or(|key| *key == taint.key);
        let effect_matches = effect.is_none_or(|effect| effect == taint.effect);
        let value_matches = match operator {
            Some(TolerationOperator::Exists) => true,
            Some(TolerationOperator::Equal) | None => {
                value.as_deref().unwrap_or_default() == taint.value
            }
        };
        key_matches && effect_matches && value_matches
    })
}

/// The node with the most room, of those the first by name; or why there is none. Nodes of which only an offer or sandboxes are left
/// are none.
pub fn best<'a>(
    shape: &Shape,
    nodes: impl Iterator<Item = (&'a NodeName, &'a Node)>,
) -> Result<NodeName, Tally> {
    let mut tally = Tally::default();
    let mut best: Option<(Fit, &NodeName)> = None;
    for (name, node) in nodes.filter(|(_, node)| node.machine.is_some()) {
        match fit(shape, node) {
            Ok(found) => {
                let better = best.is_none_or(|(so_far, so_far_name)| {
                    found > so_far || (found == so_far && name < so_far_name)
                });
                if better {
                    best = Some((found, name));
                }
            }
            Err(why) => tally.count(why),
        }
    }
    best.map(|(_, name)| NodeName::clone(name)).ok_or(tally)
}

#[cfg(test)]
mod tests;
