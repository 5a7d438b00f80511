//! The agent's tasks: all of them run, or the process ends.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinHandle, JoinSet};

use crate::node::Node;
use crate::sys::orphan;

/// How long a stop waits for what is being taken down. A process that the kernel cannot kill must not keep an agent from stopping.
const STOP_PATIENCE: Duration = Duration::from_secs(15);

/// The tasks of an agent.
pub struct Crew {
    node: Arc<Node>,
    tasks: JoinSet<String>,
    pool: JoinHandle<()>,
    terminate: Signal,
    interrupt: Signal,
}

impl Crew {
    /// Those that every agent has: pool, sampler, reaper. From now on SIGTERM and SIGINT are heard.
    pub fn new(node: &Arc<Node>) -> Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("handle SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("handle SIGINT")?;
        let pool = tokio::spawn(node.pool.clone().run(node.cancel.child_token()));
        let mut crew = Self {
            node: Arc::clone(node),
            tasks: JoinSet::new(),
            pool,
            terminate,
            interrupt,
        };
        let sampler = node.sampler.clone().run(node.cancel.child_token());
        crew.join("sampler", sampler);
        crew.join("reaper", orphan::reap());
        Ok(crew)
    }

    /// One more task; `what` it is, for the log.
    pub fn join<F>(&mut self, what: &'static str, task: F)
    where
        F: Future<Output: Debug> + Send + 'static,
    {
        self.tasks
            .spawn(async move { format!("the {what} ended: {:?}", task.await) });
    }

    /// Runs until SIGTERM or SIGINT. A task that ends by itself takes the process down: what it owned has no owner any more.
    pub async fn run(mut self) -> Result<()> {
        let ended = tokio::select! {
            _ = self.terminate.recv() => Ok(()),
            _ = self.interrupt.recv() => Ok(()),
            ended = &mut self.pool => Err(anyhow!("the pool ended: {ended:?}")),
            Some(ended) = self.tasks.join_next() => Err(match ended {
                Ok(how) => anyhow!(how),
                Err(error) => anyhow!(error),
            }),
        };
        tracing::info!("stopping; sandboxes go on");
        self.node.cancel.cancel();
        self.node.tasks.close();
        let quiet = async {
            if !self.pool.is_finished() {
                self.pool.await.context("empty the pool")?;
            }
            self.node.tasks.wait().await;
            anyhow::Ok(())
        };
        if let Ok(emptied) = tokio::time::timeout(STOP_PATIENCE, quiet).await {
            emptied?;
        } else {
            tracing::warn!("what is still being taken down is left to the next start");
        }
        ended
    }
}
