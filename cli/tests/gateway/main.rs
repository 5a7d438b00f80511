//! `exec`, `attach` and `log` through a cluster's gateway: one WebSocket each, opened again where it breaks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

#[path = "../fake/mod.rs"]
mod fake;
mod server;

use std::io::{Read as _, Write as _};

use cloche_proto::agent::v1alpha1::StdinTaken;
use cloche_proto::agent::v1alpha1::session_request::Kind as Ask;
use cloche_proto::agent::v1alpha1::session_response::Kind as Reply;
use cloche_proto::{SESSION_MESSAGE, SESSION_PROTOCOL};
use nix::sys::signal::Signal;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use fake::{Done, pattern, program, signal};
use server::{Answer, Gateway, status};

const ROOT: &str = "/apis/subresources.cloche.dev/v1alpha1/namespaces/team/sandboxes/demo";

#[test]
fn exec_is_one_request() {
    let gateway = Gateway::start(|mut wire| async move {
        let open = wire.open().await;
        assert_eq!(
            open.command.as_ref().unwrap().argv,
            [b"ls", b"-l".as_slice()]
        );
        wire.opened(&open, 0).await;
        wire.output(0, b"out\xff").await;
        wire.exit(3).await;
    });
    let done = gateway.run(&["exec", "demo", "--", "ls", "-l"]);
    assert_eq!(
        (done.code, &done.stdout[..], done.stderr.as_str()),
        (3, &b"out\xff"[..], "")
    );
    assert_eq!(gateway.paths(), [format!("{ROOT}/exec")]);
}

#[test]
fn attach_follows_the_sandboxes_own_command() {
    let gateway = Gateway::start(|mut wire| async move {
        let open = wire.open().await;
        assert_eq!((open.command_id.as_str(), &open.command), ("main", &None));
        wire.opened(&open, 0).await;
        wire.output(0, b"out\n").await;
        wire.exit(0).await;
    });
    let done = gateway.run(&["attach", "demo"]);
    assert_eq!(
        (done.code, done.text(), done.stderr.as_str()),
        (0, "out\n", "")
    );
    assert_eq!(gateway.paths(), [format!("{ROOT}/attach")]);
}

/// A `cat` that breaks the connection at every `PART` bytes, in one of the ways in which it may break.
#[test]
fn a_broken_connection_loses_and_doubles_nothing() {
    const PART: usize = 100_000;
    const ALL: usize = 6 * PART + 12_345;
    let gateway = Gateway::start(|mut wire| async move {
        let open = wire.open().await;
        let from = wire.attempt * PART;
        assert_eq!(open.command.is_some(), wire.attempt == 0);
        let seen = usize::try_from(open.stdout_offset).unwrap();
        assert_eq!(
            seen,
            from.min(ALL),
            "what was written is not asked for again"
        );
        wire.opened(&open, from as u64).await;
        let mut at = from;
        while at < from + PART {
            let Some(Ask::Stdin(stdin)) = wire.next().await else {
                panic!("stdin expected");
            };
            assert_eq!(usize::try_from(stdin.offset).unwrap(), at);
            let room = from + PART - at;
            let echo = &stdin.data[..room.min(stdin.data.len())];
            // What was sent before comes once more: an agent may do that.
            assert!(wire.output(at, echo).await);
            assert!(wire.output(at, echo).await);
            at += echo.len();
            let taken = StdinTaken {
                offset: at as u64,
                ..StdinTaken::default()
            };
            assert!(wire.send(Reply::StdinTaken(taken)).await);
            if stdin.end && echo.len() == stdin.data.len() {
                assert_eq!(at, ALL);
                return wire.exit(0).await;
            }
        }
        match wire.attempt % 4 {
            0 => {
                wire.refuse(503, "ServiceUnavailable", "the agent restarts")
                    .await;
            }
            1 => wire.close(CloseCode::Away).await,
            2 => wire.close(CloseCode::Normal).await,
            // Read to its end first, so that nothing is reset under way.
            _ => wire.close(CloseCode::Error).await,
        }
    });
    let mut child = gateway.spawn(&["exec", "demo", "-i", "--", "cat"]);
    let mut stdin = child.stdin.take().unwrap();
    let input = pattern(ALL);
    let expected = input.clone();
    let writing = std::thread::spawn(move || stdin.write_all(&input));
    let done = Done::of(child.wait_with_output().unwrap());
    writing.join().unwrap().unwrap();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    assert!(done.stdout == expected, "{} bytes", done.stdout.len());
    let paths = gateway.paths();
    assert_eq!(paths.len(), 7);
    assert_eq!(paths[0], format!("{ROOT}/exec"));
    assert!(
        paths[1..]
            .iter()
            .all(|path| *path == format!("{ROOT}/attach"))
    );
}

#[test]
fn a_connection_that_is_cut_off_is_opened_again() {
    let gateway = Gateway::start_behind(
        // Also one that the apiserver cannot reach for a moment.
        |attempt| {
            (attempt == 1).then(|| Answer {
                code: 503,
                body: "error trying to reach service: connection refused".to_owned(),
            })
        },
        SESSION_PROTOCOL,
        |mut wire| async move {
            let open = wire.open().await;
            wire.opened(&open, 0).await;
            if wire.attempt == 0 {
                // And is gone.
                wire.output(0, b"one ").await;
            } else {
                assert_eq!(open.stdout_offset, 4);
                wire.output(4, b"two").await;
                wire.exit(7).await;
            }
        },
    );
    let done = gateway.run(&["exec", "demo", "--", "x"]);
    assert_eq!(
        (done.code, done.text(), done.stderr.as_str()),
        (7, "one two", "")
    );
    assert_eq!(gateway.paths().len(), 3);
}

#[test]
fn a_status_says_why_a_stream_ends() {
    for (code, reason, message, told) in [
        (
            404,
            "NotFound",
            "there is no command one",
            "there is no command one (`kubectl sandbox ls` shows the sandboxes that there are)",
        ),
        (409, "Conflict", "it is Pending", "it is Pending"),
        (500, "InternalError", "a bug\u{1b}", "a bug\u{fffd}"),
        (
            429,
            "TooManyRequests",
            "too many streams",
            "too many streams",
        ),
    ] {
        let gateway = Gateway::start(move |mut wire| async move {
            wire.open().await;
            wire.refuse(code, reason, message).await;
        });
        let done = gateway.run(&["exec", "demo", "--", "x"]);
        assert_eq!(done.code, 125);
        assert_eq!(
            done.stderr,
            format!("error: cannot run a command in sandbox demo: {told}\n")
        );
        assert_eq!(gateway.paths().len(), 1, "{reason}");
    }
}

#[test]
fn what_breaks_the_protocol_is_told() {
    for (message, told) in [
        (Message::binary(vec![0xff; 9]), "a message is no reply: "),
        (Message::text("hello"), "a text that is no Status"),
        (Message::text("{}"), "a text that is no Status"),
        (
            Message::binary(vec![0; SESSION_MESSAGE + 1]),
            "a message of more than 393216 bytes",
        ),
    ] {
        let message = message.clone();
        let gateway = Gateway::start(move |mut wire| {
            let message = message.clone();
            async move {
                wire.open().await;
                wire.raw(message).await;
                wire.close(CloseCode::Normal).await;
            }
        });
        let done = gateway.run(&["exec", "demo", "--", "x"]);
        assert_eq!(done.code, 125);
        let start = format!("error: cannot run a command in sandbox demo: a wrong answer: {told}");
        assert!(done.stderr.starts_with(&start), "{}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1);
    }
    let gateway = Gateway::start_behind(|_| None, "v9.session.cloche.dev", |_| async {});
    let done = gateway.run(&["exec", "demo", "--", "x"]);
    assert_eq!(done.code, 125);
    assert!(
        done.stderr
            .contains("it does not speak v1.session.cloche.dev"),
        "{}",
        done.stderr
    );
}

#[test]
fn an_upgrade_that_is_refused_says_what_to_do() {
    let forbidden = "sandboxes.subresources.cloche.dev \"demo\" is forbidden: User \"joe\" cannot get resource \"sandboxes/exec\"";
    for (code, body, told) in [
        (403, status(403, "Forbidden", forbidden), format!("{forbidden} (a Role that allows it can be given by an administrator)")),
        (401, status(401, "Unauthorized", "Unauthorized"), "the cluster does not know who you are (Unauthorized): log in again, or choose another --context".to_owned()),
        (404, "404 page not found\n".to_owned(), "the cluster has no API subresources.cloche.dev, which Cloche's gateway serves: install the chart cloche".to_owned()),
        (404, status(404, "NotFound", "there is no sandbox demo"), "there is no sandbox demo (`kubectl sandbox ls` shows the sandboxes that there are)".to_owned()),
    ] {
        let gateway = Gateway::refusing(code, &body);
        for (args, operation) in [
            (&["exec", "demo", "--", "x"][..], "run a command in sandbox demo"),
            (&["log", "demo"], "read the log of sandbox demo"),
        ] {
            let done = gateway.run(args);
            assert_eq!(done.code, if args[0] == "log" { 1 } else { 125 });
            assert_eq!(done.stderr, format!("error: cannot {operation}: {told}\n"));
        }
        assert_eq!(gateway.paths().len(), 2, "{code}");
    }
    let gateway = Gateway::refusing(503, "service unavailable\n");
    let done = gateway.run(&["exec", "demo", "--", "x"]);
    assert_eq!(done.code, 125);
    assert_eq!(
        // After some seconds.
        done.stderr.split_inclusive('\n').next_back().unwrap(),
        "error: no gateway of Cloche answers the apiserver (service unavailable): \
         see `kubectl get apiservice v1alpha1.subresources.cloche.dev`\n"
    );
}

#[test]
fn a_gateway_that_is_replaced_is_waited_for() {
    let gateway = Gateway::start_behind(
        |attempt| {
            (attempt % 4 < 3).then(|| Answer {
                code: 503,
                body: "error trying to reach service: connection refused".to_owned(),
            })
        },
        SESSION_PROTOCOL,
        |mut wire| async move {
            if wire.attempt == 3 {
                let open = wire.open().await;
                assert!(open.command.is_some());
                wire.opened(&open, 0).await;
                wire.exit(0).await;
            } else {
                wire.output(0, b"log").await;
                wire.close(CloseCode::Normal).await;
            }
        },
    );
    let done = gateway.run(&["exec", "demo", "--", "x"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let done = gateway.run(&["log", "demo"]);
    assert_eq!((done.code, done.text()), (0, "log"));
    assert_eq!(gateway.paths().len(), 8);
}

#[test]
fn an_agent_that_is_away_at_first_is_waited_for() {
    let gateway = Gateway::start_behind(
        |attempt| {
            (attempt < 3).then(|| Answer {
                code: 503,
                body: status(
                    503,
                    "ServiceUnavailable",
                    "the agent of node one is not heard",
                ),
            })
        },
        SESSION_PROTOCOL,
        |mut wire| async move {
            let open = wire.open().await;
            // It was never heard that it was run.
            assert!(open.command.is_some());
            wire.opened(&open, 0).await;
            wire.exit(0).await;
        },
    );
    assert_eq!(gateway.run(&["exec", "demo", "--", "x"]).code, 0);
    assert_eq!(gateway.paths(), vec![format!("{ROOT}/exec"); 4]);
}

#[test]
fn a_user_who_leaves_has_the_command_killed() {
    let (sender, asked) = std::sync::mpsc::channel();
    let gateway = Gateway::start(move |mut wire| {
        let sender = sender.clone();
        async move {
            let open = wire.open().await;
            wire.opened(&open, 0).await;
            wire.output(0, b"x").await;
            while let Some(ask) = wire.next().await {
                sender.send(ask).unwrap();
            }
        }
    });
    let mut child = gateway.spawn(&["exec", "demo", "--", "x"]);
    let mut first = [0];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    for _ in 0..3 {
        signal(&child, Signal::SIGINT);
        // Two at once would be one.
        asked.recv_timeout(fake::DEADLINE).unwrap();
    }
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!(done.code, 130);
    let rest: Vec<Ask> = asked.try_iter().collect();
    assert!(
        rest.iter().any(|ask| matches!(ask, Ask::Kill(_))),
        "{rest:?}"
    );
}

#[test]
fn a_sign_of_life_is_answered() {
    let gateway = Gateway::start(|mut wire| async move {
        use futures::StreamExt as _;
        let open = wire.open().await;
        wire.opened(&open, 0).await;
        wire.raw(Message::Ping("alive?".into())).await;
        let pong = wire.socket.next().await.unwrap().unwrap();
        assert_eq!(pong, Message::Pong("alive?".into()));
        wire.exit(0).await;
    });
    assert_eq!(gateway.run(&["exec", "demo", "--", "x"]).code, 0);
}

#[test]
fn logs() {
    let gateway = Gateway::start(|mut wire| async move {
        match wire.attempt {
            0 => {
                wire.output(0, b"one ").await;
                wire.refuse(503, "ServiceUnavailable", "this gateway stops")
                    .await;
            }
            1 => {
                wire.output(0, b"one two").await;
                wire.close(CloseCode::Normal).await;
            }
            _ => {
                wire.output(900, b"tail").await;
                wire.close(CloseCode::Normal).await;
            }
        }
    });
    let done = gateway.run(&["log", "demo", "-f"]);
    assert_eq!(
        (done.code, done.text(), done.stderr.as_str()),
        (0, "one two", "")
    );
    let done = gateway.run(&["log", "demo", "--command-id", "one", "--tail-bytes", "4"]);
    assert_eq!(
        (done.code, done.text(), done.stderr.as_str()),
        (0, "tail", "")
    );
    assert_eq!(
        gateway.paths(),
        [
            format!("{ROOT}/log?follow=true"),
            format!("{ROOT}/log?follow=true&stdoutOffset=4&stderrOffset=0"),
            format!("{ROOT}/log?commandId=one&tailBytes=4"),
        ]
    );
}

/// Also of a stream of which nothing has come yet.
#[test]
fn the_tail_of_a_log_goes_on_where_it_began() {
    let gateway = Gateway::start(|mut wire| async move {
        if wire.attempt == 0 {
            wire.begins(900, 50).await;
            wire.output(900, b"tail").await;
            wire.refuse(503, "ServiceUnavailable", "this gateway stops")
                .await;
        } else {
            wire.begins(904, 50).await;
            wire.output(904, b" and on").await;
            wire.close(CloseCode::Normal).await;
        }
    });
    let done = gateway.run(&["log", "demo", "-f", "--tail-bytes", "4"]);
    assert_eq!(
        (done.code, done.text(), done.stderr.as_str()),
        (0, "tail and on", "")
    );
    assert_eq!(
        gateway.paths(),
        [
            format!("{ROOT}/log?follow=true&tailBytes=4"),
            format!("{ROOT}/log?follow=true&tailBytes=4&stdoutOffset=904&stderrOffset=50"),
        ]
    );
}

#[test]
fn a_proxy_stands_between() {
    let gateway = Gateway::start(|mut wire| async move {
        let open = wire.open().await;
        wire.opened(&open, 0).await;
        wire.exit(3).await;
    });
    let config = std::fs::read_to_string(gateway.kubeconfig()).unwrap();
    let (address, proxied) = server::proxy();
    let with = |proxy: &str| {
        let proxied = config.replace(
            "\"server\"",
            &format!("\"proxy-url\":\"{proxy}\",\"server\""),
        );
        std::fs::write(gateway.kubeconfig(), proxied).unwrap();
        gateway.run(&["exec", "demo", "--", "x"])
    };
    let done = with(&format!("http://joe:pass@{address}"));
    assert_eq!((done.code, done.stderr.as_str()), (3, ""));
    let asked = proxied.join().unwrap();
    assert!(asked.starts_with("CONNECT 127.0.0.1:"), "{asked}");
    assert!(
        asked
            .to_lowercase()
            .contains("proxy-authorization: basic am9lonbhc3m="),
        "{asked}"
    );
    let done = with("socks5://127.0.0.1:1");
    assert!(
        done.stderr.contains("only http:// is supported"),
        "{}",
        done.stderr
    );

    // The environment's is not for what is on this machine.
    std::fs::write(gateway.kubeconfig(), &config).unwrap();
    let mut command = gateway.command(&["exec", "demo", "--", "x"]);
    command
        .env("HTTPS_PROXY", "http://127.0.0.1:1")
        .env("HTTP_PROXY", "http://127.0.0.1:1");
    assert_eq!(Done::of(command.output().unwrap()).code, 3);
}

#[test]
fn a_cluster_that_cannot_be_used_says_why() {
    let nobody = tempfile::tempdir().unwrap();
    let run = |env: &[(&str, &str)], args: &[&str]| {
        let mut command = program();
        command.env("HOME", nobody.path()).envs(env.iter().copied());
        Done::of(command.args(args).output().unwrap())
    };
    let done = run(&[], &["ls"]);
    assert_eq!(done.code, 1);
    assert!(
        done.stderr
            .starts_with("error: no cluster and no agent given: there is no kubeconfig"),
        "{}",
        done.stderr
    );
    let done = run(
        &[("KUBECONFIG", "/nowhere/config")],
        &["exec", "demo", "--", "x"],
    );
    assert_eq!(done.code, 125, "{}", done.stderr);
    let done = run(&[], &["--context", "x", "ls"]);
    assert!(
        done.stderr
            .contains("choose from a kubeconfig, and there is none"),
        "{}",
        done.stderr
    );
    let done = run(&[], &["--kubeconfig", "/nowhere/config", "ls"]);
    assert!(
        done.stderr
            .starts_with("error: cannot use the kubeconfig: failed to read"),
        "{}",
        done.stderr
    );
    let done = run(&[], &["--as-group", "x", "ls"]);
    assert!(
        done.stderr.contains("--as-group: say by --as"),
        "{}",
        done.stderr
    );
    let done = run(
        &[("CLOCHE_STANDALONE", "/nowhere")],
        &["--context", "x", "ls"],
    );
    assert!(
        done.stderr.contains("--context is of a cluster"),
        "{}",
        done.stderr
    );

    let address = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let config = nobody.path().join("config");
    std::fs::write(&config, server::kubeconfig(address)).unwrap();
    let config = config.to_str().unwrap();
    for args in [
        &["ls"][..],
        &["exec", "demo", "--", "x"],
        &["log", "demo"],
        &["wait", "demo", "--for=ready"],
    ] {
        let done = run(&[("KUBECONFIG", config)], args);
        let start = format!("error: cannot reach the cluster at http://{address}/: ");
        assert!(done.stderr.starts_with(&start), "{}", done.stderr);
        assert!(
            done.stderr.contains("Connection refused"),
            "{}",
            done.stderr
        );
    }
    let done = run(&[("KUBECONFIG", config)], &["--context", "other", "ls"]);
    assert!(
        done.stderr
            .contains("failed to load current context: other"),
        "{}",
        done.stderr
    );
    std::fs::write(config, "{}").unwrap();
    let done = run(&[("KUBECONFIG", config)], &["ls"]);
    assert!(
        done.stderr
            .contains("the kubeconfig has no current context"),
        "{}",
        done.stderr
    );
}
