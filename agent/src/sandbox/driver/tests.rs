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

impl Hands for Remembering {
    fn perform(&mut self, action: Action, _: &SandboxRecord, events: &mpsc::Sender<Event>) {
        self.note(&format!("{action:?}"));
        let outcome = match action {
            Action::Pull => {
                let cause = Cause::new(
                    cloche_crds::Reason::ImageNotFound,
                    cloche_crds::FailureDomain::User,
                    "none",
                );
                Event::Image(Err(cause))
            }
            Action::TearDown => Event::TornDown(Usage::default()),
            _ => return,
        };
        events.try_send(outcome).unwrap();
    }

    fn publish(&mut self, record: &SandboxRecord) {
        self.note(&format!("publish {}", record.state.name()));
    }

    fn kill(&mut self, _: &SandboxRecord) {
        self.note("kill");
    }

    async fn remove(&mut self, _: &SandboxRecord) {
        self.note("remove");
    }
}

#[tokio::test]
async fn what_is_performed_or_published_is_on_disk_before() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::<SandboxRecord>::open(dir.path()).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hands = Remembering {
        ledger: ledger.clone(),
        seen: Arc::clone(&seen),
    };
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

#[tokio::test]
async fn a_stopped_agent_leaves_the_record_and_performs_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::<SandboxRecord>::open(dir.path()).unwrap();
    let running = SandboxRecord {
        state: State::Running {
            instance: "i1".to_owned(),
            started: crate::sandbox::fixture::now_at(1),
        },
        ..record()
    };
    let spec = cloche_crds::Effective {
        ttl: None,
        ..running.spec.clone()
    };
    let running = SandboxRecord { spec, ..running };
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hands = Remembering {
        ledger: ledger.clone(),
        seen: Arc::clone(&seen),
    };
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
