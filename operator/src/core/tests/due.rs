//! What a spec says is to happen after a time.

use cloche_crds::Reason;
use cloche_crds::sandbox::Lifecycle;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

fn version_of(sandbox: &Sandbox) -> u64 {
    let version = sandbox.metadata.resource_version.as_deref();
    version.unwrap().parse().unwrap()
}

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

#[test]
fn what_was_never_tried_is_tried_first_and_what_is_invalid_says_so() {
    let mut world = World::of(&["a"]);
    let mut fits = world.sandbox("fits", "1");
    fits.metadata.creation_timestamp = Some(Time(Timestamp::from_second(1_700_000_000).unwrap()));
    fits.spec.lifecycle = Some(waits(60));
    fits.metadata.generation = Some(2);
    world.apply(&mut fits);
    let mut broken = fits.clone();
    broken.metadata.name = Some("broken".to_owned());
    broken.metadata.uid = Some("uid-broken".to_owned());
    broken.spec.image = "No Image".to_owned();
    world.apply(&mut broken);
    world.pass(1);
    let jobs = world.jobs();
    let said: Vec<_> = jobs.iter().map(said).collect();
    assert!(said.contains(&"a".to_owned()), "{said:?}");
    let ends: Vec<_> = jobs
        .iter()
        .map(|job| written(&job.task))
        .filter(|text| text.contains("termination"))
        .collect();
    let [end] = &ends[..] else { panic!("{ends:?}") };
    assert!(
        end.contains("SpecInvalid") && !end.contains("failureDomain\": String(\"Infrastructure"),
        "{end}"
    );
}

#[test]
fn time_passes_however_much_happens() {
    let mut world = World::of(&["a"]);
    let mut sandbox = world.too_large(waits(5));
    let first = world.jobs();
    let outcome = told(sandbox.clone(), "0/1 nodes: 1 not enough cpu");
    world.done(&first[0], outcome);
    // As the controller does: something happens all the time, and time passes when it is asked for.
    for _ in 0..100 {
        world.now += Duration::from_millis(100);
        world.beat("a");
        let now = world.now();
        if world.core.next_tick(now) <= now.run {
            world.core.tick(now);
        }
    }
    assert!(
        world
            .tasks()
            .iter()
            .any(|task| written(task).contains("termination"))
    );
    // Nothing is kept of what is gone, nor of times that were changed.
    for seconds in 100..200 {
        sandbox.spec.lifecycle = Some(waits(seconds));
        world.apply(&mut sandbox);
    }
    let far = Timestamp::from_second(2_000_000_000).unwrap();
    assert_eq!(world.core.index.due(far).count(), 1);
    world.tell(Event::Sandbox(Change::Gone(Box::new(
        sandbox.metadata.clone(),
    ))));
    assert_eq!(world.core.index.due(far).count(), 0);
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
        let version = version_of(&sandbox);
        let last = jobs.last().unwrap();
        assert_eq!(jobs.len(), 1, "{bound}");
        assert_eq!(last.task, Task::Delete { version }, "{bound}");
        // It goes, and waits for its agent: there is nothing more to do.
        let mut going = sandbox.clone();
        going.metadata.deletion_timestamp = Some(Time(world.now().wall));
        going.metadata.finalizers = Some(vec!["somebody/else".to_owned()]);
        going.metadata.resource_version = Some((version + 1).to_string());
        let mut other = World {
            version: version + 1,
            ..World::of(&["a"])
        };
        other.apply(&mut going.clone());
        other.pass_heard(60, &["a"]);
        assert!(other.tasks().is_empty(), "{bound}");
        // Somebody changed it meanwhile: it is looked at again.
        sandbox.spec.lifecycle = None;
        world.apply(&mut sandbox);
        world.done(last, Outcome::Failed(Class::Conflict));
        world.pass_heard(60, &["a"]);
        assert!(world.tasks().is_empty(), "{bound}");
    }
}
