//! Instances made ahead of need.
//!
//! The pool owns what no sandbox has claimed. A claim takes a started one, else a created one, else has one made. Whatever is
//! made for a claim that nobody waits for any more is destroyed: an instance is never without owner.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Shape;
use super::plan::{Held, Refill, Target, refill};
use crate::clock::{boot_time, sleep_until};
use crate::runsc::SavedFiles;

/// Instances that are made at the same time: with more the kernel's locks cost more than the second processor gains.
pub const MAKERS: usize = 4;
/// So long after a claim no refill begins: the sandbox that claimed is being started, and each step of a refill takes as much of
/// the processor as that does (seen: some 20 ms became 75). Further claims do not prolong it, so that they cannot keep the pool empty.
const REST: Duration = Duration::from_millis(100);
/// Pause after a refill that failed; a claim tries again at once.
const BACKOFF: Duration = Duration::from_secs(5);

/// What the pool needs done.
pub trait Workshop: Send + Sync + 'static {
    /// An instance, held. Dropping it does nothing to it.
    type Instance: Send + 'static;
    /// Why one could not be made or started.
    type Error: std::error::Error + Send + 'static;

    /// Makes an instance of this shape; `saved`: what its sandbox's writable layer begins as, if not empty.
    fn make(
        &self,
        shape: &Shape,
        saved: Option<SavedFiles>,
    ) -> impl Future<Output = Result<Self::Instance, Self::Error>> + Send;
    /// Starts one that was made.
    fn start(
        &self,
        instance: &Self::Instance,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
    /// Kills and removes one; returns when nothing is left of it.
    fn destroy(&self, instance: Self::Instance) -> impl Future<Output = ()> + Send;
    /// Returns when the instance has died.
    fn died(&self, instance: &Self::Instance) -> impl Future<Output = ()> + Send + 'static;
    /// Its id.
    fn id<'a>(&self, instance: &'a Self::Instance) -> &'a str;
}

/// The pool. Clones share it.
pub struct Pool<W: Workshop>(Arc<Inner<W>>);

impl<W: Workshop> Clone for Pool<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Inner<W: Workshop> {
    workshop: Arc<W>,
    targets: Vec<Target>,
    shelves: Mutex<Shelves<W::Instance>>,
    changed: Notify,
    makers: Semaphore,
    /// Makes for claims, which go on when their claim is dropped.
    finishing: TaskTracker,
}

struct Shelves<I> {
    by_shape: HashMap<Shape, Shelf<I>>,
    waiting: usize,
    /// In boot time: no refill begins before.
    rest_until: Duration,
    closed: bool,
}

impl<I> Shelves<I> {
    /// A sandbox has got its instance and starts now.
    fn rest(&mut self, now: Duration) {
        if self.rest_until <= now {
            self.rest_until = now + REST;
        }
    }
}

struct Shelf<I> {
    created: Vec<I>,
    started: Vec<I>,
    making: usize,
    starting: usize,
}

impl<I> Default for Shelf<I> {
    fn default() -> Self {
        Self {
            created: Vec::new(),
            started: Vec::new(),
            making: 0,
            starting: 0,
        }
    }
}

/// What there is of an instance that somebody waits for.
enum Begun<I> {
    Made(I),
    Not { saved: Option<SavedFiles> },
}

enum Taken<I> {
    Started(I),
    Created(I),
    Nothing,
}

impl<W: Workshop> Pool<W> {
    /// A pool with these targets, empty; [`Self::run`] fills it.
    pub fn new(workshop: Arc<W>, targets: Vec<Target>) -> Self {
        Self(Arc::new(Inner {
            workshop,
            targets,
            shelves: Mutex::new(Shelves {
                by_shape: HashMap::new(),
                waiting: 0,
                rest_until: Duration::ZERO,
                closed: false,
            }),
            changed: Notify::new(),
            makers: Semaphore::new(MAKERS),
            finishing: TaskTracker::new(),
        }))
    }

    /// An instance of this shape, started. Cancel safe: what comes too late for a caller that has gone is destroyed.
    pub async fn claim(&self, shape: &Shape) -> Result<W::Instance, W::Error> {
        match self.take(shape) {
            Taken::Started(instance) => Ok(instance),
            Taken::Created(instance) => self.finish(shape.clone(), Begun::Made(instance)).await,
            Taken::Nothing => self.finish(shape.clone(), Begun::Not { saved: None }).await,
        }
    }

    /// The same, with a writable layer that begins as `saved`: made for the caller, since that is fixed when it is made.
    pub async fn bring_back(
        &self,
        shape: &Shape,
        saved: SavedFiles,
    ) -> Result<W::Instance, W::Error> {
        let saved = Some(saved);
        self.finish(shape.clone(), Begun::Not { saved }).await
    }

    /// Keeps the pool filled until `cancel`, then destroys what it holds and what is still being made; returns when nothing is
    /// left. A step that has begun is never broken off: half an instance would have no owner.
    pub async fn run(self, cancel: CancellationToken) {
        while !cancel.is_cancelled() {
            let pause = match self.next_step() {
                Ok((shape, Refill::Make)) => self.make_one(&shape).await,
                Ok((shape, Refill::Start)) => self.start_one(&shape).await,
                Err(rest) => {
                    tokio::select! {
                        // All are cancel safe.
                        () = cancel.cancelled() => {}
                        () = self.0.changed.notified() => {}
                        () = sleep_until(rest) => {}
                    }
                    Duration::ZERO
                }
            };
            if !pause.is_zero() {
                tokio::select! {
                    // Both are cancel safe.
                    () = cancel.cancelled() => {}
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
        self.close().await;
    }

    /// The next refill; where there is none, the boot time at which to look again even if nothing changes.
    fn next_step(&self) -> Result<(Shape, Refill), Option<Duration>> {
        let shelves = self.shelves();
        if shelves.rest_until > boot_time() {
            return Err(Some(shelves.rest_until));
        }
        let step = self.0.targets.iter().find_map(|target| {
            let held = shelves
                .by_shape
                .get(&target.shape)
                .map_or(Held::default(), |shelf| Held {
                    created: shelf.created.len(),
                    started: shelf.started.len(),
                    making: shelf.making,
                    starting: shelf.starting,
                });
            refill(target, held, shelves.waiting).map(|step| (target.shape.clone(), step))
        });
        step.ok_or(None)
    }

    fn take(&self, shape: &Shape) -> Taken<W::Instance> {
        let mut shelves = self.shelves();
        let taken = match shelves.by_shape.get_mut(shape) {
            None => Taken::Nothing,
            Some(of_shape) => {
                let started = of_shape.started.pop().map(Taken::Started);
                let created = || of_shape.created.pop().map(Taken::Created);
                started.or_else(created).unwrap_or(Taken::Nothing)
            }
        };
        if matches!(taken, Taken::Started(_)) {
            shelves.rest(boot_time());
        }
        drop(shelves);
        self.0.changed.notify_one();
        taken
    }

    /// Makes and starts what is missing in a task of its own, so that a caller that goes away leaves nothing half made.
    async fn finish(
        &self,
        shape: Shape,
        begun: Begun<W::Instance>,
    ) -> Result<W::Instance, W::Error> {
        let (deliver, delivered) = oneshot::channel();
        let pool = self.clone();
        self.shelves().waiting += 1;
        self.0.finishing.spawn(async move {
            let outcome = pool.finish_inner(&shape, begun).await;
            {
                let mut shelves = pool.shelves();
                shelves.waiting -= 1;
                shelves.rest(boot_time());
            }
            pool.0.changed.notify_one();
            if let Err(Ok(orphan)) = deliver.send(outcome) {
                pool.0.workshop.destroy(orphan).await;
            }
        });
        match delivered.await {
            Ok(outcome) => outcome,
            // The task is never aborted and sends before it ends; only a dying runtime gets here.
            Err(_) => std::future::pending().await,
        }
    }

    async fn finish_inner(
        &self,
        shape: &Shape,
        begun: Begun<W::Instance>,
    ) -> Result<W::Instance, W::Error> {
        // The semaphore is never closed.
        let _permit = self.0.makers.acquire().await;
        let instance = match begun {
            Begun::Made(instance) => instance,
            Begun::Not { saved } => self.0.workshop.make(shape, saved).await?,
        };
        match self.0.workshop.start(&instance).await {
            Ok(()) => Ok(instance),
            Err(error) => {
                self.discard(instance);
                Err(error)
            }
        }
    }

    /// Has one removed that could not be started. Nobody waits for it: what the kernel cannot remove now must hold up no other.
    fn discard(&self, instance: W::Instance) {
        let pool = self.clone();
        self.0
            .finishing
            .spawn(async move { pool.0.workshop.destroy(instance).await });
    }

    async fn make_one(&self, shape: &Shape) -> Duration {
        self.with_shelf(shape, |shelf| shelf.making += 1);
        let outcome = self.0.workshop.make(shape, None).await;
        self.with_shelf(shape, |shelf| shelf.making -= 1);
        match outcome {
            Ok(instance) => {
                self.shelve(shape, instance, false).await;
                Duration::ZERO
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    ?shape,
                    "could not make an instance for the pool"
                );
                BACKOFF
            }
        }
    }

    async fn start_one(&self, shape: &Shape) -> Duration {
        let Some(instance) = self.with_shelf(shape, |shelf| {
            let instance = shelf.created.pop();
            shelf.starting += usize::from(instance.is_some());
            instance
        }) else {
            return Duration::ZERO;
        };
        let outcome = self.0.workshop.start(&instance).await;
        self.with_shelf(shape, |shelf| shelf.starting -= 1);
        match outcome {
            Ok(()) => {
                self.shelve(shape, instance, true).await;
                Duration::ZERO
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    ?shape,
                    "could not start an instance of the pool"
                );
                self.discard(instance);
                BACKOFF
            }
        }
    }

    /// Puts an instance on its shelf and watches it; destroys it where the pool is closed.
    async fn shelve(&self, shape: &Shape, instance: W::Instance, started: bool) {
        let id = self.0.workshop.id(&instance).to_owned();
        let died = self.0.workshop.died(&instance);
        let refused = {
            let mut shelves = self.shelves();
            if shelves.closed {
                Some(instance)
            } else {
                let of_shape = shelves.by_shape.entry(shape.clone()).or_default();
                let place = if started {
                    &mut of_shape.started
                } else {
                    &mut of_shape.created
                };
                place.push(instance);
                None
            }
        };
        if let Some(instance) = refused {
            self.0.workshop.destroy(instance).await;
            return;
        }
        self.0.changed.notify_one();
        let (pool, shape) = (self.clone(), shape.clone());
        tokio::spawn(async move {
            died.await;
            if let Some(dead) = pool.withdraw(&shape, &id) {
                tracing::warn!(instance = id, "an instance of the pool died");
                pool.0.workshop.destroy(dead).await;
                pool.0.changed.notify_one();
            }
        });
    }

    fn withdraw(&self, shape: &Shape, id: &str) -> Option<W::Instance> {
        let workshop = Arc::clone(&self.0.workshop);
        self.with_shelf(shape, |shelf| {
            let is_it = |instance: &W::Instance| workshop.id(instance) == id;
            if let Some(at) = shelf.started.iter().position(is_it) {
                return Some(shelf.started.swap_remove(at));
            }
            let at = shelf.created.iter().position(is_it)?;
            Some(shelf.created.swap_remove(at))
        })
    }

    async fn close(&self) {
        // Those who claim have ended before: what is still made for them comes to nothing.
        self.0.finishing.close();
        self.0.finishing.wait().await;
        let left: Vec<_> = {
            let mut shelves = self.shelves();
            shelves.closed = true;
            shelves
                .by_shape
                .values_mut()
                .flat_map(|shelf| shelf.created.drain(..).chain(shelf.started.drain(..)))
                .collect()
        };
        futures::future::join_all(
            left.into_iter()
                .map(|instance| self.0.workshop.destroy(instance)),
        )
        .await;
    }

    fn with_shelf<T>(&self, shape: &Shape, change: impl FnOnce(&mut Shelf<W::Instance>) -> T) -> T {
        change(self.shelves().by_shape.entry(shape.clone()).or_default())
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves<W::Instance>> {
        self.0
            .shelves
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
