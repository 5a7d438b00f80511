//! The task against a simulated holder over real pipes and real files.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use cloche_proto::frame::{self, SessionSpec, UpKind};
use futures::FutureExt;
use nix::unistd::pipe;

use super::super::log::Caps;
use super::super::simulation::Holder;
use super::super::state::SetUp;
use super::super::{
    Chunk, CommandId, Ended, NewSession, Outcome, Session, SessionError, Sessions, StdinError,
    Stream, Until,
};
use super::*;

/// A sandbox: its holder on a thread of its own per pair of pipes.
#[derive(Clone, Default)]
struct Sandbox {
    holder: Arc<Mutex<Holder>>,
    /// Told to each pipe thread's writer when there may be something to write.
    changed: Arc<std::sync::Condvar>,
    /// The newest pair; older ones are dead.
    pair: Arc<AtomicUsize>,
    wakes: Arc<AtomicUsize>,
    /// While it is set, bridges that were begun wait until it is done.
    gate: Arc<Mutex<Option<CancellationToken>>>,
    /// Bridges begun.
    bridges: Arc<AtomicUsize>,
    /// The holder is stopped: it reads and writes nothing.
    stopped: Arc<std::sync::atomic::AtomicBool>,
}

impl Sandbox {
    fn pipes(&self) -> Pipes {
        let (down_read, down_write) = pipe().unwrap();
        let (up_read, up_write) = pipe().unwrap();
        let mine = {
            let mut holder = self.holder.lock().unwrap();
            holder.new_pipes();
            self.pair.fetch_add(1, Ordering::SeqCst) + 1
        };
        let (this, mut down) = (self.clone(), std::fs::File::from(down_read));
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(count @ 1..) = down.read(&mut buffer) {
                let mut holder = this.wait(|_| !this.stopped.load(Ordering::SeqCst));
                if this.pair.load(Ordering::SeqCst) != mine {
                    return;
                }
                holder.on_bytes(&buffer[..count]);
                this.changed.notify_all();
            }
            // The agent closed its end.
            drop(this.holder.lock().unwrap());
            this.changed.notify_all();
        });
        let (this, mut up) = (self.clone(), std::fs::File::from(up_write));
        std::thread::spawn(move || {
            loop {
                let mut holder = this.wait(|holder| {
                    this.pair.load(Ordering::SeqCst) != mine
                        || (!holder.out.is_empty() && !this.stopped.load(Ordering::SeqCst))
                });
                if this.pair.load(Ordering::SeqCst) != mine {
                    return;
                }
                let count = holder.out.len().min(50_000);
                let bytes: Vec<u8> = holder.out.drain(..count).collect();
                drop(holder);
                if up.write_all(&bytes).is_err() {
                    return;
                }
            }
        });
        Pipes {
            from_guest: up_read,
            to_guest: down_write,
        }
    }

    fn wait(&self, ready: impl Fn(&Holder) -> bool) -> std::sync::MutexGuard<'_, Holder> {
        let mut holder = self.holder.lock().unwrap();
        while !ready(&holder) {
            holder = self.changed.wait(holder).unwrap();
        }
        holder
    }

    /// Does something as the holder.
    fn act<T>(&self, act: impl FnOnce(&mut Holder) -> T) -> T {
        let result = act(&mut self.holder.lock().unwrap());
        self.changed.notify_all();
        result
    }

    /// Prints everything, as the buffer becomes free.
    async fn print(&self, id: &str, stream: usize, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = &rest[self.act(|holder| holder.print(id, stream, rest))..];
            tokio::task::yield_now().await;
        }
    }

    /// Ends every pipe, as the sentry's death does.
    fn die(&self) {
        self.pair.fetch_add(1, Ordering::SeqCst);
        drop(self.holder.lock().unwrap());
        self.changed.notify_all();
    }
}

impl Bridge for Sandbox {
    fn connect(&self) -> BoxFuture<'_, Result<Pipes, BridgeError>> {
        let gate = self.gate.lock().unwrap().clone();
        self.bridges.fetch_add(1, Ordering::SeqCst);
        let this = self.clone();
        // Goes on to its end in the sandbox, whoever waits for it.
        let made = tokio::spawn(async move {
            if let Some(gate) = gate {
                gate.cancelled().await;
            }
            this.pipes()
        });
        async { Ok(made.await.unwrap()) }.boxed()
    }

    fn wake(&self) -> BoxFuture<'_, Result<(), BridgeError>> {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.stopped.store(false, Ordering::SeqCst);
        drop(self.holder.lock().unwrap());
        self.changed.notify_all();
        async { Ok(()) }.boxed()
    }
}

async fn open(directory: &Path, sandbox: &Sandbox, donated: bool) -> (Sessions, CancellationToken) {
    let cancel = CancellationToken::new();
    let pipes = donated.then(|| sandbox.pipes());
    let caps = Caps {
        session: 8 << 20,
        sandbox: 16 << 20,
        piece: 1 << 20,
    };
    let sessions = Sessions::open_with(
        directory,
        pipes,
        Arc::new(sandbox.clone()),
        frame::Setup::default(),
        Pauses::default(),
        cancel.clone(),
        caps,
    )
    .await
    .unwrap();
    (sessions, cancel)
}

fn id(name: &str) -> CommandId {
    CommandId::parse(name).unwrap()
}

fn new() -> NewSession {
    NewSession {
        spec: SessionSpec {
            argv: vec![b"true".to_vec()],
            stdin: true,
            ..SessionSpec::default()
        },
        kill_on_detach: None,
        fingerprint: None,
    }
}

/// Waits until the holder has begun `id`.
async fn begun(sandbox: &Sandbox, id: &str) {
    within(async {
        while !sandbox.act(|holder| holder.commands.contains_key(id)) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(1), work)
        .await
        .expect("done within a minute")
}

/// All that a reader yields, gaps as their lengths.
async fn read_all(session: &Session, stream: Stream, until: Until) -> (Vec<u8>, u64) {
    let mut reader = session.read(stream, 0, until);
    let (mut bytes, mut lost) = (Vec::new(), 0);
    loop {
        match within(reader.next()).await.unwrap() {
            Chunk::Output {
                offset,
                bytes: more,
            } => {
                assert_eq!(offset, bytes.len() as u64 + lost);
                bytes.extend(more);
            }
            Chunk::Gap { offset, end } => lost += end - offset,
            Chunk::End { offset } => {
                assert_eq!(offset, bytes.len() as u64 + lost);
                return (bytes, lost);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_from_create_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::default();
    let (sessions, cancel) = open(dir.path(), &sandbox, true).await;
    let (session, created) = sessions.create(id("a"), new()).await.unwrap();
    assert!(created);
    assert!(!sessions.create(id("a"), new()).await.unwrap().1);
    begun(&sandbox, "a").await;
    sandbox.print("a", 0, b"out").await;
    sandbox.print("a", 1, b"err").await;
    let mut live = session.read(Stream::Stdout, 0, Until::Exit);
    assert_eq!(
        within(live.next()).await.unwrap(),
        Chunk::Output {
            offset: 0,
            bytes: Bytes::from_static(b"out")
        }
    );
    let input = session.take_input(None).await.unwrap();
    assert_eq!(
        within(input.send(0, Bytes::from_static(b"in"), true))
            .await
            .unwrap(),
        2
    );
    within(
        session
            .state()
            .wait_for(|state| state.stdin.is_some_and(|stdin| stdin.taken == 2)),
    )
    .await
    .unwrap();
    sandbox.act(|holder| {
        holder.exit("a", 7, false);
        // A background child goes on.
        holder.print("a", 0, b" later");
    });
    let ended = within(session.ended()).await.unwrap();
    assert!(matches!(ended.outcome, Outcome::Exited { code: 7, .. }));
    assert_eq!(within(live.next()).await.unwrap(), Chunk::End { offset: 3 });
    assert_eq!(
        read_all(&session, Stream::Stderr, Until::Exit).await.0,
        b"err"
    );
    sandbox.act(|holder| holder.exit("a", 7, true));
    assert_eq!(
        read_all(&session, Stream::Stdout, Until::Closed).await.0,
        b"out later"
    );
    assert!(matches!(
        session.signal(15).await,
        Err(SessionError::Ended { .. })
    ));
    assert!(matches!(
        sessions.get(&id("b")).await,
        Err(SessionError::NotFound { .. })
    ));
    assert_eq!(sessions.list().await.unwrap().len(), 1);
    cancel.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_agent_goes_on_where_the_log_ends() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::default();
    let text: Vec<u8> = (0..200_000)
        .flat_map(|n| format!("{n}\n").into_bytes())
        .collect();
    let mut pieces = text.chunks(text.len() / 10 + 1);
    let mut donated = true;
    loop {
        let (sessions, cancel) = open(dir.path(), &sandbox, donated).await;
        donated = false;
        let (session, _) = within(sessions.create(id("a"), new())).await.unwrap();
        begun(&sandbox, "a").await;
        let Some(piece) = pieces.next() else {
            sandbox.act(|holder| holder.exit("a", 0, true));
            let (bytes, lost) = read_all(&session, Stream::Stdout, Until::Exit).await;
            assert!(bytes == text && lost == 0);
            cancel.cancel();
            break;
        };
        // Stopped in the midst of it, wherever it is.
        let printing = {
            let (sandbox, piece) = (sandbox.clone(), piece.to_vec());
            tokio::spawn(async move { sandbox.print("a", 0, &piece).await })
        };
        let mut reader = session.read(Stream::Stdout, 0, Until::Exit);
        within(reader.next()).await.unwrap();
        cancel.cancel();
        drop(sessions);
        // The task has ended once its side of the requests is gone.
        within(session.requests().closed()).await;
        let printing = within(printing);
        let (sessions, cancel) = open(dir.path(), &sandbox, false).await;
        printing.await.unwrap();
        cancel.cancel();
        let session = sessions.get(&id("a")).await;
        drop(sessions);
        if let Ok(session) = session {
            within(session.requests().closed()).await;
        }
    }
    assert_eq!(sandbox.act(|holder| holder.begun["a"]), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_settled_once_the_output_before_it_is_here() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::default();
    let (sessions, cancel) = open(dir.path(), &sandbox, true).await;
    let (session, _) = sessions.create(id("a"), new()).await.unwrap();
    begun(&sandbox, "a").await;
    cancel.cancel();
    drop(sessions);
    within(session.requests().closed()).await;
    // That agent was killed after it had recorded the end, and before it had the output.
    let at = id("a").directory(dir.path());
    let mut record = record::Record::load(&at, &id("a")).unwrap().unwrap();
    record.end(Arc::new(Ended {
        outcome: Outcome::Exited {
            code: 7,
            signal: 0,
            timed_out: false,
            not_started: None,
            message: String::new(),
            duration_ms: 1,
        },
        at: record.created,
        stdout: 3,
        stderr: 0,
        lost: false,
    }));
    record::store(&at, &record.encode().unwrap()).unwrap();
    sandbox.act(|holder| {
        holder.print("a", 0, b"out");
        holder.exit("a", 7, true);
    });

    let gate = CancellationToken::new();
    *sandbox.gate.lock().unwrap() = Some(gate.clone());
    let (sessions, cancel) = open(dir.path(), &sandbox, false).await;
    let session = sessions.get(&id("a")).await.unwrap();
    let ended = within(session.ended()).await.unwrap();
    assert_eq!(session.settled().now_or_never().map(Result::unwrap), None);
    gate.cancel();
    assert_eq!(within(session.settled()).await.unwrap(), ended);
    let (bytes, _) = read_all(&session, Stream::Stdout, Until::Now).await;
    assert_eq!(bytes, b"out");
    cancel.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_settled_too_where_its_output_never_comes() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::default();
    let (sessions, cancel) = open(dir.path(), &sandbox, true).await;
    let (session, _) = sessions.create(id("a"), new()).await.unwrap();
    begun(&sandbox, "a").await;
    sandbox.act(|holder| {
        holder.print("a", 0, b"out");
        holder.lies = true;
        let command = holder.commands.get_mut("a").unwrap();
        command.exit = Some(frame::Exit::default());
        command.outputs[0].at_exit = Some(5);
        command.outputs[1].at_exit = Some(0);
        command.dirty = true;
        holder.pump();
    });
    let settled = within(session.settled()).await.unwrap();
    assert!(settled.lost);
    assert_eq!(settled.stdout, 3);
    let Outcome::Exited { message, .. } = &settled.outcome else {
        panic!("{settled:?}");
    };
    assert!(message.contains("is lost"), "{message}");
    cancel.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_is_capped_and_its_reader_sees_true_offsets() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::default();
    let (sessions, cancel) = open(dir.path(), &sandbox, true).await;
    let (session, _) = sessions.create(id("a"), new()).await.unwrap();
    begun(&sandbox, "a").await;
    let line = vec![b'x'; 1 << 20];
    for _ in 0..24 {
        sandbox.print("a", 0, &line).await;
    }
    sandbox.act(|holder| holder.exit("a", 0, true));
    within(session.ended()).await.unwrap();
    let (bytes, lost) = read_all(&session, Stream::Stdout, Until::Exit).await;
    assert_eq!(bytes.len() as u64 + lost, 24 << 20);
    assert!(
        bytes.len() <= 8 << 20 && bytes.len() >= 6 << 20,
        "{} kept",
        bytes.len()
    );
    assert!(
        bytes.iter().all(|byte| *byte == b'x'),
        "a hole was read as output"
    );
    cancel.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_is_woken() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::default();
    let (sessions, cancel) = open(dir.path(), &sandbox, true).await;
    let mut health = sessions.health();
    within(health.wait_for(|health| health.link == Link::Up))
        .await
        .unwrap();
    sandbox.stopped.store(true, Ordering::SeqCst);
    let (session, _) = sessions.create(id("a"), new()).await.unwrap();
    begun(&sandbox, "a").await;
    assert_eq!(sandbox.wakes.load(Ordering::SeqCst), 1);
    sandbox.act(|holder| holder.exit("a", 0, true));
    within(session.ended()).await.unwrap();
    cancel.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_that_comes_after_the_greeting_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::default();
    let gate = CancellationToken::new();
    *sandbox.gate.lock().unwrap() = Some(gate.clone());
    sandbox.stopped.store(true, Ordering::SeqCst);
    let (sessions, cancel) = open(dir.path(), &sandbox, true).await;
    within(async {
        while sandbox.bridges.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // The holder answers on the pipes of its start, and only then is bridged to.
    sandbox.stopped.store(false, Ordering::SeqCst);
    sandbox.act(|_| ());
    let mut health = sessions.health();
    within(health.wait_for(|health| health.link == Link::Up))
        .await
        .unwrap();
    let setups = sandbox.act(|holder| holder.setups);
    gate.cancel();
    within(async {
        while sandbox.act(|holder| holder.setups) == setups {
            tokio::task::yield_now().await;
        }
    })
    .await;
    sessions.create(id("a"), new()).await.unwrap();
    begun(&sandbox, "a").await;
    assert_eq!(sandbox.wakes.load(Ordering::SeqCst), 0, "it was not silent");
    assert_eq!(sandbox.bridges.load(Ordering::SeqCst), 1);
    cancel.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_has_ended_is_let_go_of() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::default();
    let (sessions, cancel) = open(dir.path(), &sandbox, true).await;
    let held = Arc::downgrade(&sandbox.wakes);
    sandbox.die();
    drop(sandbox);
    within(sessions.end_all("Completed")).await.unwrap();
    // Its threads end with the pipes.
    within(async {
        while held.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(sessions.list().await.unwrap().is_empty(), "and yet served");
    cancel.cancel();
}

#[tokio::test]
async fn the_last_words_are_read_though_the_runtime_has_not_heard_of_them() {
    let (down_read, down_write) = pipe().unwrap();
    let (up_read, up_write) = pipe().unwrap();
    let (_requests, requests) = mpsc::channel(1);
    let (_end_all, end_all) = mpsc::channel(1);
    let attention = Arc::new(Notify::new());
    let parts = Parts {
        table: Table::new(
            "/nowhere".into(),
            frame::Setup::default(),
            Arc::clone(&attention),
        ),
        store: Store::new(Caps::default()),
        bridge: Arc::new(Sandbox::default()),
        requests,
        end_all,
        pauses: watch::channel(Pauses::default()).1,
        health: watch::channel(Health::default()).0,
        attention,
        cancel: CancellationToken::new(),
    };
    let pipes = Pipes {
        from_guest: up_read,
        to_guest: down_write,
    };
    let mut channel = Channel::new(parts, Some(pipes));
    writable(channel.pipes.as_ref()).await;
    channel.advance(clock::now());
    assert!(channel.table.epoch.outbox.is_empty(), "greeted");
    let mut hello = vec![0; 64 * 1024];
    let count = std::fs::File::from(down_read).read(&mut hello).unwrap();
    let mut holder = Holder::default();
    holder.on_bytes(&hello[..count]);
    let answer: Vec<u8> = holder.out.drain(..).collect();
    // From here on nothing is awaited, so the runtime does not look at the pipe.
    std::fs::File::from(up_write).write_all(&answer).unwrap();
    channel.drain(clock::now());
    assert_eq!(channel.health.borrow().link, Link::Up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sandbox_s_end_takes_what_the_pipe_still_holds() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::default();
    let (sessions, cancel) = open(dir.path(), &sandbox, true).await;
    let (a, _) = sessions.create(id("a"), new()).await.unwrap();
    let (b, _) = sessions.create(id("b"), new()).await.unwrap();
    begun(&sandbox, "b").await;
    sandbox.print("a", 0, b"last words").await;
    sandbox.act(|holder| holder.exit("a", 3, false));
    within(async {
        while !sandbox.act(|holder| holder.out.is_empty()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // The last write may be under way in the holder's thread: the pipe closes behind it.
    within(a.ended()).await.unwrap();
    sandbox.die();
    within(sessions.end_all("MemoryLimit")).await.unwrap();
    within(sessions.end_all("again")).await.unwrap();
    let ended = within(b.ended()).await.unwrap();
    assert_eq!(
        ended.outcome,
        Outcome::SandboxEnded {
            reason: "MemoryLimit".to_owned()
        }
    );
    assert!(matches!(
        a.ended().await.unwrap().outcome,
        Outcome::Exited { code: 3, .. }
    ));
    assert_eq!(
        read_all(&a, Stream::Stdout, Until::Closed).await.0,
        b"last words"
    );
    assert!(matches!(
        sessions.create(id("c"), new()).await,
        Err(SessionError::SandboxEnded { .. })
    ));
    assert_eq!(sessions.health().borrow().link, Link::Ended);
    cancel.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spawner_that_was_killed_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::default();
    let (sessions, cancel) = open(dir.path(), &sandbox, true).await;
    let mut health = sessions.health();
    within(health.wait_for(|health| health.link == Link::Up))
        .await
        .unwrap();
    sandbox.act(|holder| {
        holder.send(UpKind::Fault(frame::Fault {
            kind: frame::FaultKind::SpawnerKilled as i32,
            message: "init was killed\nfrom inside".to_owned(),
        }));
    });
    let seen = within(health.wait_for(|health| matches!(health.link, Link::SpawnerKilled { .. })))
        .await
        .unwrap()
        .link
        .clone();
    assert_eq!(
        seen,
        Link::SpawnerKilled {
            message: "init was killed from inside".to_owned()
        }
    );
    assert_eq!(health.borrow().setup, Some(SetUp::Done));
    cancel.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_babbles_is_given_up_on_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::default();
    let (sessions, cancel) = open(dir.path(), &sandbox, true).await;
    let mut health = sessions.health();
    let babble = sandbox.clone();
    let (stop, stopped) = (CancellationToken::new(), CancellationToken::new());
    let until = stop.clone();
    let done = stopped.clone();
    tokio::spawn(async move {
        while !until.is_cancelled() {
            babble.act(|holder| {
                if holder.out.len() < 1000 {
                    holder.out.extend([0xff; 5000]);
                }
            });
            tokio::task::yield_now().await;
        }
        done.cancel();
    });
    within(health.wait_for(|health| matches!(health.link, Link::Unavailable { .. })))
        .await
        .unwrap();
    assert!(matches!(
        sessions.create(id("a"), new()).await,
        Err(SessionError::Unavailable { .. })
    ));
    stop.cancel();
    stopped.cancelled().await;
    cancel.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_attached_for_too_long_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::default();
    let (sessions, cancel) = open(dir.path(), &sandbox, true).await;
    let (session, _) = sessions
        .create(
            id("a"),
            NewSession {
                kill_on_detach: Some(Duration::from_millis(50)),
                ..new()
            },
        )
        .await
        .unwrap();
    let (first, second) = (session.attach(), session.attach());
    begun(&sandbox, "a").await;
    drop(first);
    assert!(sandbox.act(|holder| holder.commands["a"].signals.is_empty()));
    drop(second);
    within(async {
        while sandbox.act(|holder| holder.commands["a"].signals.is_empty()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let tree = frame::SignalScope::Tree as i32;
    assert_eq!(
        sandbox.act(|holder| holder.commands["a"].signals.clone()),
        [(9, tree)]
    );
    cancel.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stdin_flows_as_it_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::default();
    let (sessions, cancel) = open(dir.path(), &sandbox, true).await;
    let (session, _) = sessions.create(id("a"), new()).await.unwrap();
    begun(&sandbox, "a").await;
    let bytes: Vec<u8> = (0..5_000_000u32)
        .map(|n| n.to_le_bytes()[n as usize % 3])
        .collect();
    let writer = {
        let (session, bytes) = (session.clone(), Bytes::from(bytes.clone()));
        tokio::spawn(async move { session.take_input(None).await?.send(0, bytes, true).await })
    };
    within(async {
        while !writer.is_finished() {
            sandbox.act(|holder| holder.drain_stdin("a"));
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(writer.await.unwrap().unwrap(), bytes.len() as u64);
    within(async {
        while !sandbox.act(|holder| holder.drain_stdin_end("a")) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(sandbox.act(|holder| holder.commands["a"].stdin == bytes));
    cancel.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_client_has_stdin_alone() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::default();
    let (sessions, cancel) = open(dir.path(), &sandbox, true).await;
    let (session, _) = sessions.create(id("a"), new()).await.unwrap();
    begun(&sandbox, "a").await;
    let first = session.take_input(None).await.unwrap();
    // More than is on the way at most: it waits for room.
    let waits = {
        let (first, bytes) = (first.clone(), Bytes::from(vec![b'1'; 4 << 20]));
        tokio::spawn(async move { first.send(0, bytes, true).await })
    };
    let mut state = session.state();
    let full = |state: &crate::session::SessionState| {
        state
            .stdin
            .is_some_and(|stdin| stdin.accepted == stdin.taken + frame::MAX_STREAM_BUFFER as u64)
    };
    within(state.wait_for(full)).await.unwrap();
    let second = session.take_input(None).await.unwrap();
    let taken_over = |sent| matches!(sent, Err(SessionError::Stdin(StdinError::TakenOver)));
    assert!(taken_over(within(waits).await.unwrap()));
    assert!(taken_over(
        first.send(0, Bytes::from_static(b"x"), false).await
    ));
    // Coming back it takes nothing from the second.
    let again = session.take_input(Some(first.number())).await.unwrap();
    assert!(within(again.known()).await.is_none());
    assert!(taken_over(
        again.send(0, Bytes::from_static(b"x"), false).await
    ));
    let from = within(second.known()).await.unwrap().accepted;
    let rest = {
        let second = second.clone();
        tokio::spawn(async move { second.send(from, Bytes::from_static(b"22"), true).await })
    };
    within(async {
        while !sandbox.act(|holder| holder.drain_stdin_end("a")) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(rest.await.unwrap().unwrap(), from + 2);
    let stdin = sandbox.act(|holder| holder.commands["a"].stdin.clone());
    let ones = stdin.iter().take_while(|byte| **byte == b'1').count();
    assert_eq!((ones as u64, &stdin[ones..]), (from, &b"22"[..]));
    cancel.cancel();
    within(session.requests().closed()).await;
    let (sessions, cancel) = open(dir.path(), &sandbox, false).await;
    let session = sessions.get(&id("a")).await.unwrap();
    let second = session.take_input(Some(second.number())).await.unwrap();
    let first = session.take_input(Some(first.number())).await.unwrap();
    let state = session.state().borrow().clone();
    assert!(first.look(&state).1 && !second.look(&state).1);
    cancel.cancel();
}
