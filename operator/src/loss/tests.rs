use super::*;
use crate::index::node::{Heard, Machine};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn machine(uid: &str) -> Machine {
    Machine {
        uid: uid.into(),
        labels: std::collections::BTreeMap::new(),
        taints: Vec::new(),
        out_of_service: false,
        cordoned: false,
        ready: true,
        ceiling: crate::index::node::Amount::default(),
    }
}

/// Heard at second 100.
fn node() -> Node {
    Node {
        machine: Some(machine("u")),
        heard: Some(Heard {
            mark: String::new(),
            at: seconds(100),
        }),
        ..Node::default()
    }
}

#[test]
fn silence_loses_nothing() {
    let node = node();
    for (now, silent) in [(100, false), (140, false), (141, true), (100_000, true)] {
        let judged = judge(&node, seconds(now));
        assert_eq!(judged, Judgement { silent, lost: None }, "{now}");
    }
    let never = Node {
        heard: None,
        ..node
    };
    assert!(!judge(&never, seconds(100_000)).silent);
}

#[test]
fn a_node_is_lost_when_it_is_gone_given_up_or_long_not_ready() {
    let lost = |change: fn(&mut Node), now| {
        let mut node = node();
        change(&mut node);
        judge(&node, seconds(now)).lost
    };
    assert_eq!(lost(|_| {}, 1000), None);
    assert_eq!(lost(|node| node.machine = None, 100), Some(Loss::Deleted));
    let given_up: fn(&mut Node) = |node| node.machine.as_mut().unwrap().out_of_service = true;
    assert_eq!(lost(given_up, 100), Some(Loss::OutOfService));
    let down: fn(&mut Node) = |node| node.not_ready_since = Some(seconds(100));
    assert_eq!(lost(down, 399), None);
    assert_eq!(lost(down, 400), Some(Loss::NotReady));
}

#[test]
fn what_is_bound_to_another_node_of_that_name_is_lost() {
    let node = node();
    assert_eq!(loss_of(Some(&node), Some("u"), false, false), None);
    assert_eq!(loss_of(Some(&node), None, false, false), None);
    assert_eq!(
        loss_of(Some(&node), Some("x"), false, false),
        Some(Loss::Replaced)
    );
    assert_eq!(loss_of(None, Some("u"), false, false), Some(Loss::Deleted));
    assert_eq!(loss_of(None, Some("u"), false, true), None);
    assert_eq!(loss_of(Some(&node), Some("x"), false, true), None);
}

#[test]
fn what_is_stopped_outlasts_a_node_that_is_not_ready_and_no_other_loss() {
    let mut node = node();
    for (loss, is_lost) in [
        (Loss::NotReady, false),
        (Loss::OutOfService, true),
        (Loss::Deleted, true),
    ] {
        node.judged.lost = Some(loss);
        let told = loss_of(Some(&node), Some("u"), true, false);
        assert_eq!(told, Some(loss).filter(|_| is_lost));
        assert_eq!(loss_of(Some(&node), Some("u"), false, false), Some(loss));
    }
    let replaced = loss_of(Some(&node), Some("x"), true, false);
    assert_eq!(replaced, Some(Loss::Replaced));
}

#[test]
fn the_brake_needs_more_than_one_and_more_than_a_third() {
    for (nodes, silent, expected) in [
        (0, 0, false),
        (1, 1, false),
        (2, 2, true),
        (3, 1, false),
        (3, 2, true),
        (6, 2, false),
        (6, 3, true),
        (100, 33, false),
        (100, 34, true),
    ] {
        assert_eq!(is_brake(nodes, silent), expected, "{silent} of {nodes}");
    }
}
