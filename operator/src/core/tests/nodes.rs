//! Agents that are not heard, and nodes that are lost.

use super::*;

#[test]
fn a_silent_agent_ends_nothing() {
    let mut world = World::of(&["a", "b", "c", "d"]);
    world.bound("s", "a", "u", Phase::Running);
    world.bound("starting", "a", "u", Phase::Starting);
    world.bound("ended", "a", "u", Phase::Succeeded);
    assert_eq!(world.tasks(), []);
    world.pass_heard(600, &["b", "c", "d"]);
    let tasks = world.tasks();
    assert_eq!(tasks.len(), 3, "{tasks:?}");
    let count = |wanted: &Task| tasks.iter().filter(|task| *task == wanted).count();
    assert_eq!(
        (count(&Task::Unreachable), count(&Task::NodeUnreachable)),
        (2, 1)
    );
    // Nothing new goes there.
    let mut full = World::of(&["a"]);
    full.pass(41);
    full.sandbox("s", "1");
    let said: Vec<_> = full.jobs().iter().map(said).collect();
    assert!(
        said.contains(&"0/1 nodes: 1 whose agent is not ready".to_owned()),
        "{said:?}"
    );
}

#[test]
fn of_an_agent_that_writes_without_its_lease_silence_is_told_once() {
    let mut world = World::of(&["a", "b", "c", "d"]);
    let mut sandbox = world.bound("s", "a", "u", Phase::Running);
    let running = sandbox.status.clone();
    let unreachable: cloche_crds::SandboxStatus = serde_json::from_value(json!({
        "phase": "Running", "nodeName": "a", "nodeUID": "u", "conditions": [{
            "type": "Ready", "status": "Unknown", "reason": "AgentUnreachable", "message": "",
            "lastTransitionTime": "2027-01-01T00:00:00Z",
        }],
    }))
    .unwrap();
    for _ in 0..2 {
        world.pass_heard(50, &["b", "c", "d"]);
        let tasks = world.tasks();
        assert!(tasks.contains(&Task::Unreachable), "{tasks:?}");
        world.core.in_flight.clear();
        sandbox.status = Some(unreachable.clone());
        world.apply(&mut sandbox);
        sandbox.status = running.clone();
        world.apply(&mut sandbox);
        world.pass_heard(50, &["b", "c", "d"]);
        assert!(!world.tasks().contains(&Task::Unreachable));
        world.core.in_flight.clear();
        world.beat("a");
        assert_eq!(world.tasks(), []);
    }
}

#[test]
fn a_lease_that_is_gone_is_no_sign_of_life() {
    let mut world = World::of(&["a", "b", "c", "d"]);
    let lease: Lease = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
    let silent = |world: &World| world.core.index.node("a").unwrap().judged.silent;
    world.pass_heard(50, &["b", "c", "d"]);
    assert!(silent(&world));
    world.tell(Event::Lease(Change::Gone(Box::new(lease.metadata.clone()))));
    assert!(silent(&world));
    // Nor is one of somebody else.
    world.tell(Event::Lease(Change::Applied(Box::new(lease))));
    assert!(silent(&world));
    world.beat("a");
    assert!(!silent(&world));
    // An agent that was taken away with all that it made is no agent.
    world.tell(Event::Lease(Change::Listing));
    world.tell(Event::Lease(Change::Complete));
    let offer = world.offer("a", "u").metadata;
    world.tell(Event::Offer(Change::Gone(Box::new(offer))));
    assert!(world.core.index.node("a").unwrap().heard.is_none());
}

#[test]
fn a_node_that_is_gone_loses_what_ran_there() {
    let mut world = World::of(&["a", "b"]);
    world.bound("s", "a", "u", Phase::Running);
    world.bound("other", "b", "u", Phase::Running);
    world.node_gone("a");
    assert_eq!(world.tasks(), [Task::Lose(Loss::Deleted)]);
    world.node("b", "another", "True");
    assert_eq!(world.tasks(), [Task::Lose(Loss::Replaced)]);
}

#[test]
fn a_node_is_lost_after_five_minutes_not_ready_and_not_while_many_are_silent() {
    let names = ["a", "b", "c", "d"];
    let mut world = World::of(&names);
    world.bound("s", "a", "u", Phase::Running);
    world.node("a", "u", "Unknown");
    world.pass_heard(290, &names);
    assert_eq!(world.tasks(), []);
    world.pass_heard(20, &names);
    assert_eq!(world.tasks(), [Task::Lose(Loss::NotReady)]);

    let mut world = World::of(&names);
    world.bound("s", "a", "u", Phase::Running);
    world.node("a", "u", "Unknown");
    world.pass_heard(400, &["c", "d"]);
    let tasks = world.tasks();
    assert!(
        !tasks.iter().any(|task| matches!(task, Task::Lose(_))),
        "{tasks:?}"
    );
}

#[test]
fn a_node_is_given_its_whole_time_again_when_the_brake_lifts() {
    let names = ["a", "b", "c", "d"];
    let mut world = World::of(&names);
    world.bound("s", "a", "u", Phase::Running);
    world.node("a", "u", "Unknown");
    world.pass_heard(400, &["c", "d"]);
    let is_loss = |task: &Task| matches!(task, Task::Lose(_));
    assert!(!world.tasks().iter().any(is_loss));
    world.core.in_flight.clear();
    // The agents are heard before the kubelets.
    world.pass_heard(290, &names);
    assert!(!world.core.brake);
    let tasks = world.tasks();
    assert!(!tasks.iter().any(is_loss), "{tasks:?}");
    world.core.in_flight.clear();
    world.pass_heard(30, &names);
    assert_eq!(world.tasks(), [Task::Lose(Loss::NotReady)]);
}

#[test]
fn what_could_not_be_watched_was_not_silent() {
    let mut world = World::of(&["a"]);
    world.bound("s", "a", "u", Phase::Running);
    world.node("a", "u", "Unknown");
    assert_eq!(world.tasks(), []);
    world.tell(Event::Sight(Kind::Lease, false));
    world.pass(1000);
    assert_eq!(world.tasks(), []);
    world.tell(Event::Sight(Kind::Lease, true));
    world.pass(39);
    assert_eq!(world.tasks(), []);
    world.pass(2);
    assert!(world.tasks().contains(&Task::Unreachable));
}
