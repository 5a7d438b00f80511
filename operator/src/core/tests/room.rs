//! Who gets room, and when.

use super::*;

#[test]
fn bindings_that_are_not_seen_yet_count() {
    let mut world = World::of(&["a", "b"]);
    for name in ["1", "2", "3"] {
        world.sandbox(name, "3");
    }
    let said: Vec<_> = world.jobs().iter().map(said).collect();
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(said.contains(&"a".to_owned()) && said.contains(&"b".to_owned()));
    assert!(
        said.contains(&"0/2 nodes: 2 not enough cpu".to_owned()),
        "{said:?}"
    );
}

#[test]
fn room_that_appears_is_used_at_once() {
    let mut world = World::of(&["a"]);
    let mut old = world.bound("old", "a", "u", Phase::Running);
    let new = world.sandbox("new", "4");
    let message = "0/1 nodes: 1 not enough cpu";
    let jobs = world.jobs();
    assert_eq!(jobs.iter().map(said).collect::<Vec<_>>(), [message]);
    world.done(&jobs[0], told(new, message));
    // A small one is not held up.
    world.sandbox("small", "1");
    let jobs = world.jobs();
    assert_eq!(jobs.iter().map(said).collect::<Vec<_>>(), ["a"]);
    let small = world.sandbox("small", "1");
    world.tell(Event::Sandbox(Change::Gone(Box::new(small.metadata))));
    assert_eq!(world.jobs(), []);
    old.status.as_mut().unwrap().phase = Phase::Succeeded;
    world.apply(&mut old);
    assert_eq!(world.jobs().iter().map(said).collect::<Vec<_>>(), ["a"]);
}

#[test]
fn parked_shapes_are_asked_without_a_pause() {
    let mut world = World::of(&["a"]);
    world.bound("full", "a", "u", Phase::Running);
    // More than are asked at once, each another shape that a full node cannot take.
    for index in 0..600 {
        world.sandbox(&index.to_string(), &format!("{}m", 3500 + index));
    }
    while let Some(job) = world.job() {
        world.core.in_flight.remove(&job.subject);
    }
    let full = world.sandbox("full", "1");
    world.tell(Event::Sandbox(Change::Gone(Box::new(full.metadata))));
    let now = world.now();
    let mut bound = Vec::new();
    // Nothing happens and no time passes but what is asked for.
    while world.core.next_tick(now) == now.run {
        bound.extend(world.jobs().iter().map(said));
    }
    assert_eq!(
        bound.iter().filter(|node| *node == "a").count(),
        1,
        "{bound:?}"
    );
}

#[test]
fn a_node_with_room_is_asked_of_all_also_while_others_are() {
    let mut world = World::of(&["a", "b"]);
    for (name, node) in [("1", "a"), ("2", "b")] {
        world.bound(name, node, "u", Phase::Running);
    }
    for index in 0..600 {
        world.sandbox(&format!("s{index}"), &format!("{}m", 3500 + index));
    }
    while let Some(job) = world.job() {
        world.core.in_flight.remove(&job.subject);
    }
    // Nobody fits on b, which is as it was; of those for a, the first by name, the first fit.
    world.core.room.insert("b".into());
    let now = world.now();
    assert_eq!(world.job(), None);
    assert!(world.core.asking.is_some());
    let gone = world.sandbox("1", "1").metadata;
    world.tell(Event::Sandbox(Change::Gone(Box::new(gone))));
    while world.core.next_tick(now) == now.run {
        if let Some(job) = world.job() {
            assert_eq!(said(&job), "a");
            return;
        }
    }
    panic!("nothing was placed");
}

#[test]
fn a_namespace_with_many_shapes_does_not_take_the_turns_of_others() {
    let mut world = World::of(&["a"]);
    for name in ["1", "2", "3", "4"] {
        world.bound(name, "a", "u", Phase::Running);
    }
    // More than are asked at once, all before that of the other by their order.
    for index in 0..600 {
        world.sandbox_in("many", &index.to_string(), &format!("{}m", 1000 + index));
    }
    world.sandbox_in("few", "one", "2");
    while let Some(job) = world.job() {
        world.core.in_flight.remove(&job.subject);
    }
    for name in ["1", "2", "3", "4"] {
        let gone = world.sandbox(name, "1");
        world.tell(Event::Sandbox(Change::Gone(Box::new(gone.metadata))));
    }
    let now = world.now();
    let mut bound = Vec::new();
    while world.core.next_tick(now) == now.run {
        bound.extend(world.jobs());
    }
    bound.retain(|job| said(job) == "a");
    let is_few =
        |job: &Job| matches!(&job.subject, Subject::Sandbox(key) if &*key.namespace == "few");
    assert!(bound.iter().any(is_few), "{bound:?}");
}

#[test]
fn a_failed_binding_is_tried_again_after_a_pause_on_the_same_node() {
    let mut world = World::of(&["a"]);
    world.sandbox("s", "1");
    let jobs = world.jobs();
    world.done(&jobs[0], Outcome::Failed(Class::Transient));
    assert_eq!(world.jobs(), []);
    world.pass(2);
    assert_eq!(world.jobs().iter().map(said).collect::<Vec<_>>(), ["a"]);
}

#[test]
fn a_failed_binding_is_not_tried_again_on_a_node_that_became_unfit() {
    let mut world = World::of(&["a"]);
    world.sandbox("s", "1");
    let jobs = world.jobs();
    assert_eq!(said(&jobs[0]), "a");
    world.node("b", "u", "True");
    world.offer("b", "u");
    world.beat("b");
    world.node("a", "u", "False");
    world.done(&jobs[0], Outcome::Failed(Class::Transient));
    world.pass(2);
    // The room that it gives up is known first.
    let mut jobs = world.jobs();
    jobs.extend(world.jobs());
    assert_eq!(jobs.iter().map(said).collect::<Vec<_>>(), ["b"]);
}

#[test]
fn why_not_is_told_again_only_for_other_reasons_and_not_at_once() {
    let mut world = World::of(&[]);
    let sandbox = world.sandbox("s", "1");
    let jobs = world.jobs();
    assert_eq!(
        jobs.iter().map(said).collect::<Vec<_>>(),
        ["0/0 nodes: the cluster has none"]
    );
    let message = "0/0 nodes: the cluster has none";
    world.done(&jobs[0], told(sandbox, message));
    assert_eq!(world.jobs(), []);
    world.node("a", "u", "True");
    world.pass(5);
    assert_eq!(world.jobs(), []);
    world.pass(26);
    assert_eq!(
        world.jobs().iter().map(said).collect::<Vec<_>>(),
        ["0/1 nodes: 1 without an agent"]
    );
}
