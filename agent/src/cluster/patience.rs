//! Pauses between tries, for ever: each twice the one before, with jitter, so that a thousand agents do not come back at once.

use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};

use crate::unique;

/// First pause after a failure; doubled up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(500);
/// Longest pause.
const LONGEST: Duration = Duration::from_secs(30);

/// The pause after so many failures in a row, this one not counted.
pub(crate) fn pause(failures: u32) -> Duration {
    let doubled = FIRST.saturating_mul(1 << failures.min(16));
    doubled.min(LONGEST).mul_f64(0.5 + unique::fraction() / 2.0)
}

/// The stream, with a pause after each error. What `succeeds` ends a row of failures: a watch tells that it begins anew before it has asked
/// anything, which is no success.
pub(super) fn patient<T, E>(
    stream: impl Stream<Item = Result<T, E>> + Send,
    succeeds: fn(&T) -> bool,
) -> impl Stream<Item = Result<T, E>> + Send
where
    T: Send,
    E: Send,
{
    let begin = (Box::pin(stream), 0_u32, None);
    stream::unfold(begin, move |(mut stream, failures, wait)| async move {
        if let Some(wait) = wait {
            tokio::time::sleep(wait).await;
        }
        let next = stream.next().await?;
        let wait = next.is_err().then(|| pause(failures));
        let failures = in_a_row(failures, next.as_ref().ok().map(succeeds));
        Some((next, (stream, failures, wait)))
    })
}

/// How many failures in a row there are after this: `None` is one more, and `true` a success.
fn in_a_row(failures: u32, outcome: Option<bool>) -> u32 {
    match outcome {
        None => failures.saturating_add(1),
        Some(true) => 0,
        Some(false) => failures,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        for (failures, most) in [
            (0, 500),
            (1, 1000),
            (3, 4000),
            (6, 30_000),
            (4_000_000, 30_000),
        ] {
            let pause = pause(failures).as_millis();
            assert!((most / 2..=most).contains(&pause), "{failures}: {pause}");
        }
    }

    #[test]
    fn only_a_success_ends_a_row_of_failures() {
        let outcomes = [
            Some(false),
            None,
            Some(false),
            None,
            Some(false),
            None,
            Some(true),
            None,
        ];
        let rows: Vec<u32> = outcomes
            .iter()
            .scan(0, |row, outcome| {
                *row = in_a_row(*row, *outcome);
                Some(*row)
            })
            .collect();
        assert_eq!(rows, [0, 1, 1, 2, 2, 3, 0, 1]);
    }
}
