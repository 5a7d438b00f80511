//! Credentials that never run out while somebody signs.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;

use crate::credentials::Credentials;
use crate::request::Applicant;

/// First pause after a request that failed; doubled up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between requests that fail.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Longest sleep before the clock is looked at again: time that the machine itself sleeps, and a clock that is set, are seen then.
const LOOK: Duration = Duration::from_mins(1);

/// Keeps `current` provided, for ever: with the first credentials as soon as there are any, then with new ones in time. What cannot be
/// had is told in the log and tried again; until then what there is stays in use.
pub async fn keep(applicant: Applicant, current: watch::Sender<Option<Credentials>>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let renew_at = current.borrow().as_ref().map(Credentials::renew_at);
        if let Some(left) = renew_at.and_then(|at| left(at, Timestamp::now())) {
            tokio::time::sleep(left.min(LOOK)).await;
            continue;
        }
        match applicant.obtain().await {
            Ok(credentials) => {
                tracing::info!(identity = %applicant.identity, "got a certificate");
                pause = FIRST_PAUSE;
                current.send_replace(Some(credentials));
            }
            Err(error) => {
                tracing::warn!(
                    identity = %applicant.identity,
                    error = &error as &dyn std::error::Error,
                    "no certificate; asking again"
                );
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// How long until `at`; `None` where that is over.
fn left(at: Timestamp, now: Timestamp) -> Option<Duration> {
    Duration::try_from(at.duration_since(now))
        .ok()
        .filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_has_no_time_left() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(left(at(5), at(3)), Some(Duration::from_secs(2)));
        assert_eq!(left(at(3), at(3)), None);
        assert_eq!(left(at(1), at(3)), None);
    }
}
