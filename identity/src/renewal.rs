//! Credentials that never run out while somebody signs.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;

use crate::credentials::Credentials;
use crate::name::Identity;
use crate::request::{Applicant, RequestError};
use crate::store::Store;

/// First pause after a request that failed; doubled up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between requests that fail.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Time between two looks at the clock: time that the machine itself sleeps, and a clock that is set, are seen then. Also the least time
/// between two certificates.
const LOOK: Duration = Duration::from_mins(1);

/// Keeps `current` provided, for ever: with what `store` holds, else with the first credentials that there are, then with new ones in time,
/// or when others are checked by something else than before. What cannot be had is told in the log and tried again; until then what there
/// is stays in use.
pub async fn keep(
    applicant: Applicant,
    store: Option<Store>,
    current: watch::Sender<Option<Credentials>>,
) {
    let held = match &store {
        Some(store) => kept(store, &applicant.identity).await,
        None => None,
    };
    let (applicant, store) = (&applicant, store.as_ref());
    let obtain = move || async move {
        let obtained = applicant.obtain().await?;
        if let Some(store) = store {
            save(store, &obtained).await;
        }
        Ok(obtained)
    };
    renew(held, obtain, || applicant.ca(), &current).await;
}

/// What an earlier process kept, if that is still of use.
async fn kept(store: &Store, identity: &Identity) -> Option<Credentials> {
    let (store, owner) = (store.clone(), identity.clone());
    let loaded = tokio::task::spawn_blocking(move || store.load(&owner)).await;
    match loaded.ok()? {
        Ok(found) => {
            let found = found?;
            left(found.not_after(), Timestamp::now())?;
            tracing::info!(%identity, renew_at = %found.renew_at(), "goes on with its certificate");
            Some(found)
        }
        Err(error) => {
            tracing::warn!(
                %identity,
                error = &error as &dyn std::error::Error,
                "the certificate that was kept is of no use; asking for another"
            );
            None
        }
    }
}

async fn save(store: &Store, credentials: &Credentials) {
    let (store, credentials) = (store.clone(), credentials.clone());
    let saved = tokio::task::spawn_blocking(move || store.save(&credentials)).await;
    if let Ok(Err(error)) = saved {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "the certificate is not kept: the next start needs the operator"
        );
    }
}

async fn renew<F, P>(
    kept: Option<Credentials>,
    obtain: impl Fn() -> F,
    published: impl Fn() -> P,
    current: &watch::Sender<Option<Credentials>>,
) where
    F: Future<Output = Result<Credentials, RequestError>>,
    P: Future<Output = Result<String, RequestError>>,
{
    if let Some(kept) = kept {
        current.send_replace(Some(kept.clone()));
        // It may be of an installation that is gone: that is not found out a minute late.
        if !is_outdated(&kept, &published).await {
            until_due(&kept, &published).await;
        }
    }
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
        if is_outdated(held, published).await {
            return;
        }
    }
}

/// Whether others are to be had: after two thirds of their life, or where peers are checked by something else now.
async fn is_outdated<P>(held: &Credentials, published: &impl Fn() -> P) -> bool
where
    P: Future<Output = Result<String, RequestError>>,
{
    if left(held.renew_at(), Timestamp::now()).is_none() {
        return true;
    }
    // Without an answer what there is goes on to be used, as it would with one that is the same.
    let is_other = match published().await {
        Ok(ca) => !held.checks_by(ca.as_bytes()),
        Err(_) => false,
    };
    if is_other {
        tracing::info!(identity = %held.identity(), "there is another CA");
    }
    is_other
}

/// How long until `at`; `None` where that is over.
fn left(at: Timestamp, now: Timestamp) -> Option<Duration> {
    Duration::try_from(at.duration_since(now))
        .ok()
        .filter(|left| !left.is_zero())
}

#[cfg(test)]
pub(crate) mod fixture {
    use rcgen::{CertificateParams, KeyPair, SanType, date_time_ymd};
    use rustls_pki_types::PrivatePkcs8KeyDer;

    use super::*;

    /// A gateway's, good from the first day of a year to that of another.
    pub(crate) fn credentials(from: i32, to: i32) -> Credentials {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let name = Identity::Gateway.to_string().try_into().unwrap();
        params.subject_alt_names = vec![SanType::URI(name)];
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        let pem = params.self_signed(&key).unwrap().pem();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        Credentials::new(Identity::Gateway, pem.as_bytes(), key, pem.as_bytes()).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::fixture::credentials;
    use super::*;

    #[tokio::test]
    async fn a_clock_that_is_ahead_has_no_certificates_made_without_a_pause() {
        let asked = AtomicUsize::new(0);
        let current = watch::Sender::new(None);
        let obtain = || {
            asked.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok(credentials(2000, 2001)))
        };
        let published = || std::future::pending();
        let renewed = renew(None, obtain, published, &current);
        let limit = Duration::from_millis(200);
        assert!(tokio::time::timeout(limit, renewed).await.is_err());
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert!(current.borrow().is_some());
    }

    #[tokio::test]
    async fn a_part_that_starts_again_goes_on_with_what_was_kept_while_it_is_of_use() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("credentials.json"));
        assert!(kept(&store, &Identity::Gateway).await.is_none());
        save(&store, &credentials(2000, 2100)).await;
        let held = kept(&store, &Identity::Gateway).await;
        assert!(held.is_some());

        let current = watch::Sender::new(None);
        let obtain = || -> std::future::Ready<_> { panic!("it needs no other") };
        let renewed = renew(held, obtain, std::future::pending, &current);
        let limit = Duration::from_millis(200);
        assert!(tokio::time::timeout(limit, renewed).await.is_err());
        assert!(current.borrow().is_some());

        // Of a CA that is no more.
        let held = kept(&store, &Identity::Gateway).await;
        let asked = AtomicUsize::new(0);
        let obtain = || {
            asked.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok(credentials(2000, 2100)))
        };
        let another = || std::future::ready(Ok("another".to_owned()));
        let renewed = renew(held, obtain, another, &current);
        assert!(tokio::time::timeout(limit, renewed).await.is_err());
        assert_eq!(asked.load(Ordering::Relaxed), 1);

        save(&store, &credentials(2000, 2001)).await;
        assert!(kept(&store, &Identity::Gateway).await.is_none());
    }

    #[test]
    fn what_is_over_has_no_time_left() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(left(at(5), at(3)), Some(Duration::from_secs(2)));
        assert_eq!(left(at(3), at(3)), None);
        assert_eq!(left(at(1), at(3)), None);
    }
}
