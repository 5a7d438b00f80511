//! Which sandboxes have been told of to the end.
//!
//! In a cluster a record that knows how its sandbox ended must not go before the object knows it too: the agent might be killed in
//! between, and the end would be forgotten. Standalone has nobody to wait for: what is deleted there has no place for its end.

use std::collections::BTreeSet;

use tokio::sync::watch;

/// Says of which sandboxes there is nothing more to tell.
#[derive(Debug, Default)]
pub struct Settle(watch::Sender<BTreeSet<String>>);

/// Hears of it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Settled(watch::Receiver<BTreeSet<String>>);

impl Settle {
    /// The other end.
    pub fn settled(&self) -> Settled {
        Settled(self.0.subscribe())
    }

    /// Of `uid` there is nothing more to tell, or there is again.
    pub fn set(&self, uid: &str, settled: bool) {
        self.0.send_if_modified(|all| {
            if settled {
                all.insert(uid.to_owned())
            } else {
                all.remove(uid)
            }
        });
    }
}

impl Settled {
    /// Returns once there is nothing more to tell of `uid`; never, where whoever says so has ended.
    pub async fn wait(mut self, uid: &str) {
        if self.0.wait_for(|all| all.contains(uid)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn it_waits_for_the_one_that_it_asks_for() {
        let settle = Settle::default();
        let waiting = tokio::spawn(settle.settled().wait("b"));
        settle.set("a", true);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        settle.set("b", true);
        tokio::time::timeout(Duration::from_secs(20), waiting)
            .await
            .unwrap()
            .unwrap();
    }
}
