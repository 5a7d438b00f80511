//! The channel of a real holder: epochs, new pipes, hostile frames, fairness.

mod support;

use std::time::Duration;

use cloche_proto::frame::{DownKind, Hello, MAX_STREAM_BUFFER, SessionSpec, Stream, VERSION};
use support::{Sandbox, argv, eventually, shell};

/// Writes numbered lines for ever, fast.
const COUNT: &str = "exec seq -f 'line %.0f' 0 9999999999";

fn assert_lines(text: &str) {
    for (number, line) in text.lines().take(text.matches('\n').count()).enumerate() {
        assert_eq!(line, format!("line {number}"));
    }
}

#[test]
fn new_epochs_anywhere_lose_and_double_nothing() {
    let (_sandbox, mut agent) = Sandbox::start();
    agent.create("a", shell(COUNT));
    let mut round = 0;
    while round < 60 || agent.stdout("a").len() < 1_000_000 {
        round += 1;
        // Breaks off in the midst of frames: some of what was sent is read, some not.
        agent.pump(Duration::from_millis(round % 3));
        agent.hello();
        assert!(
            agent.ack.as_ref().unwrap().sessions[0].command_id == "a",
            "the session is known in every epoch"
        );
    }
    assert_lines(&agent.stdout("a"));
}

#[test]
fn agent_killed_and_restarted_goes_on_over_the_bridge() {
    let (sandbox, mut agent) = Sandbox::start();
    agent.create("a", shell(COUNT));
    agent.create("b", argv(&["sleep", "1000"]));
    for _ in 0..8 {
        agent.until("some output", |agent| agent.stdout("a").len() > 100_000);
        let before = agent.stdout("a").len();
        // Half a frame of the old agent's must not join on to the new one's.
        agent.raw(&[200, 0, 0, 0, 1, 2, 3]);
        agent = agent.die();
        agent = agent.over(sandbox.bridge());
        agent.hello();
        assert!(agent.reports["b"].exit.is_none());
        agent.until("more output", |agent| {
            agent.stdout("a").len() > before + 100_000
        });
    }
    assert_lines(&agent.stdout("a"));
    assert_eq!(agent.shell("c", "echo on").1, "on\n");
}

#[test]
fn command_blocks_while_nobody_reads_and_the_holder_is_idle() {
    let (sandbox, agent) = Sandbox::start();
    let mut agent = agent;
    agent.create("a", shell(COUNT));
    agent.create("full", shell("head -c 10000000 /dev/zero; echo end"));
    agent.until("output", |agent| !agent.stdout("a").is_empty());
    agent = agent.die();
    drop(agent);
    // Buffers fill, then nothing is left to be done; the dead channel's hang-up must not keep the loop turning.
    let mut last = sandbox.holder_ticks();
    eventually("the holder comes to rest", || {
        std::thread::park_timeout(Duration::from_millis(500));
        let now = sandbox.holder_ticks();
        let idle = now - last <= 1;
        last = now;
        idle
    });
}

#[test]
fn unacknowledged_output_is_bounded() {
    let (_sandbox, mut agent) = Sandbox::start();
    agent.acknowledge = false;
    agent.create("a", shell(COUNT));
    agent.until("a full buffer", |agent| {
        agent.stdout("a").len() >= MAX_STREAM_BUFFER
    });
    agent.settle(Duration::from_millis(300));
    assert_eq!(agent.stdout("a").len(), MAX_STREAM_BUFFER);
    agent.acknowledge = true;
    agent.hello();
    agent.until("more", |agent| {
        agent.stdout("a").len() > 2 * MAX_STREAM_BUFFER
    });
    assert_lines(&agent.stdout("a"));
}

#[test]
fn hostile_frames_end_the_channel_and_nothing_else() {
    let (sandbox, mut agent) = Sandbox::start();
    agent.create("a", shell("echo up; sleep 1000"));
    agent.until_stdout("a", "up");
    for garbage in [
        &[0xff, 0xff, 0xff, 0xff, 1, 2, 3][..],
        &[3, 0, 0, 0, 0xff, 0xff, 0xff],
        &[0; 4096],
    ] {
        agent.raw(garbage);
        agent = agent.over(sandbox.bridge());
        agent.hello();
        assert!(agent.reports["a"].exit.is_none());
    }
    // Well-formed nonsense changes nothing.
    agent.stdin("nobody", 0, b"x", true);
    agent.forget("nobody");
    agent.create("no id!", argv(&["true"]));
    agent.raw(&[2, 0, 0, 0, 0x7a, 0]);
    agent.send(DownKind::Hello(Hello {
        nonce: vec![1; 15],
        version: VERSION,
        held: Vec::new(),
    }));
    agent.ping();
    assert_eq!(agent.reports.len(), 1);
    assert_eq!(agent.shell("b", "echo on").1, "on\n");
}

#[test]
fn flood_starves_nobody() {
    let (_sandbox, mut agent) = Sandbox::start();
    for flood in 0..4 {
        agent.create(&format!("flood{flood}"), shell("exec cat /dev/zero"));
    }
    agent.create(
        "echo",
        SessionSpec {
            stdin: true,
            ..argv(&["cat"])
        },
    );
    agent.until("a flood", |agent| {
        agent.stdout("flood3").len() > MAX_STREAM_BUFFER
    });
    for number in 0..20u64 {
        let from = agent.frames.len();
        agent.ping();
        // What was under way in pipe and outbox, and a round or two of the floods.
        let between: usize = agent.frames[from..].iter().map(|(_, size)| size).sum();
        assert!(
            between < 8 * 1024 * 1024,
            "{between} bytes of the floods came before a pong"
        );
        agent.stdin("echo", number * 4, b"abc\n", false);
        let wanted = usize::try_from((number + 1) * 4).unwrap();
        agent.until("the echo", |agent| {
            agent
                .output
                .get(&("echo".to_owned(), Stream::Stdout as i32))
                .is_some_and(|data| data.len() == wanted)
        });
    }
}

#[test]
fn frames_before_a_hello_do_not_count() {
    let (_sandbox, mut agent) = Sandbox::start_silent();
    agent.create("early", shell("echo never"));
    agent.hello();
    agent.ping();
    assert!(agent.reports.is_empty());
}
