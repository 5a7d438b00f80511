//! Waiting with an end.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How often something without an event is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// `work`, or an error that says what was not done in time. `CLOCHE_PATIENCE` (default 1) multiplies every limit, for machines that
/// are slow throughout.
pub async fn within<T>(
    limit: Duration,
    what: &str,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let limit = match std::env::var("CLOCHE_PATIENCE") {
        Ok(factor) => limit * factor.parse().context("read CLOCHE_PATIENCE")?,
        Err(_) => limit,
    };
    timeout(limit, work)
        .await
        .with_context(|| format!("not within {} s: {what}", limit.as_secs_f32()))?
}

/// Looks until there is an answer; for files, processes and groups, which tell nobody that they changed.
pub async fn until<T>(
    limit: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    within(limit, what, async {
        loop {
            ticks.tick().await;
            if let Some(answer) = look().await? {
                return Ok(answer);
            }
        }
    })
    .await
}
