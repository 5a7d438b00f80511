//! Control groups of a test: a parent of its own in every hierarchy, removed when it goes.

use std::ops::Deref;
use std::sync::Arc;

use cloche_agent::cgroup::{Budget, Cgroups, Groups};

/// Groups below a parent that only this test uses.
pub(crate) struct TestGroups {
    groups: Arc<Groups>,
    /// The parent as runsc's `cgroupsPath` names it.
    pub(crate) path: String,
}

impl TestGroups {
    pub(crate) fn new(unique: &str) -> Self {
        let parent = format!("cloche-test-{unique}");
        let groups =
            Arc::new(Groups::open(&parent).expect("this test needs root and control groups"));
        let budget = Budget {
            memory: 8 << 30,
            pids: Some(5_000),
            cpu_request_millis: None,
        };
        groups
            .set_budget(&budget)
            .expect("the parent can be limited");
        Self {
            groups,
            path: format!("/{parent}"),
        }
    }

    pub(crate) fn shared(&self) -> Arc<dyn Cgroups> {
        Arc::clone(&self.groups) as Arc<dyn Cgroups>
    }
}

impl Deref for TestGroups {
    type Target = Groups;

    fn deref(&self) -> &Groups {
        &self.groups
    }
}

impl Drop for TestGroups {
    fn drop(&mut self) {
        for name in self.list().unwrap_or_default() {
            // After a failed test: what was killed needs a moment, and a zombie one more to be reaped.
            for _ in 0..500 {
                self.kill(&name).ok();
                if self.remove(&name).is_ok() {
                    break;
                }
                std::thread::park_timeout(std::time::Duration::from_millis(10));
            }
        }
        self.remove_parent().ok();
    }
}
