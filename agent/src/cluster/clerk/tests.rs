use std::sync::Mutex;

use futures::FutureExt;
use kube::core::response::Status;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::super::seen::tests::object;
use super::*;
use crate::board::Posting;
use crate::sandbox::fixture::{now_at, record};
use crate::sandbox::{Cause, State, Termination, view};
use crate::settled::Settled;
use crate::source::DesiredSet;

/// An apiserver with at most one object. Its answers are made when they are asked for.
#[derive(Default)]
struct Fake {
    object: Mutex<Option<Value>>,
    is_away: Mutex<bool>,
    requests: Mutex<Vec<String>>,
    events: Mutex<Vec<String>>,
}

impl Fake {
    fn answer(
        &self,
        request: String,
        change: impl FnOnce(&mut Value) -> Result<(), ObjectError>,
    ) -> BoxFuture<'static, Result<DynamicObject, ObjectError>> {
        self.requests.lock().unwrap().push(request);
        let answer = if *self.is_away.lock().unwrap() {
            let status = Status {
                code: 503,
                ..Status::default()
            };
            Err(ObjectError::Unanswered(Box::new(kube::Error::Api(
                Box::new(status),
            ))))
        } else {
            match &mut *self.object.lock().unwrap() {
                None => Err(ObjectError::Gone),
                Some(object) => {
                    change(object).map(|()| serde_json::from_value(object.clone()).unwrap())
                }
            }
        };
        futures::future::ready(answer).boxed()
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    fn put(&self, patch: &Value) -> DynamicObject {
        let object = object(patch);
        *self.object.lock().unwrap() = Some(serde_json::to_value(&object).unwrap());
        object
    }
}

impl Objects for Fake {
    fn get(&self, _: &SandboxKey) -> BoxFuture<'static, Result<DynamicObject, ObjectError>> {
        self.answer("ask".to_owned(), |_| Ok(()))
    }

    fn patch(
        &self,
        _: &SandboxKey,
        part: Part,
        patch: Value,
    ) -> BoxFuture<'static, Result<DynamicObject, ObjectError>> {
        let what = match part {
            Part::Main => "release".to_owned(),
            Part::Status => format!("tell {}", patch[1]["value"]["phase"].as_str().unwrap()),
        };
        self.answer(what, |object| {
            if object["metadata"]["uid"] != patch[0]["value"] {
                return Err(ObjectError::Refused("the test failed".to_owned()));
            }
            let version: u64 = object["metadata"]["resourceVersion"]
                .as_str()
                .unwrap()
                .parse()
                .unwrap();
            object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
            match part {
                Part::Main => object["metadata"]["finalizers"] = json!([]),
                Part::Status => object["status"] = patch[1]["value"].clone(),
            }
            Ok(())
        })
    }

    fn tell(
        &self,
        event: &k8s_openapi::api::events::v1::Event,
    ) -> BoxFuture<'static, Result<(), ObjectError>> {
        let reason = event.reason.clone().unwrap_or_default();
        self.events.lock().unwrap().push(reason);
        futures::future::ready(Ok(())).boxed()
    }
}

/// A clerk at work, and everything around it.
struct Scene {
    fake: Arc<Fake>,
    tell: mpsc::UnboundedSender<Told>,
    board: Board,
    accounted: watch::Sender<Accounted>,
    desired: watch::Receiver<DesiredObjects>,
    settled: Settled,
    _ours: watch::Sender<Option<OurNode>>,
    _stop: tokio_util::sync::DropGuard,
}

fn ours() -> OurNode {
    OurNode {
        name: "one".to_owned(),
        uid: "node-1".to_owned(),
    }
}

fn key() -> SandboxKey {
    SandboxKey {
        namespace: "default".to_owned(),
        name: "demo".to_owned(),
    }
}

/// As an earlier agent took it over.
fn taken(deleted: bool) -> SandboxRecord {
    let mut record = record();
    record.uid = "uid-1".to_owned();
    record.object.metadata.uid = Some("uid-1".to_owned());
    record.deleted = deleted;
    record
}

impl Scene {
    fn new(records: &[SandboxRecord], lost: &[&str]) -> Self {
        let fake = Arc::new(Fake::default());
        let (ours, board) = (watch::Sender::new(Some(ours())), Board::default());
        let driven = records.iter().map(|record| record.uid.clone()).collect();
        let accounted = watch::Sender::new(Accounted {
            revision: 1,
            driven,
        });
        let settle = Settle::default();
        let settled = settle.settled();
        let desk = Desk {
            objects: Arc::clone(&fake),
            ours: ours.subscribe(),
            board: board.clone(),
            accounted: accounted.subscribe(),
            settle,
        };
        let key = key();
        let lost = lost.iter().map(|uid| (*uid).to_owned()).collect();
        let clerk = Clerk::new(desk, records.iter().map(|record| (&key, record)), lost);
        let desired = clerk.desired();
        let (tell, told) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        tokio::spawn(clerk.run(UnboundedReceiverStream::new(told), stop.clone()));
        Self {
            fake,
            tell,
            board,
            accounted,
            desired,
            settled,
            _ours: ours,
            _stop: stop.drop_guard(),
        }
    }

    fn tell(&self, event: Event<DynamicObject>) {
        let guard = |object| DeserializeGuard(Ok(object));
        let event = match event {
            Event::Apply(object) => Event::Apply(guard(object)),
            Event::Delete(object) => Event::Delete(guard(object)),
            Event::Init => Event::Init,
            Event::InitApply(object) => Event::InitApply(guard(object)),
            Event::InitDone => Event::InitDone,
        };
        self.tell.send(Ok(event)).unwrap();
    }

    fn list(&self, objects: impl IntoIterator<Item = DynamicObject>) {
        self.tell(Event::Init);
        for object in objects {
            self.tell(Event::InitApply(object));
        }
        self.tell(Event::InitDone);
    }

    /// The driver says so.
    fn post(&self, state: State) {
        let mut record = taken(false);
        record.state = state;
        let beside = view::Beside::default();
        let now = now_at(9).wall;
        let mut object = record.object.clone();
        object.status = Some(view::status(&record, &beside, &[], now));
        self.board.post(
            &key(),
            Posting {
                object: Arc::new(object),
                record: Arc::new(record),
                sessions: None,
                driver: None,
                activity: Arc::default(),
            },
        );
    }

    fn account(&self, driven: &[&str]) {
        let revision = self.desired.borrow().revision;
        self.accounted.send_replace(Accounted {
            revision,
            driven: driven.iter().map(|uid| (*uid).to_owned()).collect(),
        });
    }

    /// Somebody deletes the object as it is.
    fn delete(&self) {
        let object = {
            let mut object = self.fake.object.lock().unwrap();
            let object = object.as_mut().unwrap();
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            object["metadata"]["resourceVersion"] = json!("200");
            object.clone()
        };
        self.tell(Event::Apply(serde_json::from_value(object).unwrap()));
    }

    async fn until(&mut self, holds: impl FnMut(&DesiredObjects) -> bool) {
        let wait = self.desired.wait_for(holds);
        let waited = tokio::time::timeout(Duration::from_secs(20), wait).await;
        drop(waited.expect("it never came to be desired so").unwrap());
    }

    async fn asked(&self, wanted: &[&str]) {
        let wait = async {
            while self.fake.requests() != wanted {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(20), wait)
            .await
            .is_err()
        {
            panic!("wanted {wanted:?}, were {:?}", self.fake.requests());
        }
    }

    async fn is_settled(&self) {
        let wait = self.settled.clone().wait("uid-1");
        tokio::time::timeout(Duration::from_secs(20), wait)
            .await
            .expect("it is never settled");
    }
}

fn running() -> State {
    State::Running {
        instance: "i1".to_owned(),
        started: now_at(5),
        pause: None,
    }
}

fn ended() -> State {
    State::Ended {
        termination: Termination {
            cause: Cause::new(
                cloche_crds::Reason::Deleted,
                cloche_crds::FailureDomain::User,
                "",
            ),
            started_at: None,
            finished_at: now_at(9).wall,
            usage: None,
        },
    }
}

fn deleting() -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "200"}})
}

#[tokio::test]
async fn a_whole_life_is_two_writes_and_the_finalizer() {
    let mut scene = Scene::new(&[], &[]);
    scene.list([scene.fake.put(&json!({}))]);
    scene.until(|desired| desired.has(&key())).await;
    scene.account(&["uid-1"]);
    scene.post(running());
    scene.asked(&["tell Running"]).await;

    scene.delete();
    scene.until(|desired| !desired.has(&key())).await;
    scene.post(ended());
    scene.is_settled().await;
    scene.asked(&["tell Running", "tell Ended"]).await;
    scene.account(&[]);
    scene
        .asked(&["tell Running", "tell Ended", "release"])
        .await;
}

#[tokio::test]
async fn what_is_not_listed_is_asked_for_before_it_goes() {
    let mut scene = Scene::new(&[taken(false)], &[]);
    assert!(scene.desired.borrow().has(&key()), "it goes on meanwhile");
    // A stale list.
    scene.fake.put(&json!({}));
    scene.list([]);
    scene.asked(&["ask"]).await;
    scene.tell(Event::Apply(scene.fake.put(&json!({}))));
    // It left the watch, and is there.
    scene.tell(Event::Delete(object(&json!({}))));
    scene.asked(&["ask", "ask"]).await;
    assert!(scene.desired.borrow().has(&key()));
    // It left the watch, and is gone.
    scene.tell(Event::Apply(object(&json!({}))));
    *scene.fake.object.lock().unwrap() = None;
    scene.tell(Event::Delete(object(&json!({}))));
    scene.until(|desired| !desired.has(&key())).await;
    scene.asked(&["ask", "ask", "ask"]).await;
    scene.is_settled().await;
}

#[tokio::test]
async fn another_of_the_same_name_waits_for_the_first_to_be_gone() {
    let mut scene = Scene::new(&[taken(false)], &[]);
    let other = scene
        .fake
        .put(&json!({"metadata": {"uid": "uid-2", "resourceVersion": "300"}}));
    scene.list([other]);
    let uid = |desired: &DesiredObjects| desired.sandboxes.get(&key()).map(|one| one.uid.clone());
    assert_eq!(uid(&scene.desired.borrow()).as_deref(), Some("uid-1"));
    scene
        .until(|desired| uid(desired).as_deref() == Some("uid-2"))
        .await;
    scene.asked(&["ask"]).await;
}

#[tokio::test]
async fn half_a_list_is_no_desire() {
    let mut scene = Scene::new(&[taken(false)], &[]);
    let new = json!({"metadata": {"name": "a-new", "uid": "uid-2"}});
    let lost = json!({"status": {"termination": {"reason": "NodeLost"}}});
    scene.tell(Event::Init);
    scene.tell(Event::InitApply(object(&new)));
    // By what is asked for it shows that all before was heard.
    scene.tell(Event::Delete(scene.fake.put(&json!({}))));
    scene.asked(&["ask"]).await;
    assert_eq!(scene.desired.borrow().sandboxes.len(), 1);
    scene.tell(Event::InitApply(scene.fake.put(&lost)));
    scene.tell(Event::InitDone);
    scene
        .until(|desired| desired.sandboxes.len() == 2 && desired.sandboxes[&key()].ended.is_some())
        .await;
}

#[tokio::test]
async fn an_outage_delays_and_loses_nothing() {
    let mut scene = Scene::new(&[taken(false)], &[]);
    *scene.fake.is_away.lock().unwrap() = true;
    scene.list([scene.fake.put(&json!({}))]);
    scene.post(running());
    scene.asked(&["tell Running"]).await;
    scene.post(ended());
    *scene.fake.is_away.lock().unwrap() = false;
    // The newest is what is told, once.
    scene.asked(&["tell Running", "tell Ended"]).await;
    scene.is_settled().await;
    scene
        .until(|desired| desired.sandboxes[&key()].ended.is_some())
        .await;
}

#[tokio::test]
async fn one_whose_record_is_lost_ends_without_running() {
    for (lost, patch) in [
        (vec!["uid-1"], json!({})),
        (vec![], json!({"status": {"phase": "Running"}})),
        (vec![], json!({"spec": {"image": "Python"}})),
    ] {
        let scene = Scene::new(&[], &lost);
        scene.list([scene.fake.put(&patch)]);
        scene.asked(&["tell Failed"]).await;
        assert!(!scene.desired.borrow().has(&key()));
        scene.delete();
        scene.asked(&["tell Failed", "release"]).await;
        let wanted = if patch["spec"].is_null() {
            "RuntimeCrashed"
        } else {
            "SpecInvalid"
        };
        assert_eq!(*scene.fake.events.lock().unwrap(), [wanted]);
    }
}

#[tokio::test]
async fn the_end_of_one_that_was_never_here_is_told() {
    for (finalizers, wanted) in [
        (
            json!(["a/b", "cloche.dev/teardown"]),
            &["tell Ended", "release"][..],
        ),
        (json!(["a/b"]), &["tell Ended"]),
    ] {
        let scene = Scene::new(&[], &[]);
        let mut patch = deleting();
        patch["metadata"]["finalizers"] = finalizers;
        scene.list([scene.fake.put(&patch)]);
        scene.asked(wanted).await;
        let object = scene.fake.object.lock().unwrap().clone().unwrap();
        assert_eq!(object["status"]["termination"]["reason"], "Deleted");
        assert_eq!(*scene.fake.events.lock().unwrap(), [""; 0]);
    }
}

/// It was desired, and deleted before the supervisor had begun it.
#[tokio::test]
async fn the_end_of_one_that_was_never_begun_is_told() {
    let mut scene = Scene::new(&[], &[]);
    scene.list([scene.fake.put(&json!({}))]);
    scene.until(|desired| desired.has(&key())).await;
    scene.delete();
    scene.until(|desired| !desired.has(&key())).await;
    assert_eq!(scene.fake.requests(), [""; 0]);
    scene.account(&[]);
    scene.asked(&["tell Ended", "release"]).await;
}

#[tokio::test]
async fn a_record_without_its_end_waits_for_the_apiserver() {
    let scene = Scene::new(&[taken(true)], &[]);
    assert!(!scene.desired.borrow().has(&key()));
    scene.post(ended());
    scene.list([scene.fake.put(&deleting())]);
    scene.is_settled().await;
    scene.asked(&["tell Ended"]).await;
    scene.account(&[]);
    scene.asked(&["tell Ended", "release"]).await;
}
