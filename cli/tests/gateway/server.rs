//! A gateway that plays what a test tells it, as the apiserver would hand it on.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use cloche_proto::SESSION_PROTOCOL;
use cloche_proto::agent::v1alpha1::session_request::Kind as Ask;
use cloche_proto::agent::v1alpha1::session_response::Kind as Reply;
use cloche_proto::agent::v1alpha1::{
    Exit, Gap, Open, Opened, Output as Piece, SessionRequest, SessionResponse, Stream,
};
use futures::future::BoxFuture;
use futures::{SinkExt as _, StreamExt as _};
use prost::Message as _;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::fake::{DEADLINE, Done, program};

/// One connection, as a script sees it.
pub(crate) struct Wire {
    /// Which connection this is, from 0.
    pub(crate) attempt: usize,
    /// The socket; dropping it breaks the connection.
    pub(crate) socket: WebSocketStream<TcpStream>,
}

impl Wire {
    /// The next request; `None`: the client is gone.
    pub(crate) async fn next(&mut self) -> Option<Ask> {
        loop {
            match self.socket.next().await?.ok()? {
                Message::Binary(data) => {
                    let request = SessionRequest::decode(data).expect("a request");
                    return Some(request.kind.expect("a request has a kind"));
                }
                Message::Ping(_) | Message::Pong(_) => {}
                Message::Close(_) => return None,
                other => panic!("{other:?}"),
            }
        }
    }

    /// The first request, which must be `open`, of no key.
    pub(crate) async fn open(&mut self) -> Open {
        let Some(Ask::Open(open)) = self.next().await else {
            panic!("open expected");
        };
        assert_eq!((&open.key, open.uid.as_str()), (&None, ""));
        open
    }

    /// Sends a reply; false: the client is gone.
    pub(crate) async fn send(&mut self, kind: Reply) -> bool {
        let data = SessionResponse { kind: Some(kind) }.encode_to_vec();
        self.raw(Message::Binary(data.into())).await
    }

    /// Sends anything.
    pub(crate) async fn raw(&mut self, message: Message) -> bool {
        self.socket.send(message).await.is_ok()
    }

    /// Answers the opening.
    pub(crate) async fn opened(&mut self, open: &Open, stdin_offset: u64) {
        let opened = Opened {
            command_id: open.command_id.clone(),
            created: open.command.is_some(),
            stdin_offset: Some(stdin_offset),
            input: 1,
        };
        assert!(self.send(Reply::Opened(opened)).await);
    }

    /// Says where a log begins.
    pub(crate) async fn begins(&mut self, stdout: u64, stderr: u64) {
        for (stream, offset) in [(Stream::Stdout, stdout), (Stream::Stderr, stderr)] {
            let gap = Gap {
                stream: stream.into(),
                offset,
                end: offset,
            };
            assert!(self.send(Reply::Gap(gap)).await);
        }
    }

    /// Sends output on stdout.
    pub(crate) async fn output(&mut self, offset: usize, data: &[u8]) -> bool {
        self.send(Reply::Output(Piece {
            stream: Stream::Stdout.into(),
            offset: offset as u64,
            data: data.to_vec(),
        }))
        .await
    }

    /// Sends the end, closes, and waits until the client has gone.
    pub(crate) async fn exit(mut self, code: i32) {
        let exit = Exit {
            code,
            ..Exit::default()
        };
        self.send(Reply::Exit(exit)).await;
        self.close(CloseCode::Normal).await;
    }

    /// Closes and waits until the client has gone.
    pub(crate) async fn close(mut self, code: CloseCode) {
        let frame = CloseFrame {
            code,
            reason: "".into(),
        };
        self.raw(Message::Close(Some(frame))).await;
        while let Some(Ok(_)) = self.socket.next().await {}
    }

    /// Ends the stream with a `Status`.
    pub(crate) async fn refuse(mut self, code: u16, reason: &str, message: &str) {
        self.raw(Message::text(status(code, reason, message))).await;
        self.close(CloseCode::Error).await;
    }
}

/// A `Status` that tells a failure.
pub(crate) fn status(code: u16, reason: &str, message: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message,
    })
    .to_string()
}

/// What answers an upgrade instead of a socket.
pub(crate) struct Answer {
    /// The HTTP status.
    pub(crate) code: u16,
    /// The body.
    pub(crate) body: String,
}

type Script = Arc<dyn Fn(Wire) -> BoxFuture<'static, ()> + Send + Sync>;
type Gate = Arc<dyn Fn(usize) -> Option<Answer> + Send + Sync>;

/// The gateway, and a kubeconfig that leads to it.
pub(crate) struct Gateway {
    directory: TempDir,
    runtime: Option<Runtime>,
    paths: Arc<Mutex<Vec<String>>>,
}

impl Gateway {
    /// One whose connections are played by `script`.
    pub(crate) fn start<F>(script: impl Fn(Wire) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::start_behind(|_| None, SESSION_PROTOCOL, script)
    }

    /// One that answers every upgrade with this.
    pub(crate) fn refusing(code: u16, body: &str) -> Self {
        let body = body.to_owned();
        let gate = move |_| {
            Some(Answer {
                code,
                body: body.clone(),
            })
        };
        Self::start_behind(gate, SESSION_PROTOCOL, |_| async {})
    }

    /// One that asks `gate` at each connection, by its number, and speaks `protocol`.
    pub(crate) fn start_behind<F>(
        gate: impl Fn(usize) -> Option<Answer> + Send + Sync + 'static,
        protocol: &'static str,
        script: impl Fn(Wire) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime
            .block_on(async { TcpListener::bind("127.0.0.1:0").await })
            .unwrap();
        let address = listener.local_addr().unwrap();
        let script: Script = Arc::new(move |wire| Box::pin(script(wire)));
        let gate: Gate = Arc::new(gate);
        let paths: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&paths);
        runtime.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let (script, gate, seen) = (script.clone(), gate.clone(), seen.clone());
                tokio::spawn(serve(stream, protocol, script, gate, seen));
            }
        });
        let directory = tempfile::Builder::new()
            .prefix("cloche-cli-")
            .tempdir()
            .unwrap();
        std::fs::write(directory.path().join("config"), kubeconfig(address)).unwrap();
        Self {
            directory,
            runtime: Some(runtime),
            paths,
        }
    }

    /// Paths of all requests so far.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.paths.lock().unwrap().clone()
    }

    /// The kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("config")
    }

    /// The program under test.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = program();
        command.env("KUBECONFIG", self.kubeconfig()).args(args);
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Done {
        Done::of(self.command(args).output().unwrap())
    }

    /// Starts the program with pipes.
    pub(crate) fn spawn(&self, args: &[&str]) -> Child {
        self.command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(DEADLINE);
        }
    }
}

async fn serve(
    stream: TcpStream,
    protocol: &'static str,
    script: Script,
    gate: Gate,
    seen: Arc<Mutex<Vec<String>>>,
) {
    let mut attempt = 0;
    #[allow(clippy::result_large_err, reason = "as tungstenite has it")]
    let answer = |request: &Request, mut response: Response| {
        let headers = request.headers();
        assert_eq!(headers["authorization"], "Bearer secret");
        assert_eq!(headers["sec-websocket-protocol"], SESSION_PROTOCOL);
        let mut seen = seen.lock().unwrap();
        attempt = seen.len();
        seen.push(request.uri().to_string());
        if let Some(answer) = gate(attempt) {
            let mut refusal = ErrorResponse::new(Some(answer.body));
            *refusal.status_mut() = http::StatusCode::from_u16(answer.code).unwrap();
            return Err(refusal);
        }
        let headers = response.headers_mut();
        headers.insert("sec-websocket-protocol", protocol.parse().unwrap());
        Ok(response)
    };
    let accepted = tokio_tungstenite::accept_hdr_async(stream, answer).await;
    let Ok(socket) = accepted else { return };
    script(Wire { attempt, socket }).await;
}

/// Accepts one connection as a proxy does, and passes it on; what was asked of it.
pub(crate) fn proxy() -> (SocketAddr, std::thread::JoinHandle<String>) {
    use std::io::{BufRead as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let proxied = std::thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut reader = std::io::BufReader::new(near.try_clone().unwrap());
        let mut asked = String::new();
        while !asked.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut asked).unwrap(), 0);
        }
        let target = asked.split(' ').nth(1).unwrap();
        let mut far = std::net::TcpStream::connect(target).unwrap();
        near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        let mut back = far.try_clone().unwrap();
        let backward = std::thread::spawn(move || std::io::copy(&mut back, &mut near));
        // A reset is an end too.
        std::io::copy(&mut reader, &mut far).ok();
        far.shutdown(std::net::Shutdown::Write).ok();
        backward.join().unwrap().ok();
        asked
    });
    (address, proxied)
}

/// A kubeconfig that leads to a server.
pub(crate) fn kubeconfig(address: SocketAddr) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "test", "user": {"token": "secret"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "team"}}],
    })
    .to_string()
}
