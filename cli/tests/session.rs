//! `exec` against an agent that plays its part on a real socket: every byte, over breaks and restarts.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod fake;

use std::io::{BufRead as _, Read as _, Write as _};
use std::process::Stdio;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cloche_proto::agent::v1alpha1::session_request::Kind as Ask;
use cloche_proto::agent::v1alpha1::session_response::Kind as Reply;
use cloche_proto::agent::v1alpha1::{Exit, Gap, StdinTaken, Stream};
use nix::sys::signal::Signal;
use tonic::Status;

use fake::{DEADLINE, Done, Fake, pattern, program, signal};

const EXEC: [&str; 4] = ["exec", "demo", "--", "true"];

#[test]
fn output_and_code_are_exact() {
    let fake = Fake::start(|mut wire| async move {
        wire.opened(0).await;
        let data = pattern(3_000_000);
        let mut offset = 0;
        for piece in data.chunks(77_777) {
            wire.output(Stream::Stdout, offset, piece).await;
            wire.output(Stream::Stderr, offset / 77_777, b"e").await;
            offset += piece.len();
        }
        wire.exit(7).await;
    });
    let done = fake.run(&EXEC);
    assert_eq!(done.code, 7);
    assert!(done.stdout == pattern(3_000_000));
    assert_eq!(done.stderr, "e".repeat(39));
}

#[test]
fn a_broken_stream_goes_on_at_the_next_byte() {
    let fake = Fake::start(|mut wire| async move {
        let data = pattern(1_000_000);
        let from = usize::try_from(wire.open.stdout_offset).unwrap();
        assert_eq!(
            wire.open.command.is_some(),
            wire.attempt == 0,
            "run once, then attached to"
        );
        wire.opened(0).await;
        match wire.attempt {
            // Breaks in three ways.
            0 => {
                wire.output(Stream::Stdout, 0, &data[..400_000]).await;
            }
            1 => {
                wire.output(Stream::Stdout, from, &data[from..from + 100_000])
                    .await;
                wire.fail(Status::unavailable("restarting")).await;
            }
            2 => {
                assert_eq!(from, 500_000);
                // Sends some of it again, all the same.
                wire.output(Stream::Stdout, from - 1000, &data[from - 1000..from + 1000])
                    .await;
                panic!("on purpose: the handler dies");
            }
            _ => {
                wire.output(Stream::Stdout, from, &data[from..]).await;
                wire.exit(0).await;
            }
        }
    });
    let done = fake.run(&EXEC);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    assert!(done.stdout == pattern(1_000_000));
}

#[test]
fn a_restarted_agent_is_a_pause_for_output_and_stdin() {
    // What the command got, as the log on the node would keep it.
    let taken = Arc::new(Mutex::new(Vec::<u8>::new()));
    let (told, half) = mpsc::channel();
    let told = Mutex::new(told);
    let input = pattern(3_000_000);
    let mut fake = Fake::start({
        let taken = Arc::clone(&taken);
        let input = input.clone();
        move |mut wire| {
            let (taken, told, input) = (
                Arc::clone(&taken),
                told.lock().unwrap().clone(),
                input.clone(),
            );
            async move {
                let start = taken.lock().unwrap().len();
                wire.opened(start as u64).await;
                let mut echoed = usize::try_from(wire.open.stdout_offset).unwrap();
                while let Some(ask) = wire.next().await {
                    let Ask::Stdin(stdin) = ask else {
                        panic!("only stdin is expected");
                    };
                    let (offset, length) = {
                        let mut taken = taken.lock().unwrap();
                        assert_eq!(stdin.offset, taken.len() as u64, "in order, nothing twice");
                        taken.extend(&stdin.data);
                        (stdin.offset, taken.len())
                    };
                    assert!(length as u64 - offset <= 64 << 10, "bounded messages");
                    // Echoes, and acknowledges late: the window must cover the rest.
                    wire.output(Stream::Stdout, echoed, &input[echoed..length])
                        .await;
                    echoed = length;
                    let acknowledged = length.saturating_sub(700_000).max(start) as u64;
                    wire.send(Reply::StdinTaken(StdinTaken {
                        offset: acknowledged,
                        ..StdinTaken::default()
                    }))
                    .await;
                    if wire.attempt == 0 && length > 1_500_000 {
                        told.send(()).unwrap();
                        std::future::pending::<()>().await;
                    }
                    if stdin.end {
                        wire.exit(0).await;
                        return;
                    }
                }
            }
        }
    });
    let mut child = fake.spawn(&["exec", "-i", "demo", "--", "cat"]);
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn({
        let input = input.clone();
        move || stdin.write_all(&input).unwrap()
    });
    let waiter = std::thread::spawn(move || Done::of(child.wait_with_output().unwrap()));
    half.recv_timeout(DEADLINE).unwrap();
    fake.kill();
    fake.restart();
    writer.join().unwrap();
    let done = waiter.join().unwrap();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let differs = done
        .stdout
        .iter()
        .zip(&input)
        .position(|(left, right)| left != right);
    assert!(
        done.stdout == input,
        "{} bytes of {}, other from {differs:?}",
        done.stdout.len(),
        input.len()
    );
    assert!(*taken.lock().unwrap() == input);
}

#[test]
fn an_agent_that_hangs_up_with_the_end_loses_nothing() {
    let fake = Fake::start(|wire| async move {
        let from = usize::try_from(wire.open.stdout_offset).unwrap();
        wire.opened(0).await;
        wire.output(Stream::Stdout, from, &pattern(5000)[from..])
            .await;
        // And drops both directions at once, so that the reset may overtake the end.
        let code = 4;
        wire.send(Reply::Exit(Exit {
            code,
            ..Exit::default()
        }))
        .await;
    });
    for _ in 0..30 {
        let done = fake.run(&EXEC);
        assert_eq!((done.code, done.stderr.as_str()), (4, ""));
        assert!(done.stdout == pattern(5000));
    }
}

#[test]
fn output_that_waits_for_its_reader_outlives_the_connection() {
    const ALL: usize = 6_000_000;
    let (told, stalled) = mpsc::channel();
    let told = Mutex::new(told);
    let mut fake = Fake::start(move |mut wire| {
        let told = told.lock().unwrap().clone();
        async move {
            wire.opened(0).await;
            let data = pattern(ALL);
            let mut offset = usize::try_from(wire.open.stdout_offset).unwrap();
            for piece in data[offset..].chunks(30_000) {
                let sent = wire.output(Stream::Stdout, offset, piece);
                if wire.attempt > 0 {
                    assert!(sent.await);
                } else if tokio::time::timeout(Duration::from_millis(300), sent)
                    .await
                    .is_err()
                {
                    told.send(()).unwrap();
                    std::future::pending::<()>().await;
                }
                offset += piece.len();
            }
            wire.exit(0).await;
        }
    });
    let mut child = fake.spawn(&["exec", "-i", "demo", "--", "cat"]);
    stalled.recv_timeout(DEADLINE).unwrap();
    fake.kill();
    // Something to send, by which the loss of the connection is noticed while output still waits.
    child.stdin.take().unwrap().write_all(b"x").unwrap();
    fake.restart();
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    assert_eq!(done.stdout.len(), ALL);
    assert!(done.stdout == pattern(ALL));
}

#[test]
fn lost_output_is_told() {
    let fake = Fake::start(|mut wire| async move {
        wire.opened(0).await;
        wire.output(Stream::Stdout, 0, b"ab").await;
        wire.send(Reply::Gap(Gap {
            stream: Stream::Stdout.into(),
            offset: 2,
            end: 12,
        }))
        .await;
        wire.output(Stream::Stdout, 12, b"cd").await;
        wire.exit(0).await;
    });
    let done = fake.run(&EXEC);
    assert_eq!((done.code, done.text()), (0, "abcd"));
    assert_eq!(
        done.stderr,
        "kubectl-sandbox: 10 bytes of standard output are lost: they are no longer kept\n"
    );
}

#[test]
fn lost_output_is_told_also_to_a_reader_that_is_slow() {
    const PIECES: usize = 200;
    const PIECE: usize = 30_000;
    let (told, stalled) = mpsc::channel();
    let told = Mutex::new(told);
    let fake = Fake::start(move |mut wire| {
        let told = told.lock().unwrap().clone();
        async move {
            wire.opened(0).await;
            // As an agent does whose log was cut under a slow reader: a gap before every piece.
            for piece in 0..PIECES {
                let from = piece * (PIECE + 1);
                let gap = Reply::Gap(Gap {
                    stream: Stream::Stdout.into(),
                    offset: from as u64,
                    end: from as u64 + 1,
                });
                let sent = async {
                    wire.send(gap).await
                        && wire
                            .output(Stream::Stdout, from + 1, &b"x".repeat(PIECE))
                            .await
                };
                tokio::pin!(sent);
                if tokio::time::timeout(Duration::from_millis(300), &mut sent)
                    .await
                    .is_err()
                {
                    told.send(()).unwrap();
                    sent.await;
                }
            }
            wire.exit(0).await;
        }
    });
    let child = fake.spawn(&EXEC);
    // Nothing was read until all stands still.
    stalled.recv_timeout(DEADLINE).unwrap();
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!((done.code, done.stdout.len()), (0, PIECES * PIECE));
    assert_eq!(done.stderr.lines().count(), PIECES);
}

#[test]
fn ends_that_are_not_the_commands_own() {
    let ends = [
        Exit {
            code: 137,
            timed_out: true,
            duration_ms: 2000,
            ..Exit::default()
        },
        Exit {
            code: 137,
            sandbox_reason: "OOMKilled".into(),
            message: "over 64Mi".into(),
            ..Exit::default()
        },
        Exit {
            code: 127,
            message: "no such program".into(),
            ..Exit::default()
        },
    ];
    let fake = Fake::start(move |mut wire| {
        let end = ends[wire.attempt].clone();
        async move {
            wire.opened(0).await;
            wire.end(end).await;
        }
    });
    for (code, line) in [
        (
            124,
            "the command was killed after 2.0 s: its timeout was over",
        ),
        (
            137,
            "the command ended with sandbox demo: OOMKilled: over 64Mi",
        ),
        (127, "no such program"),
    ] {
        let done = fake.run(&EXEC);
        assert_eq!(done.code, code);
        assert_eq!(done.stderr, format!("kubectl-sandbox: {line}\n"));
    }
}

#[test]
fn refusals_are_one_line_and_125() {
    let fake = Fake::start(|wire| async move {
        wire.fail(Status::failed_precondition(
            "sandbox demo is Pending: wait for it",
        ))
        .await;
    });
    let done = fake.run(&EXEC);
    assert_eq!(done.code, 125);
    assert_eq!(
        done.stderr,
        "error: cannot run a command in sandbox demo: sandbox demo is Pending: wait for it\n"
    );

    let done = Done::of(program().args(EXEC).output().unwrap());
    assert_eq!(done.code, 125);
    assert!(
        done.stderr
            .starts_with("error: no cluster and no agent given: "),
        "{}",
        done.stderr
    );

    let done = Done::of(
        program()
            .args(["--standalone", "/nowhere/a.sock"])
            .args(EXEC)
            .output()
            .unwrap(),
    );
    assert_eq!(done.code, 125);
    assert_eq!(
        done.stderr,
        "error: cannot reach the agent at /nowhere/a.sock: No such file or directory (os error 2); \
         is `cloche-agent standalone` running, with this --socket?\n"
    );
}

#[test]
fn something_else_at_the_socket_can_be_left_at_once() {
    let fake = Fake::idle();
    let other = fake.directory().join("other.sock");
    let listener = std::os::unix::net::UnixListener::bind(&other).unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            stream.write_all(b"220 hello\r\n").ok();
            open.push(stream);
        }
    });
    let mut child = fake
        .command(&EXEC)
        .arg("more")
        .env("CLOCHE_STANDALONE", &other)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(
        line.starts_with("kubectl-sandbox: the agent does not answer"),
        "{line}"
    );
    signal(&child, Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn a_command_that_was_there_before_is_told() {
    let fake = Fake::start(|mut wire| async move {
        assert!(wire.open.command.is_some());
        wire.attached(0).await;
        wire.exit(3).await;
    });
    let done = fake.run(&["exec", "demo", "--command-id", "one", "--", "true"]);
    assert_eq!(done.code, 3);
    assert_eq!(
        done.stderr,
        "kubectl-sandbox: attached to command one, which was there already: the one given now is not run\n"
    );
    // A name that this program made up is nobody else's.
    let done = fake.run(&EXEC);
    assert_eq!(done.code, 125);
    assert!(
        done.stderr.contains("another command of the name exec-"),
        "{}",
        done.stderr
    );
}

#[test]
fn a_command_that_the_agent_forgot_is_not_run_again() {
    let fake = Fake::start(|wire| async move {
        if wire.open.command.is_some() {
            wire.opened(0).await;
        } else {
            wire.fail(Status::not_found("no such command")).await;
        }
    });
    let done = fake.run(&EXEC);
    assert_eq!(done.code, 125);
    assert!(done.stderr.contains("no such command"), "{}", done.stderr);
}

#[test]
fn an_interrupt_is_the_commands() {
    let (told, ready) = mpsc::channel();
    let told = Mutex::new(told);
    let fake = Fake::start(move |mut wire| {
        let told = told.lock().unwrap().clone();
        async move {
            wire.opened(0).await;
            // More than all buffers take, so that the program's standard output stands still.
            let mut offset = 0;
            let flood = vec![b'y'; 60_000];
            while offset < 8 << 20 {
                let sent = wire.output(Stream::Stdout, offset, &flood);
                match tokio::time::timeout(Duration::from_millis(300), sent).await {
                    Ok(sent) => assert!(sent),
                    Err(_) => break,
                }
                offset += flood.len();
            }
            told.send(()).unwrap();
            let Some(Ask::Signal(signal)) = wire.next().await else {
                panic!("a signal is expected");
            };
            wire.exit(128 + signal.number).await;
        }
    });
    let child = fake.spawn(&EXEC);
    ready.recv_timeout(DEADLINE).unwrap();
    signal(&child, Signal::SIGINT);
    // Only now is the output read.
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!((done.code, done.stderr.as_str()), (130, ""));
}

#[test]
fn a_user_who_insists_leaves_and_the_command_is_killed() {
    let (told, events) = mpsc::channel();
    let told = Mutex::new(told);
    let fake = Fake::start(move |mut wire| {
        let told = told.lock().unwrap().clone();
        async move {
            wire.opened(0).await;
            wire.output(Stream::Stdout, 0, b"x").await;
            while let Some(ask) = wire.next().await {
                let kill = matches!(ask, Ask::Kill(_));
                told.send(ask).unwrap();
                if kill {
                    wire.exit(137).await;
                }
            }
        }
    });
    let mut child = fake.spawn(&EXEC);
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    for _ in 0..3 {
        signal(&child, Signal::SIGTERM);
        let ask = events.recv_timeout(DEADLINE).unwrap();
        assert!(
            matches!(ask, Ask::Signal(signal) if signal.number == 15),
            "{ask:?}"
        );
    }
    assert!(matches!(
        events.recv_timeout(DEADLINE).unwrap(),
        Ask::Kill(_)
    ));
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!(done.code, 143);
    assert_eq!(
        done.stderr,
        "kubectl-sandbox: left before the command's end\n"
    );
}

#[test]
fn a_user_can_leave_while_nobody_reads_the_output() {
    let (told, ready) = mpsc::channel();
    let told = Mutex::new(told);
    let fake = Fake::start(move |mut wire| {
        let told = told.lock().unwrap().clone();
        async move {
            wire.opened(0).await;
            let flood = vec![b'y'; 60_000];
            let mut offset = 0;
            loop {
                tokio::select! {
                    sent = wire.output(Stream::Stdout, offset, &flood) => {
                        assert!(sent);
                        offset += flood.len();
                    }
                    () = tokio::time::sleep(Duration::from_millis(300)) => break,
                }
            }
            while let Some(ask) = wire.next().await {
                told.send(ask).unwrap();
            }
        }
    });
    let mut child = fake.spawn(&EXEC);
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    for _ in 0..3 {
        signal(&child, Signal::SIGTERM);
        let ask = ready.recv_timeout(DEADLINE).unwrap();
        assert!(matches!(ask, Ask::Signal(_)), "{ask:?}");
    }
    assert_eq!(child.wait().unwrap().code(), Some(143));
    drop(stdout);
}

#[test]
fn a_closed_stdout_is_quiet_and_ends_the_command() {
    let (told, signals) = mpsc::channel();
    let told = Mutex::new(told);
    let fake = Fake::start(move |mut wire| {
        let told = told.lock().unwrap().clone();
        async move {
            wire.opened(0).await;
            let mut offset = 0;
            loop {
                tokio::select! {
                    ask = wire.next() => {
                        let Some(Ask::Signal(signal)) = ask else { panic!("a signal is expected") };
                        told.send(signal.number).unwrap();
                        wire.exit(141).await;
                        return;
                    }
                    () = tokio::task::yield_now() => {
                        wire.output(Stream::Stdout, offset, b"yes\n").await;
                        offset += 4;
                    }
                }
            }
        }
    });
    let mut child = fake.spawn(&EXEC);
    let mut line = [0; 4];
    child.stdout.take().unwrap().read_exact(&mut line).unwrap();
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!((done.code, done.stderr.as_str()), (141, ""));
    assert_eq!(signals.recv_timeout(DEADLINE).unwrap(), 13);
}

#[test]
fn a_full_disk_under_stdout_is_an_error() {
    let fake = Fake::start(|mut wire| async move {
        wire.opened(0).await;
        let mut offset = 0;
        while wire.output(Stream::Stdout, offset, &[b'y'; 1000]).await && offset < 1 << 20 {
            offset += 1000;
        }
        wire.next().await;
        wire.exit(0).await;
    });
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let done = Done::of(fake.command(&EXEC).stdout(full).output().unwrap());
    assert_eq!(done.code, 125);
    assert_eq!(
        done.stderr,
        "error: cannot write to standard output: No space left on device (os error 28)\n"
    );
}

#[test]
fn a_client_whose_stdin_was_taken_over_says_so_and_reads_on() {
    let fake = Fake::start(|mut wire| async move {
        assert!(wire.open.stdin);
        wire.opened(0).await;
        wire.next().await;
        wire.send(Reply::StdinTaken(StdinTaken {
            closed: true,
            taken_over: true,
            ..StdinTaken::default()
        }))
        .await;
        wire.output(Stream::Stdout, 0, b"more").await;
        wire.exit(6).await;
    });
    let mut child = fake.spawn(&["exec", "-i", "demo", "--", "cat"]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"abc").unwrap();
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!((done.code, done.text()), (6, "more"));
    assert_eq!(
        done.stderr,
        "kubectl-sandbox: standard input was taken over by another client: none is passed on from here any more\n"
    );
}

#[test]
fn stdin_ends_where_the_command_takes_no_more() {
    let fake = Fake::start(|mut wire| async move {
        assert!(wire.open.stdin);
        wire.opened(0).await;
        wire.next().await;
        wire.send(Reply::StdinTaken(StdinTaken {
            offset: 3,
            closed: true,
            ..StdinTaken::default()
        }))
        .await;
        wire.exit(0).await;
    });
    let mut child = fake.spawn(&["exec", "-i", "demo", "--", "head", "-c3"]);
    child.stdin.as_mut().unwrap().write_all(b"abcdef").unwrap();
    // Its stdin stays open: only the command's end can end the program.
    let stdin = child.stdin.take();
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    drop(stdin);
}
