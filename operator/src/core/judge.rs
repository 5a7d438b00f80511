//! Judging nodes as time passes.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Core, Kind};
use crate::index::node::NodeName;
use crate::job::Subject;
use crate::loss;

/// For how long something may not be watched without all ages beginning anew: little beside the time after which an agent is silent.
const BLINK: Duration = Duration::from_secs(5);

/// What cannot be observed at present, and since when. `None` stands for the apiserver as the holder of the lease sees it.
#[derive(Debug, Default)]
pub(super) struct Sight(BTreeMap<Option<Kind>, Duration>);

impl Core {
    /// Whether the apiserver answers, as the holder of the lease sees it.
    pub fn see_apiserver(&mut self, answers: bool, now: Duration) {
        self.see(None, answers, now);
    }

    pub(super) fn see(&mut self, what: Option<Kind>, sees: bool, now: Duration) {
        if !sees {
            self.sight.0.entry(what).or_insert(now);
            return;
        }
        let Some(since) = self.sight.0.remove(&what) else {
            return;
        };
        if now.saturating_sub(since) >= BLINK {
            self.begin_ages_anew(now);
        }
    }

    /// Nobody could be heard, so that nobody was silent.
    fn begin_ages_anew(&mut self, now: Duration) {
        for name in self.names() {
            self.index.change_node(&name, |node| {
                if let Some(heard) = &mut node.heard {
                    heard.at = now;
                }
            });
        }
        self.begin_not_ready_anew(now);
    }

    /// Whatever kept Nodes from being Ready may be over before their kubelets have said so.
    fn begin_not_ready_anew(&mut self, now: Duration) {
        for name in self.names() {
            self.index.change_node(&name, |node| {
                if let Some(since) = &mut node.not_ready_since {
                    *since = now;
                }
            });
        }
    }

    fn names(&self) -> Vec<NodeName> {
        let names = self.index.nodes().map(|(name, _)| NodeName::clone(name));
        names.collect()
    }

    /// Judges every node. Nothing is judged blindly.
    pub(super) fn judge_all(&mut self, now: Duration) {
        if !self.sight.0.is_empty() {
            return;
        }
        let counted = self.index.nodes().filter(|(_, node)| loss::counts(node));
        let (nodes, silent) = counted.fold((0, 0), |(nodes, silent), (_, node)| {
            (
                nodes + 1,
                silent + usize::from(loss::judge(node, now).silent),
            )
        });
        let brake = loss::is_brake(nodes, silent);
        let braked = std::mem::replace(&mut self.brake, brake);
        if brake != braked {
            if brake {
                tracing::warn!(
                    silent,
                    nodes,
                    "so many agents are silent that no node is declared lost"
                );
            } else {
                tracing::info!(silent, nodes, "nodes are declared lost again");
                // Agents may be heard before kubelets are: what was not Ready meanwhile is given its whole time once more.
                self.begin_not_ready_anew(now);
            }
        }
        for name in self.names() {
            self.judge(&name, now);
            if braked && !brake {
                self.look_at_all_on(&name);
            }
        }
    }

    /// Judges one node.
    pub(super) fn judge(&mut self, name: &str, now: Duration) {
        if !self.sight.0.is_empty() || !self.is_synced() {
            return;
        }
        let Some(node) = self.index.node(name) else {
            return;
        };
        let (before, judged) = (node.judged, loss::judge(node, now));
        if before == judged {
            return;
        }
        if judged.silent != before.silent {
            if judged.silent {
                tracing::warn!(node = name, "its agent is not heard");
            } else {
                tracing::info!(node = name, "its agent is heard again");
            }
        }
        self.index.change_node(name, |node| {
            node.judged = judged;
            node.silences += u32::from(judged.silent && !before.silent);
        });
        self.room.insert(name.into());
        self.epoch += 1;
        self.look_at_all_on(name);
    }

    /// A node came, went or changed.
    pub(super) fn node_changed(&mut self, name: &str, now: Duration) {
        self.room.insert(name.into());
        self.epoch += 1;
        self.judge(name, now);
        self.mark(Subject::Node(name.into()));
        // Of a Node that is gone or made anew each sandbox has to be looked at, also where the judgement is the same.
        let is_still =
            |uid: Option<&str>| self.index.node(name).is_some_and(|node| node.is_still(uid));
        let another = self.index.node(name).is_some_and(|node| {
            node.sandboxes.iter().any(|key| {
                let bound = self.index.sandbox(key).and_then(|seen| seen.bound.as_ref());
                bound.is_some_and(|bound| !is_still(bound.uid.as_deref()))
            })
        });
        if another {
            self.look_at_all_on(name);
        }
    }

    fn look_at_all_on(&mut self, name: &str) {
        self.mark(Subject::Node(name.into()));
        let sandboxes: Vec<_> = self
            .index
            .node(name)
            .into_iter()
            .flat_map(|node| node.sandboxes.iter().cloned())
            .collect();
        for key in sandboxes {
            self.mark(Subject::Sandbox(key));
        }
    }
}
