//! A registry that misbehaves on purpose.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::support::Made;

#[derive(Clone)]
pub(crate) enum Answer {
    Whole(Vec<u8>),
    Status(&'static str, String),
    /// Accepts and says nothing.
    Hang,
    /// A byte now and then, forever.
    Trickle,
    /// Promises more than it gives.
    Cut(Vec<u8>),
    /// Never stops.
    Flood,
    /// Whole, after a while.
    Slow(Vec<u8>, Duration),
    /// Whole for whoever has this authorization; else 401 with these headers.
    Guarded(String, String, Vec<u8>),
}

/// A request: its path, and its authorization.
type Asked = (String, Option<String>);

pub(crate) struct Fake {
    pub(crate) address: String,
    answers: Arc<Mutex<BTreeMap<String, Answer>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
    task: JoinHandle<()>,
}

impl Fake {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answers: Arc<Mutex<BTreeMap<String, Answer>>> = Arc::default();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let shared = (Arc::clone(&answers), Arc::clone(&asked));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, shared.0.clone(), shared.1.clone()));
            }
        });
        Self {
            address,
            answers,
            asked,
            task,
        }
    }

    pub(crate) fn set(&self, path: &str, answer: Answer) {
        self.answers.lock().unwrap().insert(path.to_owned(), answer);
    }

    /// Serves `made` as `/app:latest`.
    pub(crate) fn serve(&self, made: &Made) {
        for (digest, bytes) in &made.blobs {
            self.set(
                &format!("/v2/app/blobs/{digest}"),
                Answer::Whole(bytes.clone()),
            );
        }
        let manifest = made.blobs[&made.manifest].clone();
        self.set("/v2/app/manifests/latest", Answer::Whole(manifest));
    }

    /// How many requests had `part` in their path.
    pub(crate) fn asked(&self, part: &str) -> usize {
        self.asked
            .lock()
            .unwrap()
            .iter()
            .filter(|(path, _)| path.contains(part))
            .count()
    }

    /// With which authorizations it was asked for what had `part` in its path.
    pub(crate) fn authorizations(&self, part: &str) -> Vec<Option<String>> {
        let asked = self.asked.lock().unwrap();
        let asked = asked.iter().filter(|(path, _)| path.contains(part));
        asked
            .map(|(_, authorization)| authorization.clone())
            .collect()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut stream: TcpStream,
    answers: Arc<Mutex<BTreeMap<String, Answer>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let path = head.split(' ').nth(1)?.to_owned();
    let answer = answers.lock().unwrap().get(&path).cloned();
    let authorization = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("authorization")
            .then(|| value.to_owned())
    });
    let answer = match answer {
        Some(Answer::Guarded(wanted, _, body)) if authorization.as_ref() == Some(&wanted) => {
            Some(Answer::Whole(body))
        }
        Some(Answer::Guarded(_, headers, _)) => Some(Answer::Status("401 Unauthorized", headers)),
        other => other,
    };
    asked.lock().unwrap().push((path, authorization));
    let begin = |length: usize| {
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n")
    };
    match answer {
        None => stream
            .write_all(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            .await
            .ok()?,
        Some(Answer::Whole(body)) => {
            stream.write_all(begin(body.len()).as_bytes()).await.ok()?;
            stream.write_all(&body).await.ok()?;
        }
        Some(Answer::Slow(body, pause)) => {
            tokio::time::sleep(pause).await;
            stream.write_all(begin(body.len()).as_bytes()).await.ok()?;
            stream.write_all(&body).await.ok()?;
        }
        Some(Answer::Guarded(..)) => return None,
        Some(Answer::Status(status, headers)) => {
            let reply = format!(
                "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n{headers}\r\n"
            );
            stream.write_all(reply.as_bytes()).await.ok()?;
        }
        Some(Answer::Hang) => {
            let _nothing = stream.read_u8().await.ok()?;
        }
        Some(Answer::Trickle) => {
            stream.write_all(begin(10_000_000).as_bytes()).await.ok()?;
            loop {
                stream.write_all(b"x").await.ok()?;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        Some(Answer::Cut(body)) => {
            stream
                .write_all(begin(body.len() + 1000).as_bytes())
                .await
                .ok()?;
            stream.write_all(&body).await.ok()?;
        }
        Some(Answer::Flood) => {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
                .await
                .ok()?;
            loop {
                stream.write_all(&[b' '; 1 << 16]).await.ok()?;
            }
        }
    }
    stream.shutdown().await.ok()
}
