//! How commands behave, through the command line.

use std::process::Output;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_e2e::deadline::within;
use cloche_e2e::session::{Session, shell};
use cloche_e2e::{Agent, trial};
use cloche_proto::agent::v1alpha1::{Command, Open, TerminalSize};
use serde_json::json;

use crate::scene::{self, LIMIT, images, options, output};

/// Runs `exec NAME` with options, `--` and a command.
async fn exec(agent: &Agent, options: &[&str], command: &[&str]) -> Result<Output> {
    let arguments = [&["exec", "box"], options, &["--"], command].concat();
    within(LIMIT, "the command returns", agent.kubectl(&arguments)).await
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn a_command_comes_back_as_it_should() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        scene::run(agent, "box", json!({})).await?;
        ends(agent).await?;
        trees(agent).await?;
        users(agent).await?;
        named(agent).await?;
        bytes(agent).await
    })
    .await
    .unwrap();
}

/// Exit codes, and what is said with them.
async fn ends(agent: &Agent) -> Result<()> {
    let line = |line| ["/bin/sh", "-c", line];
    for (command, code, says) in [
        (&line("exit 0")[..], 0, ""),
        (&line("exit 42"), 42, ""),
        (&line("kill -9 $$"), 137, ""),
        (&["absent"], 127, "absent: not found"),
        (&["/etc/passwd"], 126, "/etc/passwd: permission denied"),
        (&["/etc"], 126, "/etc"),
    ] {
        let done = exec(agent, &[], command).await?;
        ensure!(done.status.code() == Some(code), "{command:?}: {done:?}");
        ensure!(text(&done.stderr).contains(says), "{command:?}: {done:?}");
    }
    for (option, says) in [
        (["--cwd", "/etc/passwd"], "working directory /etc/passwd"),
        (["--cwd", "/absent"], "working directory /absent"),
        (["--user", "stranger"], "stranger"),
        (["--user", "user:strangers"], "strangers"),
    ] {
        let done = exec(agent, &option, &["true"]).await?;
        ensure!(done.status.code() == Some(126), "{option:?}: {done:?}");
        ensure!(text(&done.stderr).contains(says), "{option:?}: {done:?}");
    }
    let nobody = agent.kubectl(&["exec", "nobody", "--", "true"]).await?;
    ensure!(nobody.status.code() == Some(125), "{nobody:?}");
    ensure!(text(&nobody.stderr).contains("nobody"), "{nobody:?}");
    Ok(())
}

/// What a command started: killed with it at its timeout, not waited for at its end.
async fn trees(agent: &Agent) -> Result<()> {
    let tree =
        "echo before; setsid sleep 1001 & (setsid sh -c 'sleep 1002 & sleep 1003' &) ; sleep 1004";
    let limit = Duration::from_secs(2);
    let command = ["sh", "-c", tree];
    let timed = exec(agent, &["--timeout", "1s"], &command);
    let done = within(limit, "the timeout is kept", timed).await?;
    ensure!(done.status.code() == Some(124), "{done:?}");
    ensure!(text(&done.stdout) == "before\n", "{done:?}");
    let lines = output(agent, "box", "ps -o args | grep '^sleep 100' || true").await?;
    ensure!(lines.is_empty(), "{lines}");

    let command = ["sh", "-c", "sleep 1005 & echo started"];
    let held = exec(agent, &[], &command);
    let done = within(limit, "the end is not held up", held).await?;
    ensure!(
        done.status.success() && text(&done.stdout) == "started\n",
        "{done:?}"
    );
    let alive = output(
        agent,
        "box",
        "ps -o args | grep -c '^sleep 1005'; killall sleep",
    )
    .await?;
    ensure!(alive == "1", "{alive}");
    Ok(())
}

/// Users of the guest's own files, place and environment.
async fn users(agent: &Agent) -> Result<()> {
    let whoami = [
        "sh",
        "-c",
        "echo $(id -u) $(id -g) $(id -G) $HOME; pwd; echo $A",
    ];
    for (user, wanted) in [
        ("0", "0 0 0 /root"),
        ("user", "1000 1000 1000 2000 /home/user"),
        ("user:extra", "1000 2000 2000 /home/user"),
        ("1000:0", "1000 0 0 2000 /home/user"),
        ("4321", "4321 0 0 /"),
    ] {
        let option = ["--user", user, "--cwd", "home/user", "--env", "A=b=c d"];
        let done = exec(agent, &option, &whoami).await?;
        let wanted = format!("{wanted}\n/home/user\nb=c d\n");
        ensure!(text(&done.stdout) == wanted, "{user}: {done:?}");
    }
    let added = "echo 'late:x:77:78::/late:' >> /etc/passwd";
    output(agent, "box", added).await?;
    let done = exec(agent, &["--user", "late"], &["id", "-u"]).await?;
    ensure!(text(&done.stdout) == "77\n", "{done:?}");
    Ok(())
}

/// A name is of one command: who asks again joins, who asks for another is refused, also after its end.
async fn named(agent: &Agent) -> Result<()> {
    let line = |line| ["sh", "-c", line];
    let name = ["--command-id", "named"];
    for _ in 0..2 {
        let done = exec(
            agent,
            &name,
            &line("echo once >> /tmp/times; cat /tmp/times; exit 3"),
        )
        .await?;
        ensure!(
            done.status.code() == Some(3) && text(&done.stdout) == "once\n",
            "{done:?}"
        );
    }
    let joined = agent
        .kubectl(&["exec", "box", "--command-id", "named"])
        .await?;
    ensure!(
        joined.status.code() == Some(3) && text(&joined.stdout) == "once\n",
        "{joined:?}"
    );
    for (options, command) in [
        (&name[..], &line("echo other")[..]),
        (
            &[name[0], name[1], "--user", "user"],
            &line("echo once >> /tmp/times; cat /tmp/times; exit 3"),
        ),
    ] {
        let other = exec(agent, options, command).await?;
        ensure!(
            other.status.code() == Some(125) && other.stdout.is_empty(),
            "{other:?}"
        );
        ensure!(
            text(&other.stderr).contains("command named exists"),
            "{other:?}"
        );
    }
    Ok(())
}

/// Bytes out, bytes in, and a terminal.
async fn bytes(agent: &Agent) -> Result<()> {
    let random = "head -c 3000000 /dev/urandom | tee /tmp/kept; cat /tmp/kept >&2";
    let done = exec(agent, &["--shell"], &[random]).await?;
    ensure!(done.stdout.len() == 3_000_000 && done.stdout == done.stderr);
    let back = [&["exec", "box", "-i", "--"][..], &["cmp", "-", "/tmp/kept"]].concat();
    let same = within(
        LIMIT,
        "it has read all",
        agent.kubectl_fed(&back, &done.stdout),
    )
    .await?;
    ensure!(same.status.success(), "{same:?}");
    let echoed = ["exec", "box", "-i", "--", "cat"];
    let echoed = within(
        LIMIT,
        "it has read all",
        agent.kubectl_fed(&echoed, &done.stdout),
    )
    .await?;
    ensure!(echoed.status.success() && echoed.stdout == done.stdout);
    unread(agent).await?;

    let size = |rows, columns| Some(TerminalSize { rows, columns });
    let open = Open {
        command: Some(Command {
            terminal: size(31, 97),
            ..shell(
                "trap 'stty size; exit 9' WINCH; test -t 0 && test -t 1 && stty size; while :; do sleep 0.05; done",
            )
        }),
        ..Open::default()
    };
    let mut session = Session::open(agent, "box", open).await??;
    session
        .until("it tells its size", LIMIT, |session| {
            session.stdout.ends_with(b"31 97\r\n")
        })
        .await?;
    session.resize(40, 120).await?;
    let exit = session.end(LIMIT).await?;
    ensure!(
        exit.code == 9 && session.stdout.ends_with(b"40 120\r\n"),
        "{session:?}"
    );
    let script = ["sh", "-c", "test -t 1 && stty size"];
    let done = exec(agent, &["-t"], &script).await?;
    ensure!(done.status.success(), "{done:?}");
    Ok(())
}

/// Input that nobody reads, and requests that mean nothing to the command, do not cost its end.
async fn unread(agent: &Agent) -> Result<()> {
    let input = b"line\n".repeat(600_000);
    for (command, code, says) in [
        (&["head", "-n", "1"][..], 0, "line\n"),
        (&["sh", "-c", "exec <&-; sleep 1; exit 3"], 3, ""),
    ] {
        let arguments = [&["exec", "box", "-i", "--"], command].concat();
        let fed = agent.kubectl_fed(&arguments, &input);
        let done = within(LIMIT, "the command returns", fed).await?;
        ensure!(
            done.status.code() == Some(code)
                && text(&done.stdout) == says
                && done.stderr.is_empty(),
            "{command:?}: {done:?}"
        );
    }
    let open = Open {
        command: Some(shell(
            "trap 'exit 4' USR1; echo ready; while :; do sleep 0.05; done",
        )),
        ..Open::default()
    };
    let mut session = Session::open(agent, "box", open).await??;
    session.resize(40, 120).await?;
    let ready = |session: &Session| session.stdout == b"ready\n";
    session.until("it is ready", LIMIT, ready).await?;
    session.signal(10).await?;
    let exit = session.end(LIMIT).await?;
    ensure!(exit.code == 4, "{exit:?}");
    crowded(agent).await
}

/// More input than there is room for, and more than one client that sends it.
async fn crowded(agent: &Agent) -> Result<()> {
    const PIECE: usize = 64 << 10;
    let open = |id: &str, command| Open {
        command_id: id.to_owned(),
        command: Some(Command {
            stdin: true,
            ..command
        }),
        stdin: true,
        ..Open::default()
    };
    let fill = async |session: &Session, pieces: usize| {
        for piece in 0..pieces {
            let offset = (piece * PIECE) as u64;
            session.stdin(offset, &b"x".repeat(PIECE), false).await?;
        }
        anyhow::Ok(())
    };
    // Nothing is taken beyond 1 MiB and a pipe full; the rest waits, and the kill behind it does not.
    let mut session = Session::open(agent, "box", open("", shell("exec sleep 1006"))).await??;
    fill(&session, 30).await?;
    session.kill().await?;
    let exit = session.end(LIMIT).await?;
    ensure!(exit.signal == 9, "{exit:?}");

    let mut session = Session::open(agent, "box", open("", shell("exec sleep 1007"))).await??;
    // It may be told before all is sent.
    fill(&session, 160).await.ok();
    let refused = session.end(LIMIT).await.err().context("more was taken")?;
    let status = refused.chain().find_map(|cause| cause.downcast_ref());
    let code = status.map(tonic::Status::code);
    ensure!(code == Some(tonic::Code::OutOfRange), "{refused:?}");

    let open = || open("shared", shell("cat; exit 7"));
    let mut first = Session::open(agent, "box", open()).await??;
    first.stdin(0, b"one ", false).await?;
    let echoed = |text: &'static [u8]| move |session: &Session| session.stdout == text;
    first.until("one is echoed", LIMIT, echoed(b"one ")).await?;
    let mut second = Session::open(agent, "box", open()).await??;
    let offset = second.opened.stdin_offset;
    ensure!(!second.opened.created && offset == Some(4), "{second:?}");
    // Refused without a word but the one that it was taken over.
    first.stdin(4, b"lost", true).await?;
    // Coming back it takes nothing from the second.
    let again = Open {
        input: first.opened.input,
        ..open()
    };
    let mut again = Session::open(agent, "box", again).await??;
    ensure!(again.opened.stdin_offset.is_none(), "{again:?}");
    again.stdin(4, b"lost", true).await?;
    second.stdin(4, b"two", true).await?;
    for session in [&mut first, &mut second, &mut again] {
        let exit = session.end(LIMIT).await?;
        ensure!(
            exit.code == 7 && session.stdout == b"one two",
            "{session:?}"
        );
    }
    ensure!(
        first.taken_over && again.taken_over && !second.taken_over,
        "{first:?} {second:?} {again:?}"
    );
    Ok(())
}
