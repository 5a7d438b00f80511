//! Sessions against a real cloche-init: ends, output across kills of the agent, floods, latency.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test's way to fail

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cloche_agent::session::{
    Chunk, CommandId, Link, NewSession, Outcome, Pauses, Session, SessionError, Sessions, Stream,
    Until,
};
use cloche_proto::frame::Setup;
use support::{Nsenter, Sandbox, command, now, shell, status_kib};
use tokio_util::sync::CancellationToken;

async fn open(
    sandbox: &Sandbox,
    pipes: Option<cloche_agent::session::Pipes>,
) -> (Sessions, tokio_util::sync::DropGuard) {
    let cancel = CancellationToken::new();
    let sessions = Sessions::open(
        &sandbox.sessions(),
        pipes,
        Arc::new(sandbox.bridge()),
        setup(),
        Pauses::default(),
        cancel.clone(),
    )
    .await
    .unwrap();
    (sessions, cancel.drop_guard())
}

fn setup() -> Setup {
    Setup {
        hostname: "cloche-test".to_owned(),
        read_only_root: None,
    }
}

fn id(name: &str) -> CommandId {
    CommandId::parse(name).unwrap()
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(2), work)
        .await
        .expect("done within two minutes")
}

async fn run(sessions: &Sessions, name: &str, new: NewSession) -> (Outcome, Vec<u8>, Vec<u8>) {
    let (session, _) = within(sessions.create(id(name), new)).await.unwrap();
    let stdout = read(&session, Stream::Stdout).await;
    let stderr = read(&session, Stream::Stderr).await;
    let ended = within(session.ended()).await.unwrap();
    (ended.outcome.clone(), stdout, stderr)
}

async fn read(session: &Session, stream: Stream) -> Vec<u8> {
    let mut reader = session.read(stream, 0, Until::Exit);
    let mut bytes = Vec::new();
    loop {
        match within(reader.next()).await.unwrap() {
            Chunk::Output {
                offset,
                bytes: more,
            } => {
                assert_eq!(offset, bytes.len() as u64);
                bytes.extend(more);
            }
            Chunk::Gap { offset, end } => panic!("a gap from {offset} to {end}"),
            Chunk::End { .. } => return bytes,
        }
    }
}

fn code(outcome: &Outcome) -> i32 {
    match outcome {
        Outcome::Exited { code, .. } => *code,
        Outcome::SandboxEnded { .. } | Outcome::Lost { .. } => panic!("{outcome:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_end_as_they_should() {
    let (mut sandbox, pipes) = Sandbox::start();
    let (sessions, _guard) = open(&sandbox, Some(pipes)).await;
    let (outcome, out, err) = run(&sessions, "a", shell("echo out; echo err >&2; exit 3")).await;
    assert_eq!(code(&outcome), 3);
    assert_eq!(
        (out.as_slice(), err.as_slice()),
        (&b"out\n"[..], &b"err\n"[..])
    );

    let missing = NewSession {
        spec: cloche_proto::frame::SessionSpec {
            argv: vec![b"no-such-program".to_vec()],
            shell: None,
            ..shell("").spec
        },
        kill_on_detach: None,
        fingerprint: None,
    };
    let (outcome, _, err) = run(&sessions, "b", missing).await;
    assert_eq!(code(&outcome), 127);
    assert!(!err.is_empty());

    // A background child that holds stdout does not hold up the end.
    let start = now();
    let (outcome, out, _) = run(&sessions, "c", shell("sleep 100 & echo done")).await;
    assert_eq!((code(&outcome), out.as_slice()), (0, &b"done\n"[..]));
    assert!(start.elapsed() < Duration::from_secs(20));

    let mut timed = shell("setsid sleep 100 & echo begun; sleep 100");
    timed.spec.timeout_ms = 300;
    let start = now();
    let (outcome, out, _) = run(&sessions, "d", timed).await;
    assert!(
        matches!(
            outcome,
            Outcome::Exited {
                timed_out: true,
                ..
            }
        ),
        "{outcome:?}"
    );
    assert_eq!(out, b"begun\n");
    assert!(start.elapsed() < Duration::from_millis(300) + Duration::from_secs(5));

    let (cat, _) = sessions.create(id("e"), shell("cat")).await.unwrap();
    let bytes: Vec<u8> = (0..3_000_000u32)
        .map(|n| n.to_le_bytes()[n as usize % 3])
        .collect();
    let writing = {
        let (cat, bytes) = (cat.clone(), Bytes::from(bytes.clone()));
        tokio::spawn(async move { cat.take_input(None).await?.send(0, bytes, true).await })
    };
    assert!(read(&cat, Stream::Stdout).await == bytes);
    within(writing).await.unwrap().unwrap();

    let (session, _) = sessions
        .create(id("f"), shell("echo up; sleep 1000"))
        .await
        .unwrap();
    let mut reader = session.read(Stream::Stdout, 0, Until::Exit);
    assert!(matches!(
        within(reader.next()).await.unwrap(),
        Chunk::Output { .. }
    ));
    session.signal(15).await.unwrap();
    assert_eq!(
        code(&within(session.ended()).await.unwrap().outcome),
        128 + 15
    );
    assert!(matches!(
        session.kill().await,
        Err(SessionError::Ended { .. })
    ));

    let (session, _) = sessions
        .create(id("g"), shell("echo up; sleep 1000"))
        .await
        .unwrap();
    let mut reader = session.read(Stream::Stdout, 0, Until::Exit);
    assert!(matches!(
        within(reader.next()).await.unwrap(),
        Chunk::Output { .. }
    ));
    sandbox.kill();
    within(sessions.end_all("RuntimeCrashed")).await.unwrap();
    assert_eq!(
        session.ended().await.unwrap().outcome,
        Outcome::SandboxEnded {
            reason: "RuntimeCrashed".to_owned()
        }
    );
    assert_eq!(
        within(reader.next()).await.unwrap(),
        Chunk::End { offset: 3 }
    );
}

/// Not a test of its own: the process that the next test kills. It plays the agent of the sandbox named by the environment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plays_the_agent() {
    let Ok(root) = std::env::var("CLOCHE_TEST_AGENT_OF") else {
        return;
    };
    let root = PathBuf::from(root);
    let bridge = Nsenter {
        holder: std::env::var("CLOCHE_TEST_HOLDER")
            .unwrap()
            .parse()
            .unwrap(),
        run: root.join("run"),
    };
    let cancel = CancellationToken::new();
    let sessions = Sessions::open(
        &root.join("sessions"),
        None,
        Arc::new(bridge),
        setup(),
        Pauses::default(),
        cancel,
    )
    .await
    .unwrap();
    let (session, _) = sessions.create(id("lines"), shell(LINES)).await.unwrap();
    within(session.ended()).await.unwrap();
    // An end may be told before all output is here: whoever goes now leaves the rest to the next agent.
    for stream in [Stream::Stdout, Stream::Stderr] {
        let mut reader = session.read(stream, 0, Until::Closed);
        while !matches!(within(reader.next()).await.unwrap(), Chunk::End { .. }) {}
    }
}

const LAST: u32 = 60_000;
const LINES: &str =
    "i=0; while [ $i -lt 60000 ]; do echo line $i; echo error $i >&2; i=$((i+1)); done; exit 42";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_of_the_agent_lose_and_double_no_byte() {
    let (sandbox, pipes) = Sandbox::start();
    drop(pipes);
    let log = sandbox.sessions().join("lines/stdout");
    let mut kills = 0;
    let whole = |stream: &str, word: &str| {
        let text = fs::read_to_string(sandbox.sessions().join("lines").join(stream)).unwrap();
        let lines: Vec<String> = (0..LAST).map(|n| format!("{word} {n}\n")).collect();
        let wanted = lines.concat();
        assert!(
            text == wanted,
            "{stream}: {} bytes of {}",
            text.len(),
            wanted.len()
        );
    };
    let mut agent = None;
    let mut seed = std::process::id();
    for round in 0.. {
        let mut child = command(std::env::current_exe().unwrap())
            .args(["--exact", "plays_the_agent", "--nocapture"])
            .env("CLOCHE_TEST_AGENT_OF", sandbox.root.path())
            .env("CLOCHE_TEST_HOLDER", sandbox.bridge().holder.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Killed when the log has grown by some arbitrary amount, or sooner when it is new.
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let more = u64::from(seed >> 16) % 60_000;
        let length = || fs::metadata(&log).map_or(0, |metadata| metadata.len());
        let from = length();
        let ended = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if round < 25 && length() >= from + more {
                break None;
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        };
        if let Some(status) = ended {
            agent = Some(status);
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    assert!(agent.unwrap().success());
    whole("stdout", "line");
    whole("stderr", "error");
    let record = fs::read_to_string(sandbox.sessions().join("lines/record.json")).unwrap();
    assert!(record.contains("\"code\":42"), "{record}");
    println!("{kills} kills");
    assert!(kills >= 5, "the command was over too soon");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_stays_within_disk_and_memory() {
    const BYTES: u64 = 500_000_000;
    let (sandbox, pipes) = Sandbox::start();
    let (sessions, _guard) = open(&sandbox, Some(pipes)).await;
    let start = now();
    let line = format!("head -c {BYTES} /dev/zero | tr '\\0' x");
    let (session, _) = sessions.create(id("flood"), shell(&line)).await.unwrap();
    // A small command beside it is not held up.
    let mut small = Vec::new();
    while session.kept(Stream::Stdout).1 < BYTES / 2 {
        let at = now();
        let (outcome, out, _) = run(
            &sessions,
            &format!("small{}", small.len()),
            shell("echo hello"),
        )
        .await;
        assert_eq!((code(&outcome), out.as_slice()), (0, &b"hello\n"[..]));
        small.push(at.elapsed());
        let file = fs::metadata(sandbox.sessions().join("flood/stdout"));
        assert!(file.map_or(0, |file| file.blocks() * 512) <= 66 << 20);
    }
    small.sort();
    within(session.ended()).await.unwrap();
    let mut reader = session.read(Stream::Stdout, 0, Until::Exit);
    let (mut lost, mut seen) = (0, 0);
    loop {
        match within(reader.next()).await.unwrap() {
            Chunk::Output { bytes, .. } => {
                assert!(bytes.iter().all(|byte| *byte == b'x'));
                seen += bytes.len() as u64;
            }
            Chunk::Gap { offset, end } => lost += end - offset,
            Chunk::End { offset } => {
                assert_eq!(offset, BYTES);
                break;
            }
        }
    }
    assert_eq!(seen + lost, BYTES);
    assert!((50 << 20..=64 << 20).contains(&seen));
    println!(
        "{} MB/s; beside it {} commands, median {:?}, slowest {:?}; memory at most {} MiB",
        BYTES / 1_000 / u64::try_from(start.elapsed().as_millis()).unwrap(),
        small.len(),
        small.get(small.len() / 2),
        small.last(),
        status_kib("VmHWM") / 1024
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_way_of_a_command_is_short() {
    let (sandbox, pipes) = Sandbox::start();
    let (sessions, _guard) = open(&sandbox, Some(pipes)).await;
    let mut health = sessions.health();
    within(health.wait_for(|health| health.link == Link::Up))
        .await
        .unwrap();
    let mut times = Vec::new();
    for n in 0..300 {
        let at = now();
        let mut new = shell("");
        new.spec.argv = vec![b"/bin/true".to_vec()];
        new.spec.shell = None;
        let (outcome, _, _) = run(&sessions, &format!("t{n}"), new).await;
        assert_eq!(code(&outcome), 0);
        times.push(at.elapsed());
    }
    times.sort();
    println!(
        "true: median {:?}, best {:?}, p95 {:?}",
        times[150], times[0], times[285]
    );
    // 300 commands, though no more than 256 may be held at once: the holder was told to let go of each.
    assert_eq!(within(sessions.list()).await.unwrap().len(), 300);
}
