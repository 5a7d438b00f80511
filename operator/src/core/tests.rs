//! The core against a simulated apiserver: objects, what is written to them, and what the watch tells late or not at all.

use std::time::Duration;

use cloche_crds::cluster::FINALIZER;
use cloche_crds::sandbox::{ResourceList, Resources};
use cloche_crds::{Phase, Sandbox, SandboxNode, SandboxNodeSpec, SandboxSpec};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::Patch;
use serde_json::json;

use super::*;
use crate::job::Task;
use crate::lenient::Lenient;
use crate::loss::Loss;

mod due;
mod nodes;
mod room;

struct World {
    core: Core,
    now: Duration,
    version: u64,
}

impl World {
    /// An active replica that has listed these nodes, each with four cores and 8 GiB.
    fn of(nodes: &[&str]) -> Self {
        let mut world = Self {
            core: Core::default(),
            now: Duration::from_secs(1),
            version: 1,
        };
        world.core.activate();
        for change in [
            Event::Sandbox(Change::Complete),
            Event::Node(Change::Complete),
            Event::Offer(Change::Complete),
            Event::Lease(Change::Complete),
        ] {
            world.tell(change);
        }
        for name in nodes {
            world.node(name, "u", "True");
            world.offer(name, "u");
            world.beat(name);
        }
        world.pass(0);
        world
    }

    fn now(&self) -> Now {
        Now {
            run: self.now,
            wall: Timestamp::from_second(
                1_800_000_000 + i64::try_from(self.now.as_secs()).unwrap(),
            )
            .unwrap(),
        }
    }

    fn tell(&mut self, event: Event) {
        let now = self.now();
        self.core.observe(event, now);
    }

    fn node(&mut self, name: &str, uid: &str, ready: &str) {
        let node: NodeObject = serde_json::from_value(json!({
            "metadata": {"name": name, "uid": uid},
            "status": {
                "allocatable": {"cpu": "4", "memory": "8Gi"},
                "conditions": [{"type": "Ready", "status": ready}],
            },
        }))
        .unwrap();
        self.tell(Event::Node(Change::Applied(Box::new(node))));
    }

    fn node_gone(&mut self, name: &str) {
        let node: NodeObject = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        self.tell(Event::Node(Change::Gone(Box::new(node.metadata))));
    }

    fn offer(&mut self, name: &str, node_uid: &str) -> SandboxNode {
        self.version += 1;
        let mut offer = SandboxNode::new(
            name,
            SandboxNodeSpec {
                node_uid: node_uid.to_owned(),
            },
        );
        offer.metadata.uid = Some(format!("offer-{name}"));
        offer.metadata.resource_version = Some(self.version.to_string());
        offer.status = serde_json::from_value(json!({
            "endpoint": "10.0.0.1:7443",
            "allocatable": {"cpu": "4", "memory": "8Gi", "sandboxOverhead": "0"},
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Running", "message": "",
                "lastTransitionTime": "2027-01-01T00:00:00Z",
            }],
        }))
        .unwrap();
        self.tell(Event::Offer(Change::Applied(Box::new(offer.clone()))));
        offer
    }

    fn beat(&mut self, name: &str) {
        let mut lease: Lease = serde_json::from_value(json!({"metadata": {
            "name": name,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": "u"}],
        }}))
        .unwrap();
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(format!("{:?}", self.now)),
            ..LeaseSpec::default()
        });
        self.tell(Event::Lease(Change::Applied(Box::new(lease))));
    }

    fn sandbox(&mut self, name: &str, cpu: &str) -> Sandbox {
        self.sandbox_in("default", name, cpu)
    }

    fn sandbox_in(&mut self, namespace: &str, name: &str, cpu: &str) -> Sandbox {
        let limits = ResourceList {
            cpu: Some(cpu.into()),
            memory: Some("64Mi".into()),
            ephemeral_storage: None,
        };
        let mut sandbox = Sandbox::new(
            name,
            SandboxSpec {
                image: "python".to_owned(),
                resources: Some(Resources {
                    limits: Some(limits),
                    ..Resources::default()
                }),
                ..SandboxSpec::default()
            },
        );
        sandbox.metadata.namespace = Some(namespace.to_owned());
        sandbox.metadata.uid = Some(format!("uid-{name}"));
        sandbox.metadata.generation = Some(1);
        self.apply(&mut sandbox);
        sandbox
    }

    fn apply(&mut self, sandbox: &mut Sandbox) {
        self.version += 1;
        sandbox.metadata.resource_version = Some(self.version.to_string());
        self.tell(Event::Sandbox(Change::Applied(Box::new(lenient(sandbox)))));
    }

    fn bound(&mut self, name: &str, node: &str, uid: &str, phase: Phase) -> Sandbox {
        let mut sandbox = self.sandbox(name, "1");
        sandbox.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        let status = sandbox.status.get_or_insert_default();
        status.phase = phase;
        status.node_name = Some(node.to_owned());
        status.node_uid = Some(uid.to_owned());
        self.apply(&mut sandbox);
        sandbox
    }

    fn job(&mut self) -> Option<Job> {
        let now = self.now();
        self.core.next_job(now)
    }

    fn jobs(&mut self) -> Vec<Job> {
        std::iter::from_fn(|| self.job()).collect()
    }

    fn tasks(&mut self) -> Vec<Task> {
        self.jobs().into_iter().map(|job| job.task).collect()
    }

    fn done(&mut self, job: &Job, outcome: Outcome) {
        let now = self.now();
        self.core.done(&job.subject, outcome, now);
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        let now = self.now();
        self.core.tick(now);
    }

    /// Time in which these go on to be heard.
    fn pass_heard(&mut self, seconds: u64, names: &[&str]) {
        for _ in 0..seconds / 10 {
            self.pass(10);
            for name in names {
                self.beat(name);
            }
        }
    }
}

/// As the apiserver sends it.
fn lenient(sandbox: &Sandbox) -> Lenient {
    serde_json::from_value(serde_json::to_value(sandbox).unwrap()).unwrap()
}

/// The node that a job binds to; what it says where it does not.
fn said(job: &Job) -> String {
    let Task::Write {
        status: Some(patch),
        ..
    } = &job.task
    else {
        return job.task.as_str().to_owned();
    };
    let Patch::Json(steps) = patch.to_patch().unwrap() else {
        panic!("no JSON patch");
    };
    let text = serde_json::to_value(&steps).unwrap().to_string();
    let after = |key: &str| {
        // The last: what is tested comes before what is written.
        let (_, rest) = text.rsplit_once(key)?;
        rest.split('"').next().map(str::to_owned)
    };
    after("\"nodeName\":\"")
        .or_else(|| after("\"message\":\""))
        .unwrap()
        .trim_start_matches("bound to ")
        .to_owned()
}

/// It was written that no node can take it.
fn told(mut sandbox: Sandbox, message: &str) -> Outcome {
    sandbox.status = serde_json::from_value(json!({"phase": "Pending", "conditions": [{
        "type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": message,
        "lastTransitionTime": "2027-01-01T00:00:00Z",
    }]}))
    .unwrap();
    sandbox.metadata.resource_version = Some("100".to_owned());
    Outcome::Sandbox(Arc::new(lenient(&sandbox)))
}

#[test]
fn a_sandbox_is_bound_with_its_finalizer_in_one_job() {
    let mut world = World::of(&["a"]);
    let mut sandbox = world.sandbox("s", "1");
    let jobs = world.jobs();
    assert_eq!(jobs.len(), 1);
    assert!(matches!(
        &jobs[0].task,
        Task::Write {
            finalizer: Some(_),
            status: Some(_)
        }
    ));
    assert_eq!(said(&jobs[0]), "a");
    // What comes back is taken in, and the watch that lags behind changes nothing.
    let early = sandbox.clone();
    sandbox.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    sandbox.metadata.resource_version = Some("100".to_owned());
    let status = sandbox.status.get_or_insert_default();
    (status.node_name, status.node_uid) = (Some("a".to_owned()), Some("u".to_owned()));
    world.done(&jobs[0], Outcome::Sandbox(Arc::new(lenient(&sandbox))));
    world.tell(Event::Sandbox(Change::Applied(Box::new(lenient(&early)))));
    assert_eq!(world.jobs(), []);
}

#[test]
fn what_came_of_a_job_is_no_news_of_an_object_that_is_gone_or_made_anew() {
    let mut world = World::of(&["a"]);
    let mut old = world.sandbox("s", "1");
    let jobs = world.jobs();
    let status = old.status.get_or_insert_default();
    (status.node_name, status.node_uid) = (Some("a".to_owned()), Some("u".to_owned()));
    old.metadata.resource_version = Some("100".to_owned());
    let outcome = Outcome::Sandbox(Arc::new(lenient(&old)));
    world.tell(Event::Sandbox(Change::Gone(Box::new(old.metadata.clone()))));
    world.done(&jobs[0], outcome.clone());
    assert_eq!(world.core.index.keys().count(), 0);
    assert_eq!(world.core.index.node("a").unwrap().count, 0);

    let mut new = old;
    new.metadata.uid = Some("another".to_owned());
    new.status = None;
    world.apply(&mut new);
    world.core.in_flight.clear();
    world.done(&jobs[0], outcome);
    let jobs = world.jobs();
    assert_eq!(jobs.iter().map(said).collect::<Vec<_>>(), ["a"]);
    assert_eq!(&*jobs[0].uid, "another");
}

#[test]
fn an_older_offer_is_no_news() {
    let mut world = World::of(&["a"]);
    let subject = Subject::Node("a".into());
    let now = world.now();
    let mut old = world.offer("a", "u");
    world.offer("a", "u");
    old.status = None;
    world
        .core
        .done(&subject, Outcome::Node(Arc::new(old.clone())), now);
    world.tell(Event::Offer(Change::Applied(Box::new(old.clone()))));
    assert!(world.core.offer("a").unwrap().ready);
    world.tell(Event::Offer(Change::Gone(Box::new(old.metadata.clone()))));
    world.core.done(&subject, Outcome::Node(Arc::new(old)), now);
    assert!(world.core.offer("a").is_none());
}

#[test]
fn nothing_is_done_by_who_stands_by_or_has_not_seen_all() {
    let mut world = World::of(&["a"]);
    world.core.active = false;
    world.sandbox("s", "1");
    assert_eq!(world.jobs(), []);
    world.core.activate();
    world.core.listed.remove(&Kind::Node);
    assert_eq!(world.jobs(), []);
    world.tell(Event::Node(Change::Listing));
    world.node("a", "u", "True");
    assert_eq!(world.jobs(), []);
}

#[test]
fn what_is_refused_waits_for_a_change() {
    let mut world = World::of(&["a"]);
    let mut sandbox = world.sandbox("s", "1");
    let jobs = world.jobs();
    world.done(&jobs[0], Outcome::Failed(Class::Invalid));
    world.pass(1000);
    world.beat("a");
    world.pass(1);
    assert_eq!(world.tasks().len(), 0);
    world.apply(&mut sandbox);
    assert_eq!(world.jobs().iter().map(said).collect::<Vec<_>>(), ["a"]);
}

#[test]
fn nothing_is_kept_of_what_failed_and_is_gone() {
    let mut world = World::of(&["a"]);
    let sandbox = world.sandbox("s", "1");
    let jobs = world.jobs();
    world.done(&jobs[0], Outcome::Failed(Class::Transient));
    world.pass(2);
    let jobs = world.jobs();
    world.tell(Event::Sandbox(Change::Gone(Box::new(sandbox.metadata))));
    world.done(&jobs[0], Outcome::Gone);
    world.pass(100);
    assert!(world.core.failures.is_empty());
    assert!(world.core.paused.is_empty());
}

#[test]
fn finalizers_are_released_where_no_agent_can() {
    let mut world = World::of(&["a"]);
    let deleting = |world: &mut World, mut sandbox: Sandbox| {
        sandbox.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        sandbox.metadata.deletion_timestamp =
            Some(cloche_crds::condition::Time(Timestamp::UNIX_EPOCH));
        world.apply(&mut sandbox);
        world.tasks()
    };
    let unbound = world.sandbox("unbound", "100");
    world.tasks();
    world.core.in_flight.clear();
    let tasks = deleting(&mut world, unbound);
    assert!(
        matches!(tasks[..], [Task::Release { absent: None, .. }]),
        "{tasks:?}"
    );
    // An agent is there to do it.
    let bound = world.bound("bound", "a", "u", Phase::Running);
    assert_eq!(deleting(&mut world, bound), []);
    let gone = world.bound("gone", "b", "u", Phase::Failed);
    let tasks = deleting(&mut world, gone);
    assert!(
        matches!(
            tasks[..],
            [Task::Release {
                absent: Some(_),
                ..
            }]
        ),
        "{tasks:?}"
    );
}

#[test]
fn what_cannot_be_read_is_told_lost_and_released() {
    let mut world = World::of(&["a"]);
    world.sandbox("new", "1");
    world.jobs();
    let unread = |name: &str, metadata: serde_json::Value, status: serde_json::Value| {
        let mut object = json!({
            "metadata": {
                "name": name, "namespace": "default", "uid": name, "generation": 1, "resourceVersion": "9",
                "finalizers": [FINALIZER],
            },
            "spec": {"image": "python", "newer": 1},
            "status": status,
        });
        let known = object["metadata"].as_object_mut().unwrap();
        known.extend(metadata.as_object().unwrap().clone());
        let object: Lenient = serde_json::from_value(object).unwrap();
        Event::Sandbox(Change::Applied(Box::new(object)))
    };
    let odd = "2026-01-01T00:00:00+99:99";
    let bound = json!({"nodeName": "b", "nodeUID": "u", "startedAt": odd, "phase": "Running"});
    world.tell(unread("unbound", json!({}), serde_json::Value::Null));
    let said = said(&world.jobs()[0]);
    assert!(said.contains("unknown field `newer`"), "{said}");
    world.tell(unread("lost", json!({}), bound.clone()));
    world.pass(1);
    assert_eq!(world.tasks(), [Task::Lose(Loss::Deleted)]);
    let deleting = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    world.tell(unread("going", deleting, bound));
    let tasks = world.tasks();
    assert!(matches!(tasks[..], [Task::Release { .. }]), "{tasks:?}");
}

#[test]
fn a_listing_forgets_what_it_does_not_name() {
    let mut world = World::of(&["a"]);
    world.bound("gone", "a", "u", Phase::Running);
    let stays = world.bound("stays", "a", "u", Phase::Running);
    world.tell(Event::Sandbox(Change::Listing));
    world.tell(Event::Sandbox(Change::Listed(Box::new(lenient(&stays)))));
    world.tell(Event::Sandbox(Change::Complete));
    assert_eq!(world.core.index.keys().count(), 1);
    assert_eq!(world.core.index.node("a").unwrap().count, 1);
}
