//! What a guest sees: its own limits, name, files and network, and nobody else's.

use anyhow::{Result, ensure};
use cloche_crds::Reason;
use cloche_e2e::image::{Config, Entry, Image, Layer};
use cloche_e2e::session::{command, shell};
use cloche_e2e::{Agent, trial};
use cloche_proto::agent::v1alpha1::Command;
use serde_json::json;

use crate::scene::{self, LIMIT, add, busybox_with, images, manifest, options, output, sh};
use crate::verdict::Verdict;

/// Docker's default capabilities without `NET_RAW`, as /proc shows them.
const CAPABILITIES: &str = "00000000a80405fb";
const NO_CAPABILITIES: &str = "0000000000000000";

#[tokio::test]
async fn a_guest_sees_what_its_spec_says() {
    let folder = images().unwrap();
    let image = busybox_with(Vec::new(), |config| {
        config.user = "user".to_owned();
        config.working_dir = "/srv/app".to_owned();
        config
            .env
            .extend(["FROM=image".to_owned(), "OVER=image".to_owned()]);
    })
    .unwrap();
    let image = add(folder.path(), "configured", &image).unwrap();
    trial::run(options(&folder), async |agent| {
        let spec = json!({
            "hostname": "guest",
            "env": [{"name": "OVER", "value": "spec"}, {"name": "PLAIN", "value": "$(FROM) \"x\""}],
            "resources": {"limits": {"cpu": "2", "memory": "128Mi"}, "pids": 77},
        });
        let mut client = agent.client().await?;
        client.apply(&manifest("one", &image, spec)).await?;
        let moved = json!({"workingDir": "/made/for/it"});
        client.apply(&manifest("two", &image, moved)).await?;
        let seen = agent.wait_running("one", LIMIT).await?;
        agent.wait_running("two", LIMIT).await?;
        let effective = &seen.0["status"]["effective"];
        ensure!(effective["user"] == "user" && effective["workingDir"] == "/srv/app", "{effective:#}");

        for (name, line, wanted) in [
            ("one", "nproc", "2"),
            ("one", "hostname", "guest"),
            ("one", "cat /etc/hostname", "guest"),
            ("two", "hostname", "two"),
            ("one", "echo $FROM $OVER; echo $PLAIN; echo $HOME", "image spec\n$(FROM) \"x\"\n/home/user"),
            ("one", "pwd; stat -c %u:%g .", "/srv/app\n1000:1000"),
            ("two", "pwd; stat -c %u:%g . /made", "/made/for/it\n1000:1000\n1000:1000"),
            ("one", "id -u; id -g; id -G", "1000\n1000\n1000 2000"),
            ("one", "ulimit -u", "77"),
            ("one", "awk '/^Cap(Eff|Prm|Amb)/ {print $2}' /proc/self/status | sort -u", NO_CAPABILITIES),
            ("one", "awk '/^CapBnd/ {print $2}' /proc/self/status", CAPABILITIES),
            ("one", "stat -c %a /tmp; test $(stat -c %d /tmp) = $(stat -c %d /) && echo one layer", "1777\none layer"),
            ("one", "echo mine > /tmp/same; cat /tmp/same", "mine"),
            ("two", "cat /tmp/same 2>/dev/null || echo nothing; echo other > /tmp/same; cat /tmp/same", "nothing\nother"),
            ("one", "cat /tmp/same", "mine"),
            ("one", "awk 'NR > 2 {print $1}' /proc/net/dev", "lo:"),
            (
                "one",
                "busybox nc -l -p 9999 -e echo reached & while ! busybox nc 127.0.0.1 9999 2>/dev/null; do :; done",
                "reached",
            ),
            ("one", "ls /.cloche >/dev/null 2>&1 && touch /.cloche/x 2>/dev/null; echo $?", "1"),
        ] {
            let got = output(agent, name, line).await?;
            ensure!(got == wanted, "{name}: {line}: {got:?} is not {wanted:?}");
        }
        let memory = output(agent, "one", "awk '/^MemTotal/ {print $2}' /proc/meminfo").await?;
        ensure!(memory == (128 * 1024).to_string(), "{memory}");
        let out = sh(agent, "one", "busybox nc -w 5 192.0.2.1 80 < /dev/null").await?;
        let errors = String::from_utf8_lossy(&out.stderr).into_owned();
        ensure!(out.exit.code != 0 && errors.contains("unreachable"), "{out:?}");
        root(agent).await
    })
    .await
    .unwrap();
}

/// Root has Docker's capabilities, and no raw socket by any of them.
async fn root(agent: &Agent) -> Result<()> {
    let as_root = |line: &str| Command {
        user: "0".to_owned(),
        ..shell(line)
    };
    let capabilities = "awk '/^Cap(Eff|Prm|Bnd)/ {print $2}' /proc/self/status | sort -u";
    let got = agent.output("one", as_root(capabilities), LIMIT).await?;
    ensure!(got.trim() == CAPABILITIES, "{got}");
    let ping = agent
        .exec("one", as_root("busybox ping -c 1 127.0.0.1"), LIMIT)
        .await?;
    ensure!(ping.exit.code != 0, "{ping:?}");
    Ok(())
}

#[tokio::test]
async fn an_image_needs_neither_shell_nor_users() {
    let folder = images().unwrap();
    let busybox = std::fs::read("/bin/busybox").unwrap();
    let layer = ["bin/echo", "bin/cat", "bin/sleep"]
        .into_iter()
        .try_fold(Layer::default(), |layer, path| {
            layer.add(path, Entry::File(busybox.clone()))
        })
        .unwrap();
    let bare = Image::new(vec![layer], &Config::default()).unwrap();
    let bare = add(folder.path(), "bare", &bare).unwrap();
    trial::run(options(&folder), async |agent| {
        let mut client = agent.client().await?;
        let main = json!({"command": ["echo", "one"], "env": [{"name": "PATH", "value": "/bin"}]});
        client.apply(&manifest("main", &bare, main)).await?;
        client.apply(&manifest("idle", &bare, json!({}))).await?;
        agent.wait_running("idle", LIMIT).await?;
        let as_somebody = Command {
            user: "4321:1234".to_owned(),
            ..command(["cat", "/proc/self/status"])
        };
        let text = agent.output("idle", as_somebody, LIMIT).await?;
        ensure!(text.contains("Uid:\t4321\t4321\t4321\t4321"), "{text}");
        ensure!(text.contains("Gid:\t1234\t1234\t1234\t1234"), "{text}");
        let done = sh(agent, "idle", "echo x").await?;
        let errors = String::from_utf8_lossy(&done.stderr).into_owned();
        ensure!(
            done.exit.code == 127 && errors.contains("/bin/sh"),
            "{done:?}"
        );
        Verdict::new(Reason::Completed).wait(agent, "main").await?;
        let log = agent.kubectl(&["log", "main"]).await?;
        ensure!(log.stdout == b"one\n", "{log:?}");
        scene::run(agent, "whole", json!({})).await
    })
    .await
    .unwrap();
}
