//! Between the decider and the world: hands events in, does jobs, keeps time.

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::clock;
use crate::core::{Core, Event};
use crate::job::{Outcome, Subject};
use crate::lease::Standing;
use crate::work::Hands;

/// Most events that wait to be taken in; then the watches wait.
pub const MOST_EVENTS: usize = 1024;
/// Most events that are taken in before jobs are looked for.
const BATCH: usize = 128;

/// A job could not be done at all: it was stopped half-way, which nobody here does.
#[derive(Debug, thiserror::Error)]
#[error("a job was cut off")]
pub struct CutOff(#[from] tokio::task::JoinError);

/// Runs until the watches end. Jobs are done only while this replica leads.
pub async fn run(
    hands: Hands,
    mut events: mpsc::Receiver<Event>,
    mut standing: watch::Receiver<Standing>,
    synced: watch::Sender<bool>,
) -> Result<(), CutOff> {
    let mut core = Core::default();
    let mut jobs: JoinSet<(Subject, Outcome)> = JoinSet::new();
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        let now = clock::now();
        let Standing { leads, answers } = *standing.borrow_and_update();
        core.see_apiserver(answers, now.run);
        if leads {
            core.activate();
        }
        synced.send_if_modified(|synced| !std::mem::replace(synced, core.is_synced()) && *synced);
        while let Some(job) = core.next_job(now) {
            let hands = hands.clone();
            jobs.spawn(async move {
                let outcome = hands.perform(&job, now).await;
                (job.subject, outcome)
            });
        }
        // Cancel safe: each arm only takes what is whole.
        tokio::select! {
            taken = events.recv_many(&mut batch, BATCH) => {
                if taken == 0 {
                    return Ok(());
                }
                let now = clock::now();
                for event in batch.drain(..) {
                    core.observe(event, now);
                }
            }
            Some(done) = jobs.join_next() => {
                let (subject, outcome) = done?;
                core.done(&subject, outcome, clock::now());
            }
            Ok(()) = standing.changed() => {}
            () = clock::sleep_until(core.next_tick(now)) => core.tick(clock::now()),
        }
    }
}
