//! What a spec says is to happen after a time.

use cloche_crds::Reason;
use cloche_crds::sandbox::Lifecycle;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

/// A patch of the status, as JSON; empty where none is written.
fn written(task: &Task) -> String {
    let Task::Write {
        status: Some(patch),
        ..
    } = task
    else {
        return String::new();
    };
    format!("{:?}", patch.to_patch().unwrap())
}

impl World {
    /// A sandbox that asks for more than any node has, made now.
    fn too_large(&mut self, lifecycle: Lifecycle) -> Sandbox {
        let mut sandbox = self.sandbox("s", "100");
        sandbox.metadata.creation_timestamp = Some(Time(self.now().wall));
        sandbox.spec.lifecycle = Some(lifecycle);
        sandbox.metadata.generation = Some(2);
        self.apply(&mut sandbox);
        sandbox
    }

    /// As it is once a patch was written.
    fn ended(&mut self, sandbox: &mut Sandbox, reason: Reason) {
        let at = self.now().wall;
        let status = sandbox.status.get_or_insert_default();
        status.phase = reason.phase();
        status.termination = serde_json::from_value(json!({
            "reason": reason.as_str(), "failureDomain": "Infrastructure", "finishedAt": at.to_string(),
        }))
        .unwrap();
        self.apply(sandbox);
    }
}

fn waits(seconds: i64) -> Lifecycle {
    Lifecycle {
        schedule_timeout_seconds: Some(seconds),
        ..Lifecycle::default()
    }
}

#[test]
fn what_no_node_takes_in_its_time_ends() {
    let mut world = World::of(&["a"]);
    let mut sandbox = world.too_large(waits(60));
    let first = world.jobs();
    assert_eq!(said(&first[0]), "0/1 nodes: 1 not enough cpu");
    let outcome = told(sandbox.clone(), "0/1 nodes: 1 not enough cpu");
    world.done(&first[0], outcome);
    world.pass_heard(60, &["a"]);
    assert!(world.tasks().is_empty(), "not before the time is over");
    world.pass(1);
    let tasks = world.tasks();
    let text = written(&tasks[0]);
    assert_eq!(tasks.len(), 1);
    for words in [
        "Unschedulable",
        "scheduleTimeoutSeconds",
        "not enough cpu",
        "Stalled",
        "Finished",
        "Failed",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // It has ended: nothing more is done, whatever room there is.
    world.ended(&mut sandbox, Reason::Unschedulable);
    world.pass(10);
    assert!(world.tasks().is_empty());
}

#[test]
fn a_time_that_is_taken_away_does_nothing() {
    let mut world = World::of(&["a"]);
    let mut sandbox = world.too_large(waits(60));
    let first = world.jobs();
    sandbox.spec.lifecycle = None;
    sandbox.metadata.generation = Some(3);
    sandbox.status = None;
    world.apply(&mut sandbox);
    let outcome = told(sandbox.clone(), "0/1 nodes: 1 not enough cpu");
    world.done(&first[0], outcome);
    world.pass_heard(120, &["a"]);
    assert!(
        world
            .tasks()
            .iter()
            .all(|task| !written(task).contains("termination"))
    );
}

#[test]
fn what_has_ended_is_deleted_in_its_time_as_it_was_seen() {
    for bound in [false, true] {
        let mut world = World::of(&["a"]);
        let mut sandbox = if bound {
            world.bound("s", "a", "u", Phase::Running)
        } else {
            world.sandbox("s", "100")
        };
        sandbox.spec.lifecycle = Some(Lifecycle {
            ttl_seconds_after_finished: Some(30),
            ..Lifecycle::default()
        });
        sandbox.metadata.generation = Some(2);
        world.ended(&mut sandbox, Reason::NodeLost);
        world.jobs();
        world.pass_heard(30, &["a"]);
        assert!(
            world.tasks().is_empty(),
            "{bound}: not before the time is over"
        );
        world.pass(1);
        let jobs = world.jobs();
        let version = world.version;
        let last = jobs.last().unwrap();
        assert_eq!(jobs.len(), 1, "{bound}");
        assert!(matches!(last.task, Task::Delete { version: seen } if seen > 0 && seen <= version));
        // Somebody changed it meanwhile: it is looked at again.
        sandbox.spec.lifecycle = None;
        world.apply(&mut sandbox);
        world.done(last, Outcome::Failed(Class::Conflict));
        world.pass_heard(60, &["a"]);
        assert!(world.tasks().is_empty(), "{bound}");
    }
}
