//! An agent whose commands are made up, behind a cable that can be cut. Its sessions keep offsets as the real one's do.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cloche_identity::{Credentials, Identity};
use cloche_proto::agent::v1alpha1 as pb;
use cloche_proto::agent::v1alpha1::agent_server::{Agent, AgentServer};
use cloche_proto::agent::v1alpha1::session_request::Kind as In;
use cloche_proto::agent::v1alpha1::session_response::Kind as Out;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

type Replies = ReceiverStream<Result<pb::SessionResponse, Status>>;
type Sending = mpsc::Sender<Result<pb::SessionResponse, Status>>;

/// One made-up command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Command {
    /// As it was asked for.
    pub(crate) asked: pb::Command,
    /// In which sandbox.
    pub(crate) key: pb::SandboxKey,
    /// Of which UID.
    pub(crate) uid: String,
    /// As it was asked for.
    pub(crate) kill_on_detach_ms: u64,
    /// What it has read, safely.
    pub(crate) stdin: Vec<u8>,
    /// What lies in the agent's memory alone.
    pending: Vec<u8>,
    stdin_ended: bool,
    /// What it has written.
    pub(crate) stdout: Vec<u8>,
    stderr: Vec<u8>,
    exit: Option<pb::Exit>,
    /// Signals that it got.
    pub(crate) signals: Vec<i32>,
    /// Who sends its stdin.
    writer: u64,
}

/// What outlives the agent's process.
#[derive(Debug)]
pub(crate) struct Node {
    commands: Mutex<HashMap<String, Command>>,
    /// How often its process was killed; what an earlier one still has on the way is not taken.
    life: AtomicU64,
    changed: watch::Sender<u64>,
    /// Stdin stays in the agent's memory until there is much of it.
    pub(crate) lazy: bool,
    /// How often commands were begun.
    begun: Mutex<u32>,
    /// Every log that was asked for.
    pub(crate) logs: Mutex<Vec<pb::LogRequest>>,
    /// How often `busy` is still to be put off.
    pub(crate) busy: AtomicU64,
}

impl Node {
    fn new(lazy: bool) -> Self {
        Self {
            commands: Mutex::default(),
            life: AtomicU64::new(0),
            changed: watch::channel(0).0,
            lazy,
            begun: Mutex::default(),
            logs: Mutex::default(),
            busy: AtomicU64::new(2),
        }
    }

    fn look<T>(&self, id: &str, look: impl FnOnce(&Command) -> T) -> Option<T> {
        self.commands.lock().unwrap().get(id).map(look)
    }

    /// The command of this name.
    pub(crate) fn command(&self, id: &str) -> Option<Command> {
        self.commands.lock().unwrap().get(id).cloned()
    }

    /// All names.
    pub(crate) fn names(&self) -> Vec<String> {
        self.commands.lock().unwrap().keys().cloned().collect()
    }

    /// How many commands were begun.
    pub(crate) fn begun(&self) -> u32 {
        *self.begun.lock().unwrap()
    }

    /// Waits until the command of this name is as wanted.
    pub(crate) async fn until(&self, id: &str, is_wanted: impl Fn(&Command) -> bool) {
        let mut changed = self.changed.subscribe();
        while !self.command(id).is_some_and(|command| is_wanted(&command)) {
            changed.changed().await.unwrap();
        }
    }

    fn change<T>(&self, id: &str, work: impl FnOnce(&mut Command) -> T) -> T {
        let mut commands = self.commands.lock().unwrap();
        let command = commands.entry(id.to_owned()).or_default();
        let done = work(command);
        advance(command);
        drop(commands);
        self.changed.send_modify(|count| *count += 1);
        done
    }
}

/// What the made-up programs do.
fn advance(command: &mut Command) {
    let words: Vec<_> = command
        .asked
        .argv
        .iter()
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let exit = |code| {
        Some(pb::Exit {
            code,
            ..pb::Exit::default()
        })
    };
    match words[..] {
        ["echo", word] if command.exit.is_none() => {
            command.stdout = format!("{word}\n").into_bytes();
            command.exit = exit(0);
        }
        ["fail", code] if command.exit.is_none() => {
            command.stderr = b"it failed\n".to_vec();
            command.exit = exit(code.parse().unwrap());
        }
        ["busy"] if command.exit.is_none() => command.exit = exit(0),
        ["cat"] => {
            command.stdout = command.stdin.clone();
            if command.stdin_ended && command.pending.is_empty() {
                command.exit = exit(0);
            }
        }
        ["flood", bytes] if command.exit.is_none() => {
            command.stdout = pattern(bytes.parse().unwrap());
            command.exit = exit(0);
        }
        // `sleep`: never ends, and reads nothing.
        _ => {}
    }
}

/// Bytes of a period that no chunk shares.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..=250).cycle().take(length).collect()
}

/// The agent, and the cable to it.
pub(crate) struct FakeAgent {
    /// What outlives it.
    pub(crate) node: Arc<Node>,
    /// Where it is reached.
    pub(crate) address: SocketAddr,
    /// How often the cable was cut, and whether it is.
    cut: watch::Sender<(u64, bool)>,
    /// How many connections there were.
    pub(crate) connections: Arc<AtomicU64>,
}

impl FakeAgent {
    /// Serves as the agent of `identity`.
    pub(crate) async fn start(credentials: Credentials, lazy: bool) -> Self {
        let node = Arc::new(Node::new(lazy));
        let inner = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let inside = inner.local_addr().unwrap();
        tokio::spawn(serve(inner, credentials, Arc::clone(&node)));
        let outer = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = outer.local_addr().unwrap();
        let (cut, is_cut) = watch::channel((0, false));
        let connections = Arc::default();
        tokio::spawn(cable(outer, inside, is_cut, Arc::clone(&connections)));
        Self {
            node,
            address,
            cut,
            connections,
        }
    }

    /// Its process is killed: connections break, what it had in memory is lost, and nobody answers.
    pub(crate) fn kill(&self) {
        self.cut
            .send_modify(|(times, is_cut)| (*times, *is_cut) = (*times + 1, true));
        let mut commands = self.node.commands.lock().unwrap();
        self.node.life.fetch_add(1, Ordering::SeqCst);
        for command in commands.values_mut() {
            command.pending.clear();
            command.stdin_ended &= command.exit.is_some();
        }
    }

    /// It is there again.
    pub(crate) fn come_back(&self) {
        self.cut.send_modify(|(_, is_cut)| *is_cut = false);
    }
}

async fn cable(
    outer: TcpListener,
    inside: SocketAddr,
    is_cut: watch::Receiver<(u64, bool)>,
    connections: Arc<AtomicU64>,
) {
    loop {
        let (mut near, _) = outer.accept().await.unwrap();
        connections.fetch_add(1, Ordering::SeqCst);
        let (before, now) = *is_cut.borrow();
        if now {
            continue;
        }
        let mut is_cut = is_cut.clone();
        tokio::spawn(async move {
            let mut far = TcpStream::connect(inside).await.unwrap();
            near.set_nodelay(true).unwrap();
            far.set_nodelay(true).unwrap();
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                _ = is_cut.wait_for(|(times, _)| *times > before) => {}
            }
        });
    }
}

async fn serve(listener: TcpListener, credentials: Credentials, node: Arc<Node>) {
    let config = credentials
        .server(|identity| matches!(identity, Identity::Gateway))
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let (near, mut far) = tokio::io::duplex(64 << 10);
                sender.send(Ok::<_, std::io::Error>(near)).await.unwrap();
                tokio::spawn(async move {
                    drop(tokio::io::copy_bidirectional(&mut stream, &mut far).await);
                });
            }
        }
    });
    tonic::transport::Server::builder()
        .add_service(AgentServer::new(Service(node)))
        .serve_with_incoming(ReceiverStream::new(receiver))
        .await
        .unwrap();
}

struct Service(Arc<Node>);

#[tonic::async_trait]
impl Agent for Service {
    type WatchStream = ReceiverStream<Result<pb::WatchEvent, Status>>;
    type SessionStream = Replies;
    type LogStream = Replies;

    async fn list(
        &self,
        _: Request<pb::ListRequest>,
    ) -> Result<Response<pb::ListResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn watch(
        &self,
        _: Request<pb::ListRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn apply(
        &self,
        _: Request<pb::ApplyRequest>,
    ) -> Result<Response<pb::ApplyResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn delete(
        &self,
        _: Request<pb::DeleteRequest>,
    ) -> Result<Response<pb::DeleteResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn session(
        &self,
        request: Request<Streaming<pb::SessionRequest>>,
    ) -> Result<Response<Replies>, Status> {
        let mut requests = request.into_inner();
        let Some(In::Open(open)) = requests.message().await?.and_then(|request| request.kind)
        else {
            return Err(Status::invalid_argument("the first request must be `open`"));
        };
        let id = open.command_id.clone();
        let exists = self.0.command(&id).is_some();
        if !exists {
            let Some(asked) = open.command.clone() else {
                return Err(Status::not_found(format!("no command {id}")));
            };
            if asked.argv[0] == b"refused" {
                return Err(Status::invalid_argument("that is refused"));
            }
            let put_off = |left: u64| left.checked_sub(1);
            let order = Ordering::SeqCst;
            if asked.argv[0] == b"busy" && self.0.busy.fetch_update(order, order, put_off).is_ok() {
                return Err(Status::unavailable("its sessions are being found again"));
            }
            *self.0.begun.lock().unwrap() += 1;
            self.0.change(&id, |command| {
                command.asked = asked;
                command.key = open.key.clone().unwrap_or_default();
                command.uid.clone_from(&open.uid);
                command.kill_on_detach_ms = open.kill_on_detach_ms;
            });
        }
        let (sender, receiver) = mpsc::channel(4);
        let node = Arc::clone(&self.0);
        tokio::spawn(async move {
            let (input, stdin_offset) = node.change(&id, |command| {
                let input = match (open.stdin, open.input) {
                    (false, _) => 0,
                    (true, 0) => command.writer + 1,
                    (true, known) => known,
                };
                command.writer = command.writer.max(input);
                let is_newest = open.stdin && command.writer == input;
                let next = (command.stdin.len() + command.pending.len()) as u64;
                (input, is_newest.then_some(next))
            });
            let opened = pb::Opened {
                command_id: id.clone(),
                created: !exists,
                stdin_offset,
                input,
            };
            tell(&sender, Out::Opened(opened)).await;
            let life = node.life.load(Ordering::SeqCst);
            tokio::select! {
                () = output(&node, &id, [open.stdout_offset, open.stderr_offset], true, &sender) => {}
                () = stdin_taken(&node, &id, input, &sender), if open.stdin => {}
                () = take(&node, &id, life, &mut requests) => {}
                () = sender.closed() => {}
            }
            drop(sender);
            // As the real one: the end is told before the stream is closed.
            while let Ok(Some(_)) = requests.message().await {}
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn usage(
        &self,
        _: Request<pb::UsageRequest>,
    ) -> Result<Response<pb::UsageResponse>, Status> {
        Ok(Response::new(pb::UsageResponse {
            cpu_millicores: Some(250),
            memory_bytes: 64 << 20,
            disk_bytes: Some(1 << 20),
            processes: 9,
            ..pb::UsageResponse::default()
        }))
    }

    async fn log(&self, request: Request<pb::LogRequest>) -> Result<Response<Replies>, Status> {
        let request = request.into_inner();
        self.0.logs.lock().unwrap().push(request.clone());
        let id = match request.command_id.as_str() {
            "" => "main",
            id => id,
        };
        let Some(command) = self.0.command(id) else {
            return Err(Status::not_found(format!("no command {id}")));
        };
        let from = |kept: &[u8], asked: Option<u64>| {
            let tail = usize::try_from(request.tail_bytes).unwrap();
            match (asked, tail) {
                (Some(offset), _) => offset,
                (None, 0) => 0,
                (None, tail) => kept.len().saturating_sub(tail) as u64,
            }
        };
        let from = [
            from(&command.stdout, request.stdout_offset),
            from(&command.stderr, request.stderr_offset),
        ];
        let (sender, receiver) = mpsc::channel(4);
        let (node, id) = (Arc::clone(&self.0), id.to_owned());
        tokio::spawn(async move {
            for (stream, offset) in [pb::Stream::Stdout, pb::Stream::Stderr]
                .into_iter()
                .zip(from)
            {
                let stream = stream.into();
                tell(
                    &sender,
                    Out::Gap(pb::Gap {
                        stream,
                        offset,
                        end: offset,
                    }),
                )
                .await;
            }
            output(&node, &id, from, request.follow, &sender).await;
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

async fn tell(sender: &Sending, kind: Out) {
    drop(
        sender
            .send(Ok(pb::SessionResponse { kind: Some(kind) }))
            .await,
    );
}

async fn output(node: &Node, id: &str, mut at: [u64; 2], follow: bool, sender: &Sending) {
    let mut changed = node.changed.subscribe();
    loop {
        changed.borrow_and_update();
        let Some((pieces, exit)) = node.look(id, |command| {
            let piece = |kept: &[u8], at: u64| {
                let begin = usize::try_from(at).unwrap();
                kept[begin..kept.len().min(begin + (32 << 10))].to_vec()
            };
            let pieces = [piece(&command.stdout, at[0]), piece(&command.stderr, at[1])];
            (pieces, command.exit.clone())
        }) else {
            return;
        };
        let is_whole = pieces.iter().all(Vec::is_empty);
        for (place, data) in pieces.into_iter().enumerate() {
            if !data.is_empty() {
                let offset = at[place];
                at[place] += data.len() as u64;
                let stream = [pb::Stream::Stdout, pb::Stream::Stderr][place].into();
                let output = pb::Output {
                    stream,
                    offset,
                    data,
                };
                tell(sender, Out::Output(output)).await;
            }
        }
        if !is_whole {
            continue;
        }
        if let Some(exit) = exit {
            tell(sender, Out::Exit(exit)).await;
            return;
        }
        if !follow || changed.changed().await.is_err() {
            return;
        }
    }
}

async fn stdin_taken(node: &Node, id: &str, input: u64, sender: &Sending) {
    let mut changed = node.changed.subscribe();
    let mut told = None;
    loop {
        let Some(command) = node.command(id) else {
            return;
        };
        if command.writer != input {
            let taken = pb::StdinTaken {
                offset: 0,
                closed: true,
                taken_over: true,
            };
            tell(sender, Out::StdinTaken(taken)).await;
            std::future::pending::<()>().await;
        }
        let taken = pb::StdinTaken {
            offset: command.stdin.len() as u64,
            closed: command.stdin_ended && command.pending.is_empty(),
            taken_over: false,
        };
        if told != Some(taken) {
            told = Some(taken);
            tell(sender, Out::StdinTaken(taken)).await;
        }
        if changed.changed().await.is_err() {
            return;
        }
    }
}

async fn take(node: &Node, id: &str, life: u64, requests: &mut Streaming<pb::SessionRequest>) {
    while let Ok(Some(request)) = requests.message().await {
        match request.kind {
            Some(In::Stdin(stdin)) => node.change(id, |command| {
                if node.life.load(Ordering::SeqCst) == life {
                    receive(command, &stdin, node.lazy);
                }
            }),
            Some(In::Resize(size)) => node.change(id, |command| {
                let shown = format!("{}x{}\n", size.rows, size.columns);
                command.stdout.extend(shown.bytes());
            }),
            Some(In::Signal(signal)) => {
                node.change(id, |command| command.signals.push(signal.number));
            }
            Some(In::Kill(_)) => node.change(id, |command| {
                command.exit = Some(pb::Exit {
                    code: 137,
                    signal: 9,
                    ..pb::Exit::default()
                });
            }),
            Some(In::Open(_)) | None => return,
        }
    }
    std::future::pending::<()>().await;
}

fn receive(command: &mut Command, stdin: &pb::Stdin, lazy: bool) {
    // A command that does not read takes a pipe's worth, and the agent keeps no more than its window.
    let reads = command
        .asked
        .argv
        .first()
        .is_some_and(|word| word == b"cat");
    let have = (command.stdin.len() + command.pending.len()) as u64;
    assert!(stdin.offset <= have, "stdin has a hole");
    assert!(
        stdin.offset + stdin.data.len() as u64 <= command.stdin.len() as u64 + (1 << 20),
        "stdin is more than 1 MiB ahead"
    );
    let skip = usize::try_from(have - stdin.offset).unwrap();
    command
        .pending
        .extend(stdin.data.get(skip..).unwrap_or_default());
    command.stdin_ended |= stdin.end;
    if reads && (!lazy || command.stdin_ended || command.pending.len() > 64 << 10) {
        let pending = std::mem::take(&mut command.pending);
        command.stdin.extend(pending);
    }
}
