use std::sync::Arc;

use cloche_crds::quantity::{Bytes, Millicores};
use proptest::prelude::*;

use super::*;
use crate::index::shape::Charge;
use crate::loss::Judgement;

const GIB: u64 = 1 << 30;

fn charge(shape: &Shape, is_stopped: bool) -> Charge {
    Charge {
        shape: Arc::new(shape.clone()),
        is_stopped,
    }
}

fn amount(cpu: u64, memory: u64) -> Amount {
    Amount {
        cpu: Millicores(cpu),
        memory: Bytes(memory),
        disk: Bytes(100 * GIB),
    }
}

/// Four cores, 100 GiB of disk and 8 GiB, of which each sandbox takes 64 MiB more than it asks for.
fn node() -> Node {
    Node {
        machine: Some(Machine {
            uid: "u".into(),
            labels: [("disk".to_owned(), "ssd".to_owned())].into(),
            taints: Vec::new(),
            out_of_service: false,
            cordoned: false,
            ready: true,
            ceiling: amount(4000, 8 * GIB),
        }),
        offer: Some(Offer {
            uid: "o".into(),
            version: 1,
            node_uid: "u".into(),
            ready: true,
            unreachable: false,
            told_silence: 0,
            budget: amount(4000, 8 * GIB),
            overhead: Bytes(64 << 20),
        }),
        ..Node::default()
    }
}

fn shape(cpu: u64, memory: u64) -> Shape {
    Shape {
        cpu: Millicores(cpu),
        memory: Bytes(memory),
        disk: Bytes(2 * GIB),
        ..Shape::default()
    }
}

fn tainted(effect: TaintEffect) -> Taint {
    Taint {
        key: "dedicated".to_owned(),
        value: "a".to_owned(),
        effect,
    }
}

fn why(change: impl FnOnce(&mut Node)) -> Option<Unfit> {
    let mut node = node();
    change(&mut node);
    fit(&shape(1000, GIB), &node).err()
}

#[test]
fn each_reason_keeps_a_sandbox_away() {
    let machine = |change: fn(&mut Machine)| why(|node| change(node.machine.as_mut().unwrap()));
    let offer = |change: fn(&mut Offer)| why(|node| change(node.offer.as_mut().unwrap()));
    assert_eq!(why(|_| {}), None);
    assert_eq!(why(|node| node.offer = None), Some(Unfit::NoAgent));
    assert_eq!(
        offer(|offer| offer.node_uid = "x".into()),
        Some(Unfit::NoAgent)
    );
    assert_eq!(machine(|m| m.ready = false), Some(Unfit::NotReady));
    assert_eq!(machine(|m| m.out_of_service = true), Some(Unfit::NotReady));
    assert_eq!(offer(|o| o.ready = false), Some(Unfit::AgentNotReady));
    let silent = Judgement {
        silent: true,
        lost: None,
    };
    assert_eq!(why(|node| node.judged = silent), Some(Unfit::AgentNotReady));
    assert_eq!(machine(|m| m.cordoned = true), Some(Unfit::Cordoned));
    // The Node is the ceiling, and the agent narrows it.
    assert_eq!(machine(|m| m.ceiling.cpu.0 = 999), Some(Unfit::Cpu));
    assert_eq!(offer(|o| o.budget.cpu.0 = 999), Some(Unfit::Cpu));
    assert_eq!(machine(|m| m.ceiling.memory.0 = GIB), Some(Unfit::Memory));
    assert_eq!(offer(|o| o.budget.memory.0 = GIB), Some(Unfit::Memory));
    assert_eq!(offer(|o| o.budget.disk.0 = GIB), Some(Unfit::Disk));
    assert_eq!(
        offer(|o| o.budget.memory.0 = GIB + (64 << 20)),
        None,
        "request and overhead fit exactly"
    );
}

#[test]
fn labels_must_all_be_there() {
    let mut asks = shape(1, 1);
    asks.selector.insert("disk".to_owned(), "ssd".to_owned());
    assert!(fit(&asks, &node()).is_ok());
    asks.selector.insert("zone".to_owned(), String::new());
    assert_eq!(fit(&asks, &node()), Err(Unfit::NotSelected));
}

#[test]
fn taints_are_tolerated_as_in_a_pod() {
    let toleration = |key: Option<&str>, operator, value: Option<&str>, effect| Toleration {
        key: key.map(str::to_owned),
        operator,
        value: value.map(str::to_owned),
        effect,
    };
    let exists = Some(TolerationOperator::Exists);
    let equal = Some(TolerationOperator::Equal);
    for (toleration, tolerates) in [
        (toleration(None, exists, None, None), true),
        (toleration(Some("dedicated"), exists, None, None), true),
        (toleration(Some("dedicated"), equal, Some("a"), None), true),
        (toleration(Some("dedicated"), None, Some("a"), None), true),
        (toleration(Some("dedicated"), None, Some("b"), None), false),
        (toleration(Some("dedicated"), None, None, None), false),
        (toleration(Some("other"), exists, None, None), false),
        (
            toleration(None, exists, None, Some(TaintEffect::NoSchedule)),
            true,
        ),
        (
            toleration(None, exists, None, Some(TaintEffect::NoExecute)),
            false,
        ),
    ] {
        let taint = tainted(TaintEffect::NoSchedule);
        let found = tolerated(std::slice::from_ref(&toleration), &taint);
        assert_eq!(found, tolerates, "{toleration:?}");
    }
    for (effect, expected) in [
        (TaintEffect::NoSchedule, Some(Unfit::Tainted)),
        (TaintEffect::NoExecute, Some(Unfit::Tainted)),
        (TaintEffect::PreferNoSchedule, None),
    ] {
        let found = why(|node| node.machine.as_mut().unwrap().taints = vec![tainted(effect)]);
        assert_eq!(found, expected);
    }
}

#[test]
fn the_most_room_wins_then_the_name() {
    let (a, b) = (NodeName::from("a"), NodeName::from("b"));
    let (one, mut other) = (node(), node());
    let asks = shape(1000, GIB);
    assert_eq!(
        best(&asks, [(&b, &other), (&a, &one)].into_iter()).unwrap(),
        a
    );
    let mut used = node();
    // Of one that is stopped the disk counts, and nothing else.
    used.charge(&charge(&asks, true));
    assert_eq!((used.used.cpu.0, used.used.memory.0, used.count), (0, 0, 0));
    assert_eq!(used.used.disk, asks.disk);
    used.discharge(&charge(&asks, true));
    assert_eq!(used.used, Amount::default());
    used.charge(&charge(&asks, false));
    assert_eq!(
        best(&asks, [(&a, &used), (&b, &other)].into_iter()).unwrap(),
        b
    );
    // A node that would rather be left to others comes last, however empty.
    other.machine.as_mut().unwrap().taints = vec![tainted(TaintEffect::PreferNoSchedule)];
    assert_eq!(
        best(&asks, [(&a, &used), (&b, &other)].into_iter()).unwrap(),
        a
    );
}

#[test]
fn why_not_is_counted_and_can_be_read_back() {
    let names: Vec<NodeName> = ["a", "b", "c", "d"].map(Into::into).to_vec();
    let mut nodes = [node(), node(), node(), node()];
    nodes[0].machine.as_mut().unwrap().cordoned = true;
    nodes[3].machine = None;
    let all = || names.iter().zip(&nodes);
    let tally = best(&shape(1, 9 * GIB), all()).unwrap_err();
    let message = tally.message();
    assert_eq!(message, "0/3 nodes: 1 cordoned, 2 not enough memory");
    assert_eq!(set_of_message(&message), Some(tally.set()));
    let none = Tally::default();
    assert_eq!(none.message(), "0/0 nodes: the cluster has none");
    assert_eq!(set_of_message(&none.message()), Some(0));
    for other in ["", "bound to a", "0/3 nodes: 2 asleep", "0/3 nodes: "] {
        assert_eq!(set_of_message(other), None, "{other}");
    }
    let mut every = Tally::default();
    for why in Unfit::ALL {
        every.count(why);
    }
    assert_eq!(
        set_of_message(&every.message()),
        Some((1 << Unfit::ALL.len()) - 1)
    );
}

proptest! {
    /// Whatever is placed as long as it fits, a node never holds more than it may.
    #[test]
    fn no_node_is_filled_beyond_its_budget(
        sizes in proptest::collection::vec((1_u64..3000, 1_u64..(3 * GIB), 1_u64..(60 * GIB)), 1..200),
    ) {
        let names: Vec<NodeName> = ["a", "b", "c"].map(Into::into).to_vec();
        let mut nodes = vec![node(), node(), node()];
        for (cpu, memory, disk) in sizes {
            let asks = Shape {
                disk: Bytes(disk),
                ..shape(cpu, memory)
            };
            if let Ok(name) = best(&asks, names.iter().zip(&nodes)) {
                let at = names.iter().position(|other| *other == name).unwrap();
                nodes[at].charge(&charge(&asks, false));
            }
        }
        for node in &nodes {
            prop_assert!(node.used.cpu.0 <= 4000);
            prop_assert!(node.used.disk.0 <= 100 * GIB);
            prop_assert!(node.used.memory.0 + node.count * (64 << 20) <= 8 * GIB);
        }
    }
}
