use std::sync::{Arc, Mutex};

use super::*;
use crate::sandbox::fixture::record;
use crate::sandbox::{Cause, State, Usage};

/// Hands that remember, and see what is on disk at the moment they are asked.
struct Remembering {
    ledger: Ledger<SandboxRecord>,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Remembering {
    fn note(&self, what: &str) {
        let on_disk = self.ledger.load().unwrap().records;
        let state = on_disk
            .first()
            .map_or("nothing", |(_, record)| record.state.name());
        self.seen.lock().unwrap().push(format!("{what} ({state})"));
    }
}

/// An empty ledger, and hands that see it.
struct Scene {
    _folder: tempfile::TempDir,
    ledger: Ledger<SandboxRecord>,
    seen: Arc<Mutex<Vec<String>>>,
    hands: Remembering,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::<SandboxRecord>::open(folder.path()).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let hands = Remembering {
            ledger: ledger.clone(),
            seen: Arc::clone(&seen),
        };
        Self {
            _folder: folder,
            ledger,
            seen,
            hands,
        }
    }
}

impl Hands for Remembering {
    fn perform(&mut self, action: Action, _: &SandboxRecord, events: &mpsc::Sender<Event>) {
        self.note(&format!("{action:?}"));
        let outcome = match action {
            Action::Pull => Event::Image(Err(gone())),
            Action::TearDown => Event::TornDown {
                usage: Some(Usage::default()),
                output_lost: false,
            },
            _ => return,
        };
        events.try_send(outcome).unwrap();
    }

    fn publish(&mut self, record: &SandboxRecord) {
        self.note(&format!("publish {}", record.state.name()));
    }

    fn kill(&mut self, _: &SandboxRecord) {
        // What is on disk is not looked at: the reason to kill is that there is something wrong with it.
        self.seen.lock().unwrap().push("kill".to_owned());
    }

    async fn remove(&mut self, _: &SandboxRecord) {
        self.note("remove");
    }
}

#[tokio::test]
async fn what_is_performed_or_published_is_on_disk_before() {
    let Scene {
        _folder,
        ledger,
        seen,
        hands,
    } = Scene::new();
    let (driver, handle) = Driver::new(record(), ledger.clone(), |_| hands);
    let running = tokio::spawn(driver.run(CancellationToken::new()));
    // Delivered after the sandbox has ended by itself or before: both lead to the same removal.
    handle.tell(Event::Delete).await;
    assert!(running.await.unwrap(), "it tells that it was removed");
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.first().unwrap(), "publish Bound (Bound)");
    assert_eq!(seen.last().unwrap(), "remove (Ended)");
    for line in &seen {
        if let Some(published) = line.strip_prefix("publish ") {
            let (state, on_disk) = published.split_once(" (").unwrap();
            assert_eq!(
                format!("{state})"),
                on_disk,
                "published before it was written"
            );
        }
    }
    assert!(
        seen.iter().any(|line| line == "TearDown (Ending)"),
        "{seen:?}"
    );
    assert!(
        ledger.load().unwrap().records.is_empty(),
        "its record goes last"
    );
}

/// A sandbox that runs since long ago, by an earlier agent, and whose time to live is over.
fn overdue() -> SandboxRecord {
    let started = clock::now().before(Duration::from_mins(1));
    let spec = cloche_crds::Effective {
        ttl: Some(Duration::from_nanos(1)),
        ..record().spec
    };
    SandboxRecord {
        state: State::Running {
            instance: "i1".to_owned(),
            started,
            pause: None,
        },
        spec,
        ..record()
    }
}

/// The reason for which a sandbox ends that is overdue, where `found` is what its driver first hears of it.
async fn end_of_overdue(found: Event) -> cloche_crds::Reason {
    let Scene {
        _folder,
        ledger,
        seen,
        hands,
    } = Scene::new();
    let (driver, handle) = Driver::new(overdue(), ledger.clone(), |_| hands);
    let cancel = CancellationToken::new();
    let task = tokio::spawn(driver.run(cancel.clone()));
    let has = |line: &str| {
        seen.lock()
            .unwrap()
            .iter()
            .any(|seen| seen.starts_with(line))
    };
    while !has("RequestMain") {
        tokio::task::yield_now().await;
    }
    // Not decided by the clock before it is known how the command is. A deadline that counted would be over long since.
    handle.tell(Event::Image(Err(gone()))).await;
    while handle.events.capacity() < QUEUE {
        tokio::task::yield_now().await;
    }
    assert!(!has("publish Stopping"), "{:?}", seen.lock().unwrap());
    handle.tell(found).await;
    while !has("publish Stopping") && !has("publish Ending") {
        tokio::task::yield_now().await;
    }
    cancel.cancel();
    task.await.unwrap();
    let records = ledger.load().unwrap().records;
    match &records[0].1.state {
        State::Stopping { because, .. } => because.reason,
        state => state.termination().unwrap().cause.reason,
    }
}

fn gone() -> Cause {
    Cause::new(
        cloche_crds::Reason::ImageNotFound,
        cloche_crds::FailureDomain::User,
        "none",
    )
}

#[tokio::test]
async fn a_deadline_that_passed_while_no_agent_ran_waits_for_news_of_the_command() {
    use cloche_crds::Reason;
    let now = clock::now();
    let completed = Event::MainEnded {
        cause: Cause::new(
            Reason::Completed,
            cloche_crds::FailureDomain::Workload,
            "done",
        ),
        began: now,
        at: now,
    };
    assert_eq!(end_of_overdue(completed).await, Reason::Completed);
    let runs = Event::MainStarted { at: now };
    assert_eq!(end_of_overdue(runs).await, Reason::DeadlineExceeded);
    let silent = end_of_overdue(Event::Unreachable).await;
    assert_eq!(silent, Reason::DeadlineExceeded);
}

#[tokio::test]
async fn a_record_that_cannot_be_written_holds_up_no_end() {
    let Scene {
        _folder,
        ledger,
        seen,
        hands,
    } = Scene::new();
    // A file where its folder must be: no record can be written.
    let folder = ledger.folder(&record().uid);
    std::fs::write(&folder, b"in the way").unwrap();
    let (driver, handle) = Driver::new(record(), ledger.clone(), |_| hands);
    let task = tokio::spawn(driver.run(CancellationToken::new()));
    handle.tell(Event::Delete).await;
    while handle.events.capacity() < QUEUE {
        tokio::task::yield_now().await;
    }
    // Nothing is shown or done that is not on disk, but that what must end is killed.
    let seen_so_far = seen.lock().unwrap().clone();
    assert!(
        seen_so_far.iter().all(|line| line == "kill"),
        "{seen_so_far:?}"
    );
    std::fs::remove_file(&folder).unwrap();
    assert!(task.await.unwrap());
    let seen = seen.lock().unwrap().clone();
    assert!(
        !seen.iter().any(|line| line.starts_with("Pull")),
        "an end takes the place of what would have led forward: {seen:?}"
    );
    assert_eq!(seen.last().unwrap(), "remove (Ended)");
}

#[tokio::test]
async fn a_stopped_agent_leaves_the_record_and_performs_nothing_more() {
    let Scene {
        _folder,
        ledger,
        seen,
        hands,
    } = Scene::new();
    let running = SandboxRecord {
        state: State::Running {
            instance: "i1".to_owned(),
            started: crate::sandbox::fixture::now_at(1),
            pause: None,
        },
        ..record()
    };
    let spec = cloche_crds::Effective {
        ttl: None,
        ..running.spec.clone()
    };
    let running = SandboxRecord { spec, ..running };
    let (driver, _handle) = Driver::new(running.clone(), ledger.clone(), |_| hands);
    let cancel = CancellationToken::new();
    let task = tokio::spawn(driver.run(cancel.clone()));
    while !seen
        .lock()
        .unwrap()
        .iter()
        .any(|line| line.starts_with("RequestMain"))
    {
        tokio::task::yield_now().await;
    }
    cancel.cancel();
    assert!(
        !task.await.unwrap(),
        "a sandbox that goes on was not removed: told so, the supervisor would begin another"
    );
    assert_eq!(
        ledger.load().unwrap().records,
        [(running.uid.clone(), running)]
    );
}
