use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

use super::super::Link;
use super::*;

/// A workshop whose instances are numbers; it remembers which live.
#[derive(Debug)]
struct Fake {
    next: AtomicUsize,
    /// Living instances: whether started.
    alive: watch::Sender<BTreeMap<String, bool>>,
    /// Makes wait while this is false.
    open: watch::Sender<bool>,
    fail: std::sync::atomic::AtomicBool,
}

#[derive(Debug, thiserror::Error)]
#[error("the workshop is on strike")]
struct Strike;

impl Fake {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            next: AtomicUsize::new(0),
            alive: watch::Sender::new(BTreeMap::new()),
            open: watch::Sender::new(true),
            fail: false.into(),
        })
    }

    fn kill(&self, id: &str) {
        self.alive
            .send_modify(|alive| alive.retain(|other, _| other != id));
    }

    /// Waits until so many live, and so many of them are started.
    async fn settled(&self, total: usize, started: usize) {
        let mut alive = self.alive.subscribe();
        let level = alive.wait_for(|alive| {
            alive.len() == total && alive.values().filter(|started| **started).count() == started
        });
        tokio::time::timeout(Duration::from_secs(10), level)
            .await
            .expect("the pool settles")
            .unwrap();
    }
}

impl Workshop for Fake {
    type Instance = String;
    type Error = Strike;

    async fn make(&self, _: &Shape, _: Option<SavedFiles>) -> Result<String, Strike> {
        let mut open = self.open.subscribe();
        open.wait_for(|open| *open).await.unwrap();
        if self.fail.load(Ordering::SeqCst) {
            return Err(Strike);
        }
        let id = format!("i{}", self.next.fetch_add(1, Ordering::SeqCst));
        self.alive
            .send_modify(|alive| alive.extend([(id.clone(), false)]));
        Ok(id)
    }

    async fn start(&self, instance: &String) -> Result<(), Strike> {
        self.alive
            .send_modify(|alive| alive.extend([(instance.clone(), true)]));
        Ok(())
    }

    async fn destroy(&self, instance: String) {
        self.kill(&instance);
    }

    fn died(&self, instance: &String) -> impl Future<Output = ()> + Send + 'static {
        let (mut alive, id) = (self.alive.subscribe(), instance.clone());
        async move {
            alive
                .wait_for(|alive| !alive.contains_key(&id))
                .await
                .unwrap();
        }
    }

    fn id<'a>(&self, instance: &'a String) -> &'a str {
        instance
    }
}

fn shape() -> Shape {
    Shape {
        cpu_millis: 1000,
        memory: 1 << 29,
        link: Link::Loopback,
    }
}

fn pool(
    fake: &Arc<Fake>,
    created: usize,
    started: usize,
) -> (Pool<Fake>, CancellationToken, tokio::task::JoinHandle<()>) {
    let pool = Pool::new(
        Arc::clone(fake),
        vec![Target {
            shape: shape(),
            created,
            started,
        }],
    );
    let cancel = CancellationToken::new();
    let running = tokio::spawn(pool.clone().run(cancel.clone()));
    (pool, cancel, running)
}

#[tokio::test]
async fn it_fills_refills_after_claims_and_deaths_and_leaves_nothing() {
    let fake = Fake::new();
    let (pool, cancel, running) = pool(&fake, 1, 2);
    fake.settled(3, 2).await;
    let claimed = pool.claim(&shape()).await.unwrap();
    fake.settled(4, 3).await; // the claimed one, and three in the pool again
    fake.kill(&claimed);
    fake.settled(3, 2).await; // a claimed one's death is not the pool's business
    let pooled = fake.alive.borrow().keys().next().unwrap().clone();
    fake.kill(&pooled);
    fake.settled(3, 2).await;
    cancel.cancel();
    running.await.unwrap();
    fake.settled(0, 0).await;
}

#[tokio::test]
async fn a_shape_that_is_not_pooled_is_made_on_demand() {
    let fake = Fake::new();
    let (pool, _cancel, _running) = pool(&fake, 0, 0);
    let other = Shape {
        cpu_millis: 4000,
        ..shape()
    };
    let claims = futures::future::join_all((0..20).map(|_| pool.claim(&other))).await;
    assert_eq!(claims.len(), 20);
    fake.settled(20, 20).await;
}

#[tokio::test]
async fn what_comes_too_late_for_its_caller_is_destroyed() {
    let fake = Fake::new();
    let (pool, cancel, running) = pool(&fake, 0, 0);
    fake.open.send_replace(false);
    let waiting = tokio::spawn({
        let pool = pool.clone();
        async move { pool.claim(&shape()).await }
    });
    let mut receivers = fake.open.subscribe();
    while fake.open.receiver_count() < 2 {
        tokio::task::yield_now().await;
    }
    waiting.abort();
    assert!(waiting.await.is_err());
    receivers.mark_unchanged();
    fake.open.send_replace(true);
    fake.settled(0, 0).await;
    cancel.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn a_failure_reaches_the_claim_that_asked() {
    let fake = Fake::new();
    fake.fail.store(true, Ordering::SeqCst);
    let (pool, _cancel, _running) = pool(&fake, 0, 1);
    assert!(pool.claim(&shape()).await.is_err());
}

#[test]
fn further_claims_do_not_prolong_a_rest() {
    let mut shelves = Shelves::<()> {
        by_shape: HashMap::new(),
        waiting: 0,
        rest_until: Duration::ZERO,
        closed: false,
    };
    let begin = Duration::from_secs(7);
    for (claimed, until) in [
        (begin, begin + REST),
        (begin + REST / 2, begin + REST),
        (begin + REST, begin + REST * 2),
    ] {
        shelves.rest(claimed);
        assert_eq!(shelves.rest_until, until);
    }
}

#[tokio::test]
async fn what_was_claimed_has_the_processor_before_a_refill() {
    let fake = Fake::new();
    let (pool, cancel, running) = pool(&fake, 0, 2);
    fake.settled(2, 2).await;
    let claimed_at = boot_time();
    let claimed = pool.claim(&shape()).await.unwrap();
    fake.settled(3, 3).await;
    let rested = boot_time().saturating_sub(claimed_at);
    assert!(rested >= REST, "{rested:?}");
    fake.kill(&claimed);
    cancel.cancel();
    running.await.unwrap();
    fake.settled(0, 0).await;
}
