//! The task that owns one sandbox: writes its record, publishes its status, has things done.
//!
//! Order, for every event: decide ([`step`]), write the record, publish, perform. So whatever is performed was on disk before,
//! and whatever is published is true on disk.
//!
//! **When the record cannot be written** (a full or failing disk) nothing is published or performed; the driver tries again, and goes on
//! deciding meanwhile, so that a deletion or a deadline is not held up by what could not be written before it. One thing is done
//! before its record: a sandbox that is to end is killed, since it may be its own writable layer that fills the disk, and it would
//! never end otherwise. If the agent dies before the record is written after all, the end is derived from what is found, as that
//! of any sentry that is gone.
//!
//! **After a restart of the agent** a deadline may have passed while nobody looked, and the command may have ended before it.
//! So deadlines do not count before the command was heard of again, its init was found not to answer, or [`SEEKING`] is over.

use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::record::{SandboxRecord, Stage, State};
use super::step::{Action, Event, deadline, step};
use crate::clock;
use crate::fault;
use crate::ledger::Ledger;

/// Events that may wait for the driver. Effects send at most a few each; a sender waits where it is full.
const QUEUE: usize = 64;
/// Pause between tries to write the record.
const RETRY: Duration = Duration::from_millis(500);

/// How long deadlines wait for news of a command that an earlier agent had started.
const SEEKING: Duration = Duration::from_secs(30);

/// Does what the driver decides. Every method returns at once: the work goes on in tasks of its own and comes back as events.
pub trait Hands: Send + 'static {
    /// Begins `action` for the sandbox of `record`, which is on disk.
    fn perform(&mut self, action: Action, record: &SandboxRecord, events: &mpsc::Sender<Event>);
    /// Shows the world how the sandbox stands.
    fn publish(&mut self, record: &SandboxRecord);
    /// Kills the instance of the sandbox, whose end cannot be written down. May be called again and again.
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

    /// Tells the driver, if its queue has room; whether it had.
    pub fn try_tell(&self, event: Event) -> bool {
        !matches!(
            self.events.try_send(event),
            Err(mpsc::error::TrySendError::Full(_))
        )
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
        let mut written = self.write().await;
        if written {
            fault::point("sandbox.recorded");
        }
        let mut sought_until =
            is_sought(&self.record.state).then(|| clock::boot_time().saturating_add(SEEKING));
        let mut undone: Vec<Action> = Vec::new();
        let mut event = Some(Event::Begin);
        loop {
            if let Some(event) = event.take() {
                sought_until = sought_until.filter(|_| !event.tells_of_main());
                let (next, actions) = step(&self.record, event, clock::now());
                written &= next == self.record;
                self.record = next;
                add(&mut undone, actions);
            }
            if !written {
                written = self.write().await;
                if written {
                    fault::point(self.record.state.name());
                }
            }
            if written {
                self.hands.publish(&self.record);
                for action in undone.drain(..) {
                    if action == Action::Remove {
                        return self.remove(&cancel).await;
                    }
                    self.hands.perform(action, &self.record, &self.sender);
                }
            }
            let at = deadline(&self.record)
                .map(|at| sought_until.map_or(at, |sought_until| at.max(sought_until)));
            tokio::select! {
                // In this order: what is told while the agent stops may be a consequence of that.
                biased;
                // Cancel safe: nothing is held but the record. If it is not on disk, nobody was told of it.
                () = cancel.cancelled() => return false,
                // Cancel safe by tokio's word.
                Some(told) = self.events.recv() => event = Some(told),
                // Both are cancel safe: timers.
                () = clock::sleep_until(at) => event = Some(Event::Tick),
                () = tokio::time::sleep(RETRY), if !written => {}
            }
        }
    }

    async fn remove(&mut self, cancel: &CancellationToken) -> bool {
        tokio::select! {
            biased;
            // Safe to break off anywhere, as `kill -9` is: the record is still there, and the next agent begins again.
            () = cancel.cancelled() => return false,
            () = self.hands.remove(&self.record) => {}
        }
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

    /// Writes the record; whether that could be done.
    async fn write(&mut self) -> bool {
        let Err(error) = self.ledger.write(&self.record.uid, &self.record).await else {
            return true;
        };
        tracing::error!(
            sandbox = self.record.name,
            error = &error as &dyn std::error::Error,
            "cannot write a record"
        );
        let ends = matches!(
            self.record.state,
            State::Stopping { .. } | State::Ending { .. }
        );
        if ends {
            self.hands.kill(&self.record);
        }
        false
    }
}

/// Whether a record of this state, found at the agent's start, is of a command of which is not known how it is.
fn is_sought(state: &State) -> bool {
    match state {
        // Nothing is heard of one that stands still.
        State::Running {
            pause: Some(pause), ..
        } => pause.stage != Stage::Paused,
        State::MainRequested { .. }
        | State::Running { .. }
        | State::Halting { .. }
        | State::Stopping { .. } => true,
        State::Bound
        | State::Claimed { .. }
        | State::Keeping { .. }
        | State::Discarding { .. }
        | State::Stopped { .. }
        | State::Ending { .. }
        | State::Ended { .. } => false,
    }
}

/// Adds to what is not done yet. An end takes the place of whatever would have led forward.
fn add(undone: &mut Vec<Action>, actions: Vec<Action>) {
    let ends = |action: &Action| matches!(action, Action::TearDown | Action::Remove);
    if actions.iter().any(ends) {
        undone.retain(|action| ends(action) || matches!(action, Action::Destroy(_)));
    }
    undone.extend(actions);
}

async fn pause(cancel: &CancellationToken) -> Option<()> {
    tokio::select! {
        () = cancel.cancelled() => None,
        () = tokio::time::sleep(RETRY) => Some(()),
    }
}

#[cfg(test)]
mod tests;
