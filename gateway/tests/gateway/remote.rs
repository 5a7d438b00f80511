//! Commands in the remote-command protocol of Kubernetes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::agent::pattern;
use crate::support::reach::{Channels, Reach, Socket};
use crate::support::{DEMO, Stage, in_time};
use cloche_proto::agent::v1alpha1 as pb;
use futures::FutureExt as _;
use futures::future::join_all;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::Message;

const V5: &str = "v5.channel.k8s.io";
const V4: &str = "v4.channel.k8s.io";

async fn exec(reach: &Reach, query: &str) -> Socket {
    let path = format!("{DEMO}/exec?{query}");
    reach.socket(&path, V5).await.expect("an upgrade")
}

fn stdin(data: &[u8]) -> Vec<u8> {
    [&[0], data].concat()
}

#[tokio::test]
async fn a_command_runs_and_its_end_is_told() {
    let stage = Stage::set().await;
    in_time(async {
        let reach = stage.as_front_proxy();
        let heard = exec(&reach, "command=echo&command=hi").await.rest().await;
        assert_eq!(heard.stdout, b"hi\n");
        assert_eq!(heard.status.unwrap()["status"], "Success");

        let path = format!("{DEMO}/exec?command=fail&command=7");
        let heard = reach.socket(&path, V4).await.ok().unwrap().rest().await;
        assert_eq!(heard.stderr, b"it failed\n");
        let status = heard.status.unwrap();
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(
            status["details"]["causes"],
            json!([{"reason": "ExitCode", "message": "7"}])
        );

        let heard = exec(&reach, "command=refused").await.rest().await;
        let status = heard.status.unwrap();
        assert_eq!(
            (&status["reason"], &status["message"]),
            (&json!("BadRequest"), &json!("that is refused"))
        );
    })
    .await;
}

#[tokio::test]
async fn what_was_asked_for_reaches_the_agent() {
    let stage = Stage::set().await;
    in_time(async {
        let reach = stage.as_front_proxy();
        let query = "command=sleep&commandId=one&tty=true&rows=5&columns=6&user=7&cwd=src&env=A=b&timeoutSeconds=8";
        let mut socket = exec(&reach, query).await;
        let mut heard = Channels::default();
        socket.say(&b"\x04{\"Width\":132,\"Height\":40}"[..]).await;
        socket.channels(&mut heard, |heard| heard.stdout == b"40x132\n").await;
        let command = stage.agent.node.command("one").unwrap();
        let wanted = pb::Command {
            argv: vec![b"sleep".to_vec()],
            env: vec![b"A=b".to_vec()],
            cwd: "src".into(),
            user: "7".into(),
            terminal: Some(pb::TerminalSize { rows: 5, columns: 6 }),
            timeout_ms: 8000,
            ..pb::Command::default()
        };
        assert_eq!(command.asked, wanted);
        assert_eq!((&*command.key.namespace, &*command.key.name), ("team", "demo"));
        assert_eq!((&*command.uid, command.kill_on_detach_ms), ("uid-demo", 0));
        drop(socket);
        // It goes on, and can be joined.
        let path = format!("{DEMO}/attach?commandId=one");
        let mut socket = reach.socket(&path, V5).await.ok().unwrap();
        let mut heard = Channels::default();
        socket.channels(&mut heard, |heard| heard.stdout == b"40x132\n").await;

        let mut nameless = exec(&reach, "command=sleep&command=2").await;
        nameless.say(&b"\x04{\"Width\":1,\"Height\":1}"[..]).await;
        nameless.channels(&mut Channels::default(), |heard| !heard.stdout.is_empty()).await;
        let names = stage.agent.node.names();
        let name = names.iter().find(|name| name.starts_with("exec-")).unwrap();
        let command = stage.agent.node.command(name).unwrap();
        assert_eq!(command.kill_on_detach_ms, 120_000, "nobody could ask for it again");
    })
    .await;
}

#[tokio::test]
async fn stdin_reaches_the_command_and_so_does_its_end() {
    let stage = Stage::set().await;
    in_time(async {
        let mut socket = exec(&stage.as_front_proxy(), "command=cat&stdin=true").await;
        socket.say(stdin(b"one ")).await;
        let mut heard = Channels::default();
        socket
            .channels(&mut heard, |heard| heard.stdout == b"one ")
            .await;
        socket.say(stdin(b"two")).await;
        socket.say(&b"\xff\0"[..]).await;
        // Behind its end: goes nowhere.
        socket.say(stdin(b"three")).await;
        socket.channels(&mut heard, |_| false).await;
        assert_eq!(heard.stdout, b"one two");
        assert_eq!(heard.status.unwrap()["status"], "Success");
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_restarts_is_a_pause() {
    let stage = Stage::with(&[], true).await;
    in_time(async {
        let node = &stage.agent.node;
        let mut socket = exec(
            &stage.as_front_proxy(),
            "command=cat&commandId=c&stdin=true",
        )
        .await;
        let sent = pattern(900_000);
        let mut heard = Channels::default();
        for (turn, piece) in sent.chunks(30_000).enumerate() {
            socket.say(stdin(piece)).await;
            if turn % 5 == 2 {
                // Much of it is in the agent's memory alone, and some on the way.
                stage.agent.kill();
                socket.say(stdin(b"")).await;
                stage.agent.come_back();
                let wanted = turn * 30_000;
                let is_heard = |heard: &Channels| heard.stdout.len() + 70_000 > wanted;
                socket.channels(&mut heard, is_heard).await;
            }
        }
        stage.agent.kill();
        socket.say(&b"\xff\0"[..]).await;
        stage.agent.come_back();
        socket.channels(&mut heard, |_| false).await;
        assert_eq!(
            heard.status.as_ref().unwrap()["status"],
            "Success",
            "{:?}",
            heard.status
        );
        assert!(
            heard.stdout == sent,
            "{} bytes of {}",
            heard.stdout.len(),
            sent.len()
        );
        assert!(node.command("c").unwrap().stdin == sent);
        assert_eq!(node.begun(), 1, "no command runs twice");
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_asks_to_wait_keeps_its_connection() {
    let stage = Stage::set().await;
    in_time(async {
        let heard = exec(&stage.as_front_proxy(), "command=busy")
            .await
            .rest()
            .await;
        assert_eq!(heard.status.unwrap()["status"], "Success");
        assert_eq!(stage.agent.node.busy.load(Ordering::SeqCst), 0);
        assert_eq!(stage.agent.connections.load(Ordering::SeqCst), 1);
    })
    .await;
}

#[tokio::test]
async fn who_waits_for_a_silent_node_waits_together() {
    let stage = Stage::set().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    stage.cluster.put_node("silent", &address);
    let running = json!({"phase": "Running", "nodeName": "silent"});
    stage.cluster.put_sandbox("team", "there", &running);
    let reach = stage.as_front_proxy();
    let path = DEMO.replace("demo", "there") + "/log";
    let asked = (0..4).map(|_| reach.get(&path));
    let all = tokio::time::timeout(Duration::from_secs(9), join_all(asked)).await;
    for (code, ..) in all.expect("answers after one attempt") {
        assert_eq!(code, 503);
    }
    silent.accept().await.unwrap();
    assert!(silent.accept().now_or_never().is_none(), "one attempt");
}

#[tokio::test]
async fn stdin_stays_with_who_came_last() {
    let stage = Stage::set().await;
    in_time(async {
        let reach = stage.as_front_proxy();
        let mut first = exec(&reach, "command=cat&commandId=c&stdin=true").await;
        first.say(stdin(b"one ")).await;
        let mut heard = Channels::default();
        first
            .channels(&mut heard, |heard| heard.stdout == b"one ")
            .await;
        let path = format!("{DEMO}/attach?commandId=c&stdin=true");
        let mut second = reach.socket(&path, V5).await.unwrap();
        first
            .channels(&mut heard, |heard| heard.stderr.ends_with(b"any more\n"))
            .await;
        // Both come back, in whatever order, to an agent that must know who was the last.
        stage.agent.kill();
        stage.agent.come_back();
        second.say(stdin(b"two")).await;
        second.say(&b"\xff\0"[..]).await;
        first.channels(&mut heard, |_| false).await;
        assert_eq!(heard.stdout, b"one two");
        assert_eq!(second.rest().await.stdout, b"one two");
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_waited_for() {
    let stage = Stage::set().await;
    in_time(async {
        let reach = stage.as_front_proxy();
        let length = 64 << 20;
        let query = format!("command=flood&command={length}&commandId=f");
        let socket = exec(&reach, &query).await;
        let node = &stage.agent.node;
        node.until("f", |command| command.stdout.len() == length)
            .await;
        let before = resident();
        // Others are served meanwhile, over the same connection to the agent.
        for _ in 0..50 {
            let heard = exec(&reach, "command=echo&command=hi").await.rest().await;
            assert_eq!(heard.stdout, b"hi\n");
        }
        let grown = resident().saturating_sub(before);
        // The made-up agent holds the 64 MiB already; the gateway must not hold them again.
        assert!(grown < 24 << 20, "grown by {grown} bytes");
        let heard = socket.rest().await;
        assert!(heard.stdout == pattern(length));
        assert_eq!(heard.status.unwrap()["status"], "Success");
    })
    .await;
}

#[tokio::test]
async fn a_command_that_does_not_read_is_waited_for() {
    let stage = Stage::set().await;
    in_time(async {
        let mut socket = exec(
            &stage.as_front_proxy(),
            "command=sleep&commandId=s&stdin=true",
        )
        .await;
        let piece = stdin(&vec![7; 60_000]);
        // The made-up agent ends a session that sends more than it may.
        let flood = async {
            loop {
                socket.say(piece.clone()).await;
            }
        };
        let flood = tokio::time::timeout(Duration::from_secs(3), flood).await;
        assert!(flood.is_err());
        stage
            .agent
            .node
            .until("s", |command| command.stdin.is_empty())
            .await;
    })
    .await;
}

#[tokio::test]
async fn nonsense_is_refused() {
    let stage = Stage::set().await;
    in_time(async {
        let reach = stage.as_front_proxy();
        for nonsense in [
            Message::Binary(vec![1, 2, 3].into()),
            Message::Binary(vec![9].into()),
            Message::Binary(b"\x04{".to_vec().into()),
            Message::Text("hi".into()),
            Message::Binary(vec![0; 300 << 10].into()),
        ] {
            let mut socket = exec(&reach, "command=sleep&stdin=true").await;
            socket.try_say(nonsense.clone()).await;
            let heard = socket.rest().await;
            if nonsense.len() < 1024 {
                assert_eq!(
                    heard.status.unwrap()["reason"],
                    "BadRequest",
                    "{nonsense:?}"
                );
            }
        }
        let heard = exec(&reach, "command=echo&command=well").await.rest().await;
        assert_eq!(heard.stdout, b"well\n");
    })
    .await;
}

#[tokio::test]
async fn a_gateway_that_stops_waits_and_then_says_so() {
    let stage = Stage::set().await;
    in_time(async {
        let reach = stage.as_front_proxy();
        let mut short = exec(&reach, "command=cat&stdin=true").await;
        let long = exec(&reach, "command=sleep&commandId=long").await;
        stage.agent.node.until("long", |_| true).await;
        stage.stop.now.cancel();
        short.say(&b"\xff\0"[..]).await;
        assert_eq!(short.rest().await.status.unwrap()["status"], "Success");
        let status = long.rest().await.status.unwrap();
        assert_eq!(status["reason"], "ServiceUnavailable");
        let message = status["message"].as_str().unwrap();
        assert!(message.contains("commandId=long"), "{message}");
        stage.gateway.await.unwrap().unwrap();
    })
    .await;
}

/// Of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let kilobytes: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes << 10
}
