//! What each status file should hold: the board's objects and what is wrong with manifests, joined by manifest file.
//!
//! One change of a sandbox rewrites one file; a change of the manifests is looked at as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cloche_crds::{ConditionReason, Sandbox};
use jiff::Timestamp;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::board::{Board, Change};
use crate::clock;
use crate::source::{Desired, InvalidManifest, SandboxKey};
use crate::status::{Publisher, render, render_invalid, set_invalid};

/// Per object, what of its newest manifest was not taken over.
pub type Refusals = BTreeMap<SandboxKey, String>;

/// Joins and publishes.
#[derive(Debug)]
pub struct Mirror {
    board: Board,
    desired: watch::Receiver<Desired>,
    refused: watch::Receiver<Refusals>,
    publisher: Arc<Publisher>,
    /// Manifests whose status file holds something.
    shown: BTreeSet<String>,
    refused_since: BTreeMap<SandboxKey, Timestamp>,
}

impl Mirror {
    /// A mirror that has shown nothing yet.
    pub fn new(
        board: Board,
        desired: watch::Receiver<Desired>,
        refused: watch::Receiver<Refusals>,
        publisher: Arc<Publisher>,
    ) -> Self {
        Self {
            board,
            desired,
            refused,
            publisher,
            shown: BTreeSet::new(),
            refused_since: BTreeMap::new(),
        }
    }

    /// Follows until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let (_, mut news) = self.board.watch();
        self.show_all();
        loop {
            tokio::select! {
                // All are cancel safe.
                () = stop.cancelled() => return,
                changed = self.desired.changed() => if changed.is_err() { return } else { self.show_all() },
                changed = self.refused.changed() => if changed.is_err() { return } else { self.show_all() },
                change = news.recv() => match change {
                    Ok(Change::Posted(key, object)) => self.show(&key, &object),
                    // Its manifest is gone too, or another object will be posted for it.
                    Ok(Change::Removed(..)) => {}
                    Err(RecvError::Lagged(_)) => self.show_all(),
                    Err(RecvError::Closed) => return,
                },
            }
        }
    }

    fn show_all(&mut self) {
        let desired = self.desired.borrow_and_update().clone();
        let refused = self.refused.borrow_and_update().clone();
        let now = clock::now().wall;
        self.refused_since
            .retain(|key, _| refused.contains_key(key));
        for key in refused.keys() {
            self.refused_since.entry(key.clone()).or_insert(now);
        }
        let mut wanted = BTreeSet::new();
        for (key, sandbox) in &desired.sandboxes {
            wanted.insert(sandbox.file.clone());
            if let Some(posting) = self.board.get(key) {
                self.show(key, &posting.object);
            }
        }
        for invalid in desired
            .invalid
            .iter()
            .filter(|invalid| invalid.keeps.is_none())
        {
            wanted.insert(invalid.file.clone());
            match render_invalid(invalid) {
                Ok(content) => self.publisher.publish(&invalid.file, Some(content)),
                Err(error) => {
                    tracing::error!(manifest = invalid.file, %error, "cannot render a status");
                }
            }
        }
        for gone in self.shown.difference(&wanted) {
            self.publisher.publish(gone, None);
        }
        self.shown = wanted;
    }

    fn show(&mut self, key: &SandboxKey, object: &Sandbox) {
        let desired = self.desired.borrow();
        // Without a manifest there is no place to show it.
        let Some(sandbox) = desired.sandboxes.get(key) else {
            return;
        };
        let mut object = object.clone();
        if let Some(status) = &mut object.status {
            let wrong = desired
                .invalid
                .iter()
                .find(|invalid| invalid.keeps.as_ref() == Some(key))
                .cloned();
            if let Some(wrong) = wrong.or_else(|| self.refusal(key, &sandbox.file)) {
                set_invalid(status, &wrong);
            }
        }
        match render(&object) {
            Ok(content) => {
                self.publisher.publish(&sandbox.file, Some(content));
                self.shown.insert(sandbox.file.clone());
            }
            Err(error) => tracing::error!(sandbox = %key, %error, "cannot render a status"),
        }
    }

    fn refusal(&self, key: &SandboxKey, file: &str) -> Option<InvalidManifest> {
        Some(InvalidManifest {
            file: file.to_owned(),
            keeps: Some(key.clone()),
            reason: ConditionReason::Immutable,
            message: self.refused.borrow().get(key)?.clone(),
            since: *self.refused_since.get(key)?,
        })
    }
}
