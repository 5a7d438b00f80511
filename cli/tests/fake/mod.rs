//! An agent that plays what a test tells it, on a socket of its own, and the program under test.

#![allow(dead_code, reason = "every test binary uses another part")]

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cloche_proto::agent::v1alpha1::agent_server::{Agent, AgentServer};
use cloche_proto::agent::v1alpha1::session_request::Kind as Ask;
use cloche_proto::agent::v1alpha1::session_response::Kind as Reply;
use cloche_proto::agent::v1alpha1::{
    ApplyRequest, ApplyResponse, DeleteRequest, DeleteResponse, Exit, ListRequest, ListResponse,
    LogRequest, Open, Opened, Output as Piece, SandboxKey, SessionRequest, SessionResponse, Stream,
    UsageRequest, UsageResponse, WatchEvent,
};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// How long anything may take before the test fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// One connection of a session, as a script sees it.
pub(crate) struct Wire {
    /// What the client opened with.
    pub(crate) open: Open,
    /// Which connection this is, from 0, over all restarts.
    pub(crate) attempt: usize,
    requests: Streaming<SessionRequest>,
    replies: mpsc::Sender<Result<SessionResponse, Status>>,
}

impl Wire {
    /// The next request; `None`: the client closed.
    pub(crate) async fn next(&mut self) -> Option<Ask> {
        let request = self.requests.message().await.ok().flatten()?;
        Some(request.kind.expect("a request has a kind"))
    }

    /// Sends a reply; false: the client is gone.
    pub(crate) async fn send(&self, kind: Reply) -> bool {
        let reply = SessionResponse { kind: Some(kind) };
        self.replies.send(Ok(reply)).await.is_ok()
    }

    /// Answers the opening: the command was made if it was asked for.
    pub(crate) async fn opened(&self, stdin_offset: u64) {
        self.answer(stdin_offset, self.open.command.is_some()).await;
    }

    /// Answers the opening: the command was there.
    pub(crate) async fn attached(&self, stdin_offset: u64) {
        self.answer(stdin_offset, false).await;
    }

    async fn answer(&self, stdin_offset: u64, created: bool) {
        let command_id = self.open.command_id.clone();
        let opened = Opened {
            command_id,
            created,
            stdin_offset: Some(stdin_offset),
            input: 1,
        };
        assert!(self.send(Reply::Opened(opened)).await);
    }

    /// Sends output.
    pub(crate) async fn output(&self, stream: Stream, offset: usize, data: &[u8]) -> bool {
        self.send(Reply::Output(Piece {
            stream: stream.into(),
            offset: offset as u64,
            data: data.to_vec(),
        }))
        .await
    }

    /// Sends the end, and waits until the client closes: the way an agent must do it. Dropping the requests before the
    /// client has read the last reply resets the stream, which in one of three cases eats that reply.
    pub(crate) async fn exit(&mut self, code: i32) {
        let exit = Exit {
            code,
            ..Exit::default()
        };
        self.end(exit).await;
    }

    /// The same with all that an end can say.
    pub(crate) async fn end(&mut self, exit: Exit) {
        self.send(Reply::Exit(exit)).await;
        while let Ok(Some(_)) = self.requests.message().await {}
    }

    /// Fails the call.
    pub(crate) async fn fail(&self, status: Status) {
        self.replies.send(Err(status)).await.ok();
    }
}

type Script = Arc<dyn Fn(Wire) -> BoxFuture<'static, ()> + Send + Sync>;

/// What becomes of a manifest.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Applies {
    /// It is taken, and that is told.
    #[default]
    Told,
    /// It is taken, and the answer is lost.
    Lost,
    /// It is not taken, and the answer is lost.
    Never,
}

#[derive(Clone)]
struct Service {
    script: Script,
    log: Arc<Mutex<Vec<SessionResponse>>>,
    attempts: Arc<Mutex<usize>>,
    applies: Arc<Mutex<Applies>>,
    object: watch::Sender<Option<Value>>,
    /// How many watches have begun.
    watches: watch::Sender<usize>,
}

/// The agent. Dropping it ends the server and removes the socket.
pub(crate) struct Fake {
    directory: TempDir,
    service: Service,
    runtime: Option<Runtime>,
}

impl Fake {
    /// Starts an agent whose sessions are played by `script`.
    pub(crate) fn start<F>(script: impl Fn(Wire) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut fake = Self {
            directory: tempfile::Builder::new()
                .prefix("cloche-cli-")
                .tempdir()
                .unwrap(),
            service: Service {
                script: Arc::new(move |wire| Box::pin(script(wire))),
                log: Arc::default(),
                attempts: Arc::default(),
                applies: Arc::default(),
                object: watch::channel(None).0,
                watches: watch::channel(0).0,
            },
            runtime: None,
        };
        fake.restart();
        fake
    }

    /// An agent without sessions.
    pub(crate) fn idle() -> Self {
        Self::start(|wire| async move { wire.fail(Status::not_found("no such command")).await })
    }

    /// Ends the server as a kill does: every connection breaks.
    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(DEADLINE);
        }
    }

    /// Starts it again at the same socket.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let socket = self.socket();
        std::fs::remove_file(&socket).ok();
        let service = self.service.clone();
        let listener = runtime
            .block_on(async { UnixListener::bind(socket) })
            .unwrap();
        runtime.spawn(async move {
            tonic::transport::Server::builder()
                .add_service(AgentServer::new(service))
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await
        });
        self.runtime = Some(runtime);
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("agent.sock")
    }

    /// The directory, for a test's own files.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// What `log` answers.
    pub(crate) fn set_log(&self, replies: Vec<Reply>) {
        let replies = replies
            .into_iter()
            .map(|kind| SessionResponse { kind: Some(kind) });
        *self.service.log.lock().unwrap() = replies.collect();
    }

    /// What becomes of manifests from now on.
    pub(crate) fn set_applies(&self, applies: Applies) {
        *self.service.applies.lock().unwrap() = applies;
    }

    /// The one sandbox that there is.
    pub(crate) fn set_object(&self, object: Option<Value>) {
        self.service.object.send_replace(object);
    }

    /// The one sandbox, as it is now.
    pub(crate) fn object(&self) -> Option<Value> {
        self.service.object.borrow().clone()
    }

    /// Waits until the sandbox is as wanted.
    pub(crate) fn wait_for_object(&self, wanted: impl FnMut(&Option<Value>) -> bool) {
        let mut objects = self.service.object.subscribe();
        self.block_on(async { objects.wait_for(wanted).await.map(drop).unwrap() });
    }

    /// Waits until so many watches have begun, over all restarts.
    pub(crate) fn wait_for_watches(&self, count: usize) {
        let mut watches = self.service.watches.subscribe();
        self.block_on(watches.wait_for(|seen| *seen >= count))
            .unwrap();
    }

    /// Runs a future with the deadline.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        let runtime = self.runtime.as_ref().unwrap();
        runtime
            .block_on(async { tokio::time::timeout(DEADLINE, work).await })
            .expect("in time")
    }

    /// The program under test, with this agent's socket.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = program();
        command.env("CLOCHE_STANDALONE", self.socket()).args(args);
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

impl Drop for Fake {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The program under test.
#[allow(clippy::disallowed_methods, reason = "the one place of these tests")]
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-sandbox"));
    // Of whoever runs the tests, nothing: neither their cluster nor their agent nor their proxy.
    for variable in [
        "CLOCHE_STANDALONE",
        "KUBECONFIG",
        "KUBERNETES_SERVICE_HOST",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
    ] {
        command.env_remove(variable);
    }
    command.env("HOME", "/nonexistent").stdin(Stdio::null());
    command
}

/// How the program ended.
#[derive(Debug)]
pub(crate) struct Done {
    /// Its exit code.
    pub(crate) code: i32,
    /// All of its standard output.
    pub(crate) stdout: Vec<u8>,
    /// All of its standard error.
    pub(crate) stderr: String,
}

impl Done {
    /// From a process's end.
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code().expect("an exit, not a signal"),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Standard output as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

/// Sends a signal to a running program.
pub(crate) fn signal(child: &Child, signal: nix::sys::signal::Signal) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, signal).unwrap();
}

/// A sandbox in a phase.
pub(crate) fn sandbox(name: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "cloche.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"image": "oci:bb"},
        "status": {"phase": phase},
    })
}

/// What is told last of a sandbox that is gone.
fn deleted(name: &str) -> Value {
    let mut object = sandbox(name, "Ended");
    object["status"]["termination"] =
        json!({"reason": "Deleted", "message": "its object was deleted"});
    object
}

/// Bytes that are equal nowhere within 64 KiB.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| u8::try_from((index % 251 + index / 65_521) % 256).unwrap())
        .collect()
}

fn is(object: &Value, key: &SandboxKey) -> bool {
    object["metadata"]["name"] == key.name.as_str()
}

#[tonic::async_trait]
impl Agent for Service {
    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let object = self.object.borrow().clone();
        let key = request.into_inner().key;
        let objects: Vec<Vec<u8>> = object
            .iter()
            .filter(|object| key.as_ref().is_none_or(|key| is(object, key)))
            .map(|object| object.to_string().into_bytes())
            .collect();
        match key {
            Some(key) if objects.is_empty() => Err(Status::not_found(format!(
                "there is no sandbox {}",
                key.name
            ))),
            _ => Ok(Response::new(ListResponse { objects })),
        }
    }

    type WatchStream = Pin<Box<dyn futures::Stream<Item = Result<WatchEvent, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<ListRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let key = request.into_inner().key.expect("the program watches one");
        let mut objects = self.object.subscribe();
        let first = objects.borrow_and_update().clone();
        if first.is_none() {
            return Err(Status::not_found(format!(
                "there is no sandbox {}",
                key.name
            )));
        }
        let (events, receiver) = mpsc::channel(4);
        let watches = self.watches.clone();
        tokio::spawn(async move {
            let mut object = first;
            let mut synced = true;
            loop {
                let event = match &object {
                    Some(object) => WatchEvent {
                        object: object.to_string().into_bytes(),
                        ..Default::default()
                    },
                    None => WatchEvent {
                        object: deleted(&key.name).to_string().into_bytes(),
                        deleted: true,
                        synced: false,
                    },
                };
                if events.send(Ok(event)).await.is_err() {
                    return;
                }
                if std::mem::take(&mut synced) {
                    watches.send_modify(|count| *count += 1);
                    events
                        .send(Ok(WatchEvent {
                            synced: true,
                            ..Default::default()
                        }))
                        .await
                        .ok();
                }
                if object.is_none() || objects.changed().await.is_err() {
                    return;
                }
                object.clone_from(&objects.borrow_and_update());
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn apply(
        &self,
        request: Request<ApplyRequest>,
    ) -> Result<Response<ApplyResponse>, Status> {
        let mut object: Value = serde_json::from_slice(&request.into_inner().manifest).unwrap();
        let applies = *self.applies.lock().unwrap();
        let lost = || Status::unavailable("the connection is lost");
        if applies == Applies::Never {
            return Err(lost());
        }
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        if self.object.borrow().is_some() {
            return Err(Status::already_exists(format!(
                "sandbox {name} exists already"
            )));
        }
        object["status"] = json!({"phase": "Pending"});
        object["metadata"]["uid"] = json!("uid-1");
        self.object.send_replace(Some(object));
        if applies == Applies::Lost {
            return Err(lost());
        }
        let key = SandboxKey {
            namespace: "default".to_owned(),
            name,
        };
        Ok(Response::new(ApplyResponse { key: Some(key) }))
    }

    async fn delete(
        &self,
        request: Request<DeleteRequest>,
    ) -> Result<Response<DeleteResponse>, Status> {
        let DeleteRequest { key, uid } = request.into_inner();
        let key = key.unwrap();
        let gone = self.object.send_if_modified(|object| {
            let gone = object.as_ref().is_some_and(|object| {
                is(object, &key) && (uid.is_empty() || object["metadata"]["uid"] == *uid)
            });
            if gone {
                *object = None;
            }
            gone
        });
        if gone {
            Ok(Response::new(DeleteResponse {}))
        } else {
            Err(Status::not_found(format!(
                "there is no sandbox {}",
                key.name
            )))
        }
    }

    type SessionStream = ReceiverStream<Result<SessionResponse, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let mut requests = request.into_inner();
        let attempt = {
            let mut attempts = self.attempts.lock().unwrap();
            *attempts += 1;
            *attempts - 1
        };
        let first = requests.message().await?.and_then(|request| request.kind);
        let Some(Ask::Open(open)) = first else {
            return Err(Status::invalid_argument("the first request must be open"));
        };
        let (replies, receiver) = mpsc::channel(4);
        tokio::spawn((self.script)(Wire {
            open,
            attempt,
            requests,
            replies,
        }));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    type LogStream = ReceiverStream<Result<SessionResponse, Status>>;

    async fn usage(&self, _: Request<UsageRequest>) -> Result<Response<UsageResponse>, Status> {
        Ok(Response::new(UsageResponse {
            cpu_millicores: Some(250),
            memory_bytes: 64 << 20,
            disk_bytes: Some(1 << 20),
            processes: 9,
            ..UsageResponse::default()
        }))
    }

    async fn log(&self, request: Request<LogRequest>) -> Result<Response<Self::LogStream>, Status> {
        assert_eq!(request.into_inner().key.unwrap().name, "demo");
        let replies = self.log.lock().unwrap().clone();
        let (sender, receiver) = mpsc::channel(4);
        tokio::spawn(async move {
            for reply in replies {
                sender.send(Ok(reply)).await.ok();
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}
