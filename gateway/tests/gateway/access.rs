//! Who gets through to what.

use std::time::Duration;

use crate::support::{DEMO, Stage, in_time};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

fn reason(body: &[u8]) -> String {
    let status: Value = serde_json::from_slice(body).unwrap();
    assert_eq!(status["kind"], "Status", "{status}");
    status["reason"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn only_the_front_proxy_is_served() {
    let stage = Stage::set().await;
    let root = "/apis/subresources.cloche.dev/v1alpha1";
    in_time(async {
        for forged in [stage.as_another(), stage.as_stranger(), stage.as_nobody()] {
            for path in [root, &format!("{DEMO}/log"), "/nowhere"] {
                let (code, body, _) = forged.get(path).await;
                assert_eq!((code, &*reason(&body)), (401, "Unauthorized"), "{path}");
            }
            let exec = format!("{DEMO}/exec?command=echo&command=hi");
            let socket = forged.socket(&exec, "v5.channel.k8s.io").await;
            assert_eq!(socket.err(), Some(401));
        }
        assert_eq!(
            stage.cluster.last_review(),
            None,
            "nobody's rights are asked after"
        );
        let (code, body, _) = stage.as_front_proxy().get(root).await;
        let listed: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (code, &listed["resources"][1]["name"]),
            (200, &json!("sandboxes/exec"))
        );
        let mut nameless = stage.as_front_proxy();
        nameless.headers.clear();
        assert_eq!(nameless.get(root).await.0, 401);
    })
    .await;
}

#[tokio::test]
async fn a_websocket_needs_the_right_to_create() {
    let stage = Stage::set().await;
    in_time(async {
        let front_proxy = stage.as_front_proxy();
        stage.cluster.deny("create", "exec");
        let exec = format!("{DEMO}/exec?command=echo&command=hi");
        for protocol in ["v5.channel.k8s.io", "v1.session.cloche.dev"] {
            let socket = front_proxy.socket(&exec, protocol).await;
            assert_eq!(socket.err(), Some(403));
        }
        // Also before anything is said about the sandbox or the request.
        let unknown = DEMO.replace("demo", "unknown");
        let (code, body, _) = front_proxy.get(&format!("{unknown}/exec?x=y")).await;
        assert_eq!((code, &*reason(&body)), (403, "Forbidden"));
        let review = stage.cluster.last_review().unwrap();
        assert_eq!(review["spec"]["user"], "alice");
        assert_eq!(review["spec"]["groups"], json!(["dev"]));
        assert_eq!(stage.agent.node.begun(), 0);
    })
    .await;
}

#[tokio::test]
async fn an_apiserver_that_fails_lets_nobody_through() {
    let stage = Stage::set().await;
    in_time(async {
        stage.cluster.break_down();
        let exec = format!("{DEMO}/exec?command=echo&command=hi");
        let socket = stage
            .as_front_proxy()
            .socket(&exec, "v5.channel.k8s.io")
            .await;
        assert_eq!(socket.err(), Some(503));
        assert_eq!(stage.agent.node.begun(), 0);
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_is_said() {
    let stage = Stage::set().await;
    in_time(async {
        let front_proxy = stage.as_front_proxy();
        let starting = json!({"phase": "Starting", "nodeName": "one"});
        stage.cluster.put_sandbox("team", "starting", &starting);
        let lost = json!({"phase": "Running", "nodeName": "gone"});
        stage.cluster.put_sandbox("team", "lost", &lost);
        stage.cluster.put_node("elsewhere", "127.0.0.2:7443");
        let elsewhere = json!({"phase": "Running", "nodeName": "elsewhere"});
        stage.cluster.put_sandbox("team", "elsewhere", &elsewhere);
        for (path, code) in [
            (DEMO.replace("demo", "unknown") + "/log", 404),
            (DEMO.replace("demo", "starting") + "/log", 409),
            (DEMO.replace("demo", "lost") + "/log", 503),
            (DEMO.replace("demo", "..%2f..%2fsecrets") + "/log", 404),
            (format!("{DEMO}/log?commandId=unknown"), 404),
            (format!("{DEMO}/log?x=y"), 400),
            (format!("{DEMO}/exec?command=a"), 400),
            (format!("{DEMO}/files"), 404),
        ] {
            let (found, body, _) = front_proxy.get(&path).await;
            assert_eq!(found, code, "{path}: {}", String::from_utf8_lossy(&body));
            reason(&body);
        }
        let elsewhere = DEMO.replace("demo", "elsewhere") + "/log";
        let (code, body, _) = front_proxy.get(&elsewhere).await;
        let told = String::from_utf8_lossy(&body);
        assert!(
            code == 503 && told.contains("no internal address of that node"),
            "{told}"
        );
        let (code, ..) = front_proxy.ask("POST", &format!("{DEMO}/exec")).await;
        assert_eq!(code, 405);
        let exec = |query: &str| format!("{DEMO}/exec?{query}");
        for (path, protocol) in [
            (exec("command=echo"), "channel.k8s.io"),
            (exec("command=echo&container=x"), "v5.channel.k8s.io"),
            (exec(""), "v5.channel.k8s.io"),
            (exec("command=echo"), "v1.session.cloche.dev"),
        ] {
            let socket = front_proxy.socket(&path, protocol).await;
            assert_eq!(socket.err(), Some(400), "{path} {protocol}");
        }
    })
    .await;
}

#[tokio::test]
async fn one_user_cannot_take_every_stream() {
    let stage = Stage::with(
        &["--max-streams-per-user", "2", "--max-streams", "3"],
        false,
    )
    .await;
    in_time(async {
        let alice = stage.as_front_proxy();
        let mut bob = alice.clone();
        bob.headers[0].1 = "bob".to_owned();
        let exec = format!("{DEMO}/exec?command=sleep");
        let mut open = Vec::new();
        for user in [&alice, &alice, &bob] {
            open.push(user.socket(&exec, "v5.channel.k8s.io").await.ok().unwrap());
        }
        assert_eq!(
            alice.socket(&exec, "v5.channel.k8s.io").await.err(),
            Some(429)
        );
        assert_eq!(
            bob.socket(&exec, "v5.channel.k8s.io").await.err(),
            Some(429)
        );
        drop(open);
        while alice.socket(&exec, "v5.channel.k8s.io").await.is_err() {}
    })
    .await;
}

#[tokio::test]
async fn strangers_cannot_take_every_connection() {
    let stage = Stage::with(&["--max-streams", "1"], false).await;
    in_time(async {
        let (nobody, front_proxy) = (stage.as_nobody(), stage.as_front_proxy());
        let root = "/apis/subresources.cloche.dev/v1alpha1";
        // More than there may be of any kind.
        let mut silent = Vec::new();
        for _ in 0..600 {
            silent.push(TcpStream::connect(nobody.address).await.unwrap());
        }
        let served = tokio::time::timeout(Duration::from_secs(4), front_proxy.get(root)).await;
        assert_eq!(served.expect("an answer").0, 200);
        let ended = silent[0].read(&mut [0]).await;
        assert!(matches!(ended, Ok(0) | Err(_)), "the oldest made room");
        // The newest are ended too, a little later.
        let mut byte = [0];
        let last = silent.last_mut().unwrap().read(&mut byte);
        let last = tokio::time::timeout(Duration::from_secs(10), last).await;
        assert!(matches!(last.expect("an end"), Ok(0) | Err(_)));
        for (path, code) in [("/livez", 200), (root, 401)] {
            let response = nobody.response("GET", path).await;
            assert_eq!(response.status(), code);
            assert_eq!(response.headers()["connection"], "close", "{path}");
        }
        let response = front_proxy.response("GET", root).await;
        assert_eq!(response.headers().get("connection"), None);
    })
    .await;
}

#[tokio::test]
async fn a_user_may_be_in_many_groups() {
    let stage = Stage::set().await;
    in_time(async {
        let mut front_proxy = stage.as_front_proxy();
        let group = |number| ("X-Remote-Group".to_owned(), format!("oidc:team-{number}"));
        front_proxy.headers.extend((1..300).map(group));
        let (code, ..) = front_proxy.get(&format!("{DEMO}/log?commandId=x")).await;
        assert_eq!(code, 404, "there is no such command");
        let review = stage.cluster.last_review().unwrap();
        let groups = review["spec"]["groups"].as_array().unwrap();
        assert_eq!((groups.len(), &groups[299]), (300, &json!("oidc:team-299")));
    })
    .await;
}

#[tokio::test]
async fn a_gateway_that_leaves_says_so_and_serves_on() {
    let stage = Stage::set().await;
    in_time(async {
        let front_proxy = stage.as_front_proxy();
        stage.stop.leave.cancel();
        assert_eq!(stage.as_nobody().get("/readyz").await.0, 503);
        assert_eq!(stage.as_nobody().get("/livez").await.0, 200);
        let exec = format!("{DEMO}/exec?command=echo&command=hi");
        let socket = front_proxy.socket(&exec, "v5.channel.k8s.io").await;
        assert_eq!(socket.unwrap().rest().await.stdout, b"hi\n");
        stage.stop.now.cancel();
        stage.gateway.await.unwrap().unwrap();
        let refused = TcpStream::connect(front_proxy.address).await;
        assert!(refused.is_err());
    })
    .await;
}
