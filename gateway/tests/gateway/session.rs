//! Sessions as the agent speaks of them, and logs.

use crate::support::agent::pattern;
use crate::support::reach::{Reach, Socket};
use crate::support::{DEMO, Stage, in_time};
use cloche_proto::agent::v1alpha1 as pb;
use cloche_proto::agent::v1alpha1::session_request::Kind as In;
use cloche_proto::agent::v1alpha1::session_response::Kind as Out;
use cloche_proto::{SESSION_MESSAGE, SESSION_PROTOCOL};
use http_body_util::BodyExt as _;
use prost::Message as _;
use serde_json::Value;
use tokio_tungstenite::tungstenite::Message;

async fn socket(reach: &Reach, subresource: &str) -> Socket {
    let path = format!("{DEMO}/{subresource}");
    let socket = reach.socket(&path, SESSION_PROTOCOL).await;
    socket.expect("an upgrade")
}

fn request(kind: In) -> Vec<u8> {
    pb::SessionRequest { kind: Some(kind) }.encode_to_vec()
}

fn open(id: &str, argv: &[&str]) -> pb::Open {
    let argv = argv.iter().map(|word| word.as_bytes().to_vec()).collect();
    pb::Open {
        command_id: id.into(),
        command: Some(pb::Command {
            argv,
            ..pb::Command::default()
        }),
        ..pb::Open::default()
    }
}

/// The next message of either kind; `None` at the end.
async fn next(socket: &mut Socket) -> Option<Result<Out, Value>> {
    Some(match socket.next().await? {
        Message::Binary(data) => Ok(pb::SessionResponse::decode(data).unwrap().kind.unwrap()),
        other => Err(serde_json::from_str(other.to_text().unwrap()).unwrap()),
    })
}

/// The reason of the refusal that comes next.
async fn refused(socket: &mut Socket) -> String {
    loop {
        if let Err(status) = next(socket).await.expect("a refusal") {
            assert_eq!(status["kind"], "Status");
            assert!(next(socket).await.is_none(), "it is the last");
            return status["reason"].as_str().unwrap().to_owned();
        }
    }
}

#[tokio::test]
async fn messages_are_handed_on() {
    let stage = Stage::set().await;
    in_time(async {
        let mut socket = socket(&stage.as_front_proxy(), "exec").await;
        let mut open = open("one", &["cat"]);
        open.stdin = true;
        // Of another sandbox, which is not believed.
        open.key = Some(pb::SandboxKey {
            namespace: "other".into(),
            name: "other".into(),
        });
        socket.say(request(In::Open(open))).await;
        let opened = next(&mut socket).await.unwrap().unwrap();
        let wanted = pb::Opened {
            command_id: "one".into(),
            created: true,
            stdin_offset: Some(0),
            input: 1,
        };
        assert_eq!(opened, Out::Opened(wanted));
        let stdin = pb::Stdin {
            offset: 0,
            data: b"hello".to_vec(),
            end: true,
        };
        socket.say(request(In::Stdin(stdin))).await;
        let mut stdout = Vec::new();
        let exit = loop {
            match next(&mut socket).await.unwrap().unwrap() {
                Out::Output(output) => stdout.extend(output.data),
                Out::Exit(exit) => break exit,
                _ => {}
            }
        };
        assert_eq!((&stdout[..], exit.code), (&b"hello"[..], 0));
        assert!(next(&mut socket).await.is_none());
        let command = stage.agent.node.command("one").unwrap();
        assert_eq!((&*command.key.name, &*command.uid), ("demo", "uid-demo"));
    })
    .await;
}

#[tokio::test]
async fn each_subresource_does_its_own() {
    let stage = Stage::set().await;
    in_time(async {
        let reach = stage.as_front_proxy();
        let attach = pb::Open {
            command_id: "x".into(),
            ..pb::Open::default()
        };
        for (subresource, first, reason) in [
            ("exec", In::Open(attach.clone()), "BadRequest"),
            ("attach", In::Open(open("x", &["echo", "hi"])), "BadRequest"),
            ("attach", In::Open(attach), "NotFound"),
            ("exec", In::Kill(pb::Kill {}), "BadRequest"),
        ] {
            let mut socket = socket(&reach, subresource).await;
            socket.say(request(first)).await;
            assert_eq!(refused(&mut socket).await, reason, "{subresource}");
        }
        assert_eq!(stage.agent.node.begun(), 0);
    })
    .await;
}

#[tokio::test]
async fn nonsense_is_refused() {
    let stage = Stage::set().await;
    in_time(async {
        let reach = stage.as_front_proxy();
        for nonsense in [
            Message::Binary(vec![0xff; 20].into()),
            Message::Text("{}".into()),
        ] {
            let mut socket = socket(&reach, "exec").await;
            socket.try_say(nonsense.clone()).await;
            assert_eq!(refused(&mut socket).await, "BadRequest");
            let mut socket = super::session::socket(&reach, "exec").await;
            socket.say(request(In::Open(open("s", &["sleep"])))).await;
            next(&mut socket).await.unwrap().unwrap();
            socket.try_say(nonsense).await;
            assert_eq!(refused(&mut socket).await, "BadRequest");
        }
        let mut socket = socket(&reach, "exec").await;
        let huge = Message::Binary(vec![0; SESSION_MESSAGE + 1].into());
        socket.try_say(huge).await;
        while socket.next().await.is_some() {}
    })
    .await;
}

#[tokio::test]
async fn a_lost_agent_and_a_stop_are_told_for_the_client_to_come_back() {
    let stage = Stage::set().await;
    in_time(async {
        let reach = stage.as_front_proxy();
        let mut session = socket(&reach, "exec").await;
        session.say(request(In::Open(open("s", &["sleep"])))).await;
        next(&mut session).await.unwrap().unwrap();
        stage.agent.kill();
        assert_eq!(refused(&mut session).await, "ServiceUnavailable");
        let mut away = socket(&reach, "attach").await;
        let attach = || {
            request(In::Open(pb::Open {
                command_id: "s".into(),
                ..pb::Open::default()
            }))
        };
        away.say(attach()).await;
        assert_eq!(refused(&mut away).await, "ServiceUnavailable");
        stage.agent.come_back();
        let mut session = socket(&reach, "attach").await;
        session.say(attach()).await;
        next(&mut session).await.unwrap().unwrap();
        stage.stop.now.cancel();
        assert_eq!(refused(&mut session).await, "ServiceUnavailable");
        drop((session, away));
        stage.gateway.await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_a_client_asked_last_reaches_the_agent() {
    let stage = Stage::set().await;
    in_time(async {
        let mut socket = socket(&stage.as_front_proxy(), "exec").await;
        socket.say(request(In::Open(open("s", &["sleep"])))).await;
        next(&mut socket).await.unwrap().unwrap();
        let signal = pb::SendSignal { number: 15 };
        socket.say(request(In::Signal(signal))).await;
        socket.try_say(Message::Close(None)).await;
        drop(socket);
        stage
            .agent
            .node
            .until("s", |command| command.signals == [15])
            .await;
    })
    .await;
}

#[tokio::test]
async fn logs_are_read_as_bytes_and_as_messages() {
    let stage = Stage::set().await;
    in_time(async {
        let reach = stage.as_front_proxy();
        for (id, argv) in [("f", &["fail", "3"][..]), ("l", &["flood", "300000"])] {
            let mut socket = socket(&reach, "exec").await;
            socket.say(request(In::Open(open(id, argv)))).await;
            while next(&mut socket).await.is_some() {}
        }
        let log = |query: &str| format!("{DEMO}/log?{query}");
        for (query, wanted) in [
            ("commandId=f", b"it failed\n".to_vec()),
            ("commandId=f&stream=stdout", Vec::new()),
            ("commandId=l", pattern(300_000)),
            ("commandId=l&follow=true&stream=stdout", pattern(300_000)),
            (
                "commandId=l&tailBytes=5",
                pattern(300_000)[299_995..].to_vec(),
            ),
        ] {
            let (code, body, is_whole) = reach.get(&log(query)).await;
            assert_eq!((code, is_whole), (200, true), "{query}");
            assert!(body == wanted, "{query}");
        }
        let mut messages = socket(&reach, "log?commandId=f&stream=stderr").await;
        let begin = pb::Gap {
            stream: pb::Stream::Stderr.into(),
            offset: 0,
            end: 0,
        };
        assert_eq!(next(&mut messages).await, Some(Ok(Out::Gap(begin))));
        let output = pb::Output {
            stream: pb::Stream::Stderr.into(),
            offset: 0,
            data: b"it failed\n".to_vec(),
        };
        assert_eq!(next(&mut messages).await, Some(Ok(Out::Output(output))));
        let exit = next(&mut messages).await.unwrap().unwrap();
        assert!(matches!(exit, Out::Exit(exit) if exit.code == 3));
        assert!(next(&mut messages).await.is_none());
    })
    .await;
}

#[tokio::test]
async fn a_log_that_is_followed_goes_on_after_a_restart() {
    let stage = Stage::set().await;
    in_time(async {
        let reach = stage.as_front_proxy();
        let mut cat = socket(&reach, "exec").await;
        let mut cat_open = open("c", &["cat"]);
        cat_open.stdin = true;
        cat.say(request(In::Open(cat_open))).await;
        let stdin = |offset, data: &[u8], end| {
            let data = data.to_vec();
            request(In::Stdin(pb::Stdin { offset, data, end }))
        };
        cat.say(stdin(0, b"one", false)).await;
        stage
            .agent
            .node
            .until("c", |command| command.stdin == b"one")
            .await;
        let response = reach
            .response("GET", &format!("{DEMO}/log?commandId=c&follow=true"))
            .await;
        let mut body = response.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first, "one");
        stage.agent.kill();
        assert_eq!(refused(&mut cat).await, "ServiceUnavailable");
        stage.agent.come_back();
        let mut cat = socket(&reach, "attach").await;
        let open = pb::Open {
            command_id: "c".into(),
            stdin: true,
            ..pb::Open::default()
        };
        cat.say(request(In::Open(open))).await;
        cat.say(stdin(3, b"two", true)).await;
        let rest = body.collect().await.unwrap().to_bytes();
        assert_eq!(rest, "two");
        let again = stage.agent.node.logs.lock().unwrap().pop().unwrap();
        // Of the other stream nothing had come: it goes on where it began all the same.
        assert_eq!(
            (again.stdout_offset, again.stderr_offset),
            (Some(3), Some(0))
        );
    })
    .await;
}
