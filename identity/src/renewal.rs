//! Credentials that never run out while somebody signs.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;

use crate::credentials::Credentials;
use crate::request::{Applicant, RequestError};

/// First pause after a request that failed; doubled up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between requests that fail.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Time between two looks at the clock: time that the machine itself sleeps, and a clock that is set, are seen then. Also the least time
/// between two certificates.
const LOOK: Duration = Duration::from_mins(1);

/// Keeps `current` provided, for ever: with the first credentials as soon as there are any, then with new ones in time, or when others are
/// checked by something else than before. What cannot be
/// had is told in the log and tried again; until then what there is stays in use.
pub async fn keep(applicant: Applicant, current: watch::Sender<Option<Credentials>>) {
    renew(|| applicant.obtain(), || applicant.ca(), &current).await;
}

async fn renew<F, P>(
    obtain: impl Fn() -> F,
    published: impl Fn() -> P,
    current: &watch::Sender<Option<Credentials>>,
) where
    F: Future<Output = Result<Credentials, RequestError>>,
    P: Future<Output = Result<String, RequestError>>,
{
    let mut pause = FIRST_PAUSE;
    loop {
        match obtain().await {
            Ok(credentials) => {
                let identity = credentials.identity();
                tracing::info!(%identity, "got a certificate");
                let renew_at = credentials.renew_at();
                if left(renew_at, Timestamp::now()).is_none() {
                    tracing::warn!(
                        %identity,
                        %renew_at,
                        "the new certificate is due for renewal already: set the clock of this machine, or of the operator's"
                    );
                }
                pause = FIRST_PAUSE;
                current.send_replace(Some(credentials.clone()));
                until_due(&credentials, &published).await;
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "no certificate; asking again"
                );
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Returns when others are to be had, or soon after, but never before [`LOOK`]: a clock that is wrong would have certificates made without
/// a pause.
async fn until_due<P>(held: &Credentials, published: &impl Fn() -> P)
where
    P: Future<Output = Result<String, RequestError>>,
{
    loop {
        tokio::time::sleep(LOOK).await;
        if left(held.renew_at(), Timestamp::now()).is_none() {
            return;
        }
        // Without an answer what there is goes on to be used, as it would with one that is the same.
        if let Ok(ca) = published().await
            && !held.checks_by(ca.as_bytes())
        {
            tracing::info!(identity = %held.identity(), "there is another CA");
            return;
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rcgen::{CertificateParams, KeyPair, SanType, date_time_ymd};
    use rustls_pki_types::PrivatePkcs8KeyDer;

    use super::*;
    use crate::Identity;

    /// Of a certificate that ran out long ago.
    fn over() -> Credentials {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let name = Identity::Gateway.to_string().try_into().unwrap();
        params.subject_alt_names = vec![SanType::URI(name)];
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2000, 1, 2);
        let pem = params.self_signed(&key).unwrap().pem();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        Credentials::new(Identity::Gateway, pem.as_bytes(), key, pem.as_bytes()).unwrap()
    }

    #[tokio::test]
    async fn a_clock_that_is_ahead_has_no_certificates_made_without_a_pause() {
        let asked = AtomicUsize::new(0);
        let current = watch::Sender::new(None);
        let obtain = || {
            asked.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok(over()))
        };
        let published = || std::future::pending();
        let renewed = renew(obtain, published, &current);
        let limit = Duration::from_millis(200);
        assert!(tokio::time::timeout(limit, renewed).await.is_err());
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert!(current.borrow().is_some());
    }

    #[test]
    fn what_is_over_has_no_time_left() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(left(at(5), at(3)), Some(Duration::from_secs(2)));
        assert_eq!(left(at(3), at(3)), None);
        assert_eq!(left(at(1), at(3)), None);
    }
}
