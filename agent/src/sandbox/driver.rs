//! The task that owns one sandbox: writes its record, publishes its status, has things done.
//!
//! Order, for every event: decide ([`step`]), write the record, publish, perform. So whatever is performed was on disk before,
//! and whatever is published is true on disk.
//!
//! **When the record cannot be written** (full disk) the step is not taken: the driver tries again, with the event still in
//! hand, until it can. Deadlines and deaths wait in the queue meanwhile. One thing is done before its record: a sandbox that is
//! to end is killed, since it may be its own writable layer that fills the disk, and it would never end otherwise. If the agent
//! dies before the record is written after all, the end is derived from what is found, as that of any sentry that is gone.

use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::record::{SandboxRecord, State};
use super::step::{Action, Event, deadline, step};
use crate::clock;
use crate::fault;
use crate::ledger::Ledger;

/// Events that may wait for the driver. Effects send at most a few each; a sender waits where it is full.
const QUEUE: usize = 64;
/// Pause between tries to write the record.
const RETRY: Duration = Duration::from_millis(500);

/// Does what the driver decides. Every method returns at once: the work goes on in tasks of its own and comes back as events.
pub trait Hands: Send + 'static {
    /// Begins `action` for the sandbox of `record`, which is on disk.
    fn perform(&mut self, action: Action, record: &SandboxRecord, events: &mpsc::Sender<Event>);
    /// Shows the world how the sandbox stands.
    fn publish(&mut self, record: &SandboxRecord);
    /// Kills the instance of the sandbox, so that the space of its writable layer is free.
    fn kill(&mut self, record: &SandboxRecord);
    /// Removes all that the sandbox left but its record; returns when it is gone.
    fn remove(&mut self, record: &SandboxRecord) -> impl Future<Output = ()> + Send;
}

/// Sends events to a driver.
#[derive(Clone, Debug)]
pub struct DriverHandle {
    events: mpsc::Sender<Event>,
}

impl DriverHandle {
    /// The handle of the driver that takes these events.
    pub fn new(events: mpsc::Sender<Event>) -> Self {
        Self { events }
    }

    /// Tells the driver; nothing happens if it has ended.
    pub async fn tell(&self, event: Event) {
        // The receiver is gone once the sandbox is: what is told then is of no consequence.
        drop(self.events.send(event).await);
    }
}

/// A driver that is about to run.
#[derive(Debug)]
pub struct Driver<H> {
    record: SandboxRecord,
    ledger: Ledger<SandboxRecord>,
    hands: H,
    events: mpsc::Receiver<Event>,
    sender: mpsc::Sender<Event>,
}

impl<H: Hands> Driver<H> {
    /// A driver for `record`, which is written when it runs; `hands` are made around the way to tell it of outcomes.
    pub fn new(
        record: SandboxRecord,
        ledger: Ledger<SandboxRecord>,
        hands: impl FnOnce(&mpsc::Sender<Event>) -> H,
    ) -> (Self, DriverHandle) {
        let (sender, events) = mpsc::channel(QUEUE);
        let hands = hands(&sender);
        let handle = DriverHandle::new(sender.clone());
        (
            Self {
                record,
                ledger,
                hands,
                events,
                sender,
            },
            handle,
        )
    }

    /// Runs until the sandbox is removed (`true`), or `cancel` (`false`): then the sandbox goes on without an agent.
    pub async fn run(mut self, cancel: CancellationToken) -> bool {
        fault::point("sandbox.before-record");
        if !self.write(&self.record.clone(), &cancel).await {
            return false;
        }
        fault::point("sandbox.recorded");
        self.hands.publish(&self.record);
        let mut event = Event::Begin;
        loop {
            let (next, actions) = step(&self.record, event, clock::now());
            if next != self.record {
                if !self.write(&next, &cancel).await {
                    return false;
                }
                self.record = next;
                fault::point(self.record.state.name());
            }
            self.hands.publish(&self.record);
            for action in actions {
                if action == Action::Remove {
                    return self.remove(&cancel).await;
                }
                self.hands.perform(action, &self.record, &self.sender);
            }
            let at = deadline(&self.record);
            event = tokio::select! {
                // In this order: what is told while the agent stops may be a consequence of that.
                biased;
                // Cancel safe: nothing is held but the record, which is on disk.
                () = cancel.cancelled() => return false,
                // Cancel safe by tokio's word.
                Some(event) = self.events.recv() => event,
                // Cancel safe: a timer.
                () = clock::sleep_until(at) => Event::Tick,
            };
        }
    }

    async fn remove(&mut self, cancel: &CancellationToken) -> bool {
        self.hands.remove(&self.record).await;
        fault::point("sandbox.remove.files");
        while let Err(error) = self.ledger.remove(&self.record.uid).await {
            tracing::error!(
                sandbox = self.record.name,
                error = &error as &dyn std::error::Error,
                "cannot remove a record"
            );
            if pause(cancel).await.is_none() {
                return false;
            }
        }
        fault::point("sandbox.removed");
        true
    }

    async fn write(&mut self, record: &SandboxRecord, cancel: &CancellationToken) -> bool {
        while let Err(error) = self.ledger.write(&record.uid, record).await {
            tracing::error!(
                sandbox = record.name,
                error = &error as &dyn std::error::Error,
                "cannot write a record"
            );
            if error.is_full()
                && matches!(record.state, State::Stopping { .. } | State::Ending { .. })
            {
                self.hands.kill(record);
            }
            if pause(cancel).await.is_none() {
                return false;
            }
        }
        true
    }
}

async fn pause(cancel: &CancellationToken) -> Option<()> {
    tokio::select! {
        () = cancel.cancelled() => None,
        () = tokio::time::sleep(RETRY) => Some(()),
    }
}

#[cfg(test)]
mod tests;
