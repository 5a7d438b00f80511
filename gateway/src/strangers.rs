//! Connections whose client is not known yet: anybody can open them, so there are few, and each has little time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Most of them. One more ends the oldest: who knows what to say has said it long before.
const MOST: usize = 256;
/// How long one may take for its handshake, its first request and the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// All of them. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strangers(Arc<Mutex<Present>>);

#[derive(Debug, Default)]
struct Present {
    next: u64,
    /// What ends each, the oldest first.
    ends: BTreeMap<u64, CancellationToken>,
}

/// One of them, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Stranger {
    number: u64,
    end: CancellationToken,
    all: Strangers,
}

/// What becomes of a connection's client: known once it has asked as the front proxy.
#[derive(Clone, Debug)]
pub(crate) struct Acquaintance {
    room: Arc<Semaphore>,
    place: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
    made: CancellationToken,
}

impl Strangers {
    /// One more.
    pub(crate) fn enter(&self) -> Stranger {
        let end = CancellationToken::new();
        let mut present = self.present();
        let number = present.next;
        present.next += 1;
        present.ends.insert(number, end.clone());
        if present.ends.len() > MOST
            && let Some((_, oldest)) = present.ends.pop_first()
        {
            oldest.cancel();
        }
        drop(present);
        Stranger {
            number,
            end,
            all: self.clone(),
        }
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stranger {
    /// Waits until its time is over, or its place is another's; for ever once its client is known.
    pub(crate) async fn over(self, acquaintance: &Acquaintance) {
        tokio::select! {
            () = tokio::time::sleep(PATIENCE) => {}
            () = self.end.cancelled() => {}
            () = acquaintance.made.cancelled() => {
                drop(self);
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.all.present().ends.remove(&self.number);
    }
}

impl Acquaintance {
    /// Not made yet; there is `room` for so many.
    pub(crate) fn new(room: &Arc<Semaphore>) -> Self {
        Self {
            room: Arc::clone(room),
            place: Arc::default(),
            made: CancellationToken::new(),
        }
    }

    /// Its client is known now; false where there is no room for one more.
    pub(crate) fn make(&self) -> bool {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_none() {
            *place = Arc::clone(&self.room).try_acquire_owned().ok();
        }
        if place.is_some() {
            self.made.cancel();
        }
        place.is_some()
    }

    /// Whether its client is known.
    pub(crate) fn is_made(&self) -> bool {
        self.made.is_cancelled()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn the_oldest_makes_room() {
        let strangers = Strangers::default();
        let mut present: Vec<_> = (0..MOST).map(|_| strangers.enter()).collect();
        // Who has left is not counted.
        drop(present.remove(1));
        present.push(strangers.enter());
        assert!(present.iter().all(|one| !one.end.is_cancelled()));
        let newest = strangers.enter();
        let ended: Vec<_> = present.iter().map(|one| one.end.is_cancelled()).collect();
        assert!(ended[0] && !ended[1..].contains(&true) && !newest.end.is_cancelled());
        drop((present, newest));
        assert!(strangers.present().ends.is_empty());
    }

    #[tokio::test]
    async fn who_is_known_stays() {
        let (strangers, room) = (Strangers::default(), Arc::new(Semaphore::new(1)));
        let unknown = Acquaintance::new(&room);
        let stranger = strangers.enter();
        stranger.end.cancel();
        stranger.over(&unknown).await;
        let known = Acquaintance::new(&room);
        assert!(known.make() && known.make() && known.is_made());
        assert!(!unknown.make() && !unknown.is_made(), "there is no room");
        let mut over = Box::pin(strangers.enter().over(&known));
        assert!((&mut over).now_or_never().is_none());
        assert!(strangers.present().ends.is_empty(), "it is none any more");
        drop(over);
        drop(known);
        assert!(unknown.make());
    }
}
