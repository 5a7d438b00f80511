//! `/healthz` and `/readyz` for the kubelet. A replica that stands by is as ready as the one that acts: it has listed everything.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

/// Most connections at one time; more wait to be accepted.
const MOST: usize = 16;
/// How long a connection may last.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers until the process ends.
pub async fn serve(listener: TcpListener, synced: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(MOST));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accept a connection for health");
                // Most of these last: no file descriptors, no memory.
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let synced = synced.clone();
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let (status, word) = answer(request.uri().path(), *synced.borrow());
                let mut response = Response::new(Full::new(Bytes::from_static(word.as_bytes())));
                *response.status_mut() = status;
                std::future::ready(Ok::<_, Infallible>(response))
            });
            let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // Whoever asks learns of a failure by not getting an answer.
            drop(tokio::time::timeout(PATIENCE, served).await);
            drop(place);
        });
    }
}

fn answer(path: &str, synced: bool) -> (StatusCode, &'static str) {
    match (path, synced) {
        ("/healthz", _) | ("/readyz", true) => (StatusCode::OK, "ok\n"),
        ("/readyz", false) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "not everything is listed yet\n",
        ),
        _ => (StatusCode::NOT_FOUND, "ask /healthz or /readyz\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_ready_when_it_has_listed_everything() {
        assert_eq!(answer("/healthz", false).0, StatusCode::OK);
        assert_eq!(answer("/readyz", false).0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer("/readyz", true).0, StatusCode::OK);
        assert_eq!(answer("/", true).0, StatusCode::NOT_FOUND);
    }
}
