//! `run`, `ls`, `describe`, `wait`, `log` and `rm` against an agent with one sandbox.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod fake;

use cloche_proto::agent::v1alpha1::session_response::Kind as Reply;
use cloche_proto::agent::v1alpha1::{Exit, Gap, Output, Stream};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use fake::{Applies, Done, Fake, sandbox, signal};

fn with_status(name: &str, status: Value) -> Value {
    let mut object = sandbox(name, "");
    object["status"] = status;
    object
}

/// An agent whose sandbox's main command writes `out` and ends with 3.
fn with_main() -> Fake {
    Fake::start(|mut wire| async move {
        assert_eq!(wire.open.command_id, "main");
        assert_eq!(wire.open.command, None);
        wire.opened(0).await;
        wire.output(Stream::Stdout, 0, b"out\n").await;
        wire.exit(3).await;
    })
}

#[test]
fn run_shows_the_command_and_ends_with_its_code() {
    let fake = with_main();
    let child = fake.spawn(&[
        "run", "demo", "--image", "oci:bb", "--rm", "--", "sh", "-c", "exit 3",
    ]);
    fake.wait_for_object(Option::is_some);
    let manifest = fake.object().unwrap();
    assert_eq!(
        manifest["spec"],
        json!({"image": "oci:bb", "command": ["sh", "-c", "exit 3"]})
    );
    fake.set_object(Some(sandbox("demo", "Running")));
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!(
        (done.code, done.text(), done.stderr.as_str()),
        (3, "out\n", "")
    );
    assert_eq!(fake.object(), None, "--rm deletes");
}

#[test]
fn run_makes_a_name_up_and_keeps_the_sandbox() {
    let fake = with_main();
    let child = fake.spawn(&["run", "--image", "oci:bb", "--", "true"]);
    fake.wait_for_object(Option::is_some);
    let name = fake.object().unwrap()["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    // A command so quick that its sandbox was never seen Running.
    fake.set_object(Some(sandbox(&name, "Failed")));
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!((done.code, done.text()), (3, "out\n"));
    assert_eq!(done.stderr, format!("sandbox.cloche.dev/{name} created\n"));
    assert!(fake.object().is_some());
}

#[test]
fn run_says_why_a_sandbox_did_not_start() {
    let fake = Fake::idle();
    let child = fake.spawn(&["run", "demo", "--image", "nope", "--", "true"]);
    fake.wait_for_object(Option::is_some);
    fake.set_object(Some(with_status(
        "demo",
        json!({"phase": "Failed", "termination": {"reason": "ImageNotFound", "message": "no such image: nope"}}),
    )));
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!((done.code, done.text()), (125, ""));
    assert_eq!(
        done.stderr,
        "error: sandbox demo ended: it is Failed (ImageNotFound: no such image: nope)\n"
    );

    fake.set_object(None);
    let child = fake.spawn(&["run", "demo", "--image", "bb", "--", "nope"]);
    fake.wait_for_object(Option::is_some);
    fake.set_object(Some(with_status(
        "demo",
        json!({"phase": "Failed", "termination": {"reason": "CommandNotFound", "message": "no nope", "exitCode": 127}}),
    )));
    assert_eq!(Done::of(child.wait_with_output().unwrap()).code, 127);

    let done = fake.run(&["run", "demo", "--image", "bb", "--", "true"]);
    assert_eq!(done.code, 125);
    assert_eq!(
        done.stderr,
        "error: cannot make sandbox demo: sandbox demo exists already\n"
    );
}

#[test]
fn run_cleans_up_after_an_interrupted_wait() {
    let fake = Fake::idle();
    let child = fake.spawn(&["run", "demo", "--image", "bb", "--rm", "--", "true"]);
    fake.wait_for_object(Option::is_some);
    signal(&child, Signal::SIGINT);
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!((done.code, done.stderr.as_str()), (130, ""));
    assert_eq!(fake.object(), None);

    // Without --wait nobody knows yet how it ends.
    fake.set_object(Some(sandbox("demo", "Running")));
    let done = fake.run(&["rm", "demo"]);
    assert_eq!(done.text(), "sandbox.cloche.dev/demo deleted\n");
    let done = fake.run(&["rm", "demo", "--wait"]);
    assert_eq!(done.code, 1);
    assert!(
        done.stderr.contains("there is no sandbox demo"),
        "{}",
        done.stderr
    );
}

/// It knows its own, and leaves another one of the same name alone.
#[test]
fn run_cleans_up_where_it_was_not_told_that_it_made_a_sandbox() {
    let fake = Fake::idle();
    let run = ["run", "demo", "--image", "bb", "--rm", "--", "true"];
    fake.set_applies(Applies::Lost);
    let done = fake.run(&run);
    let told = "error: cannot make sandbox demo: the connection is lost\n";
    assert_eq!((done.code, done.stderr.as_str()), (125, told));
    assert_eq!(fake.object(), None);

    let mut other = sandbox("demo", "Running");
    other["metadata"]["annotations"] = json!({"cloche.dev/run": "another's"});
    fake.set_object(Some(other.clone()));
    fake.set_applies(Applies::Never);
    let done = fake.run(&run);
    assert_eq!((done.code, done.stderr.as_str()), (125, told));
    assert_eq!(fake.object(), Some(other));

    // Whoever keeps it finds it.
    fake.set_object(None);
    fake.set_applies(Applies::Lost);
    assert_eq!(
        fake.run(&["run", "demo", "--image", "bb", "--", "true"])
            .code,
        125
    );
    assert!(fake.object().is_some());
}

#[test]
fn run_with_stdin_executes_in_an_idle_sandbox() {
    let fake = Fake::start(|mut wire| async move {
        let command = wire.open.command.clone().unwrap();
        assert_eq!(command.argv, [b"cat"]);
        wire.opened(0).await;
        wire.exit(0).await;
    });
    let child = fake.spawn(&["run", "demo", "--image", "bb", "-i", "--rm", "--", "cat"]);
    fake.wait_for_object(Option::is_some);
    assert_eq!(fake.object().unwrap()["spec"], json!({"image": "bb"}));
    fake.set_object(Some(sandbox("demo", "Running")));
    assert_eq!(Done::of(child.wait_with_output().unwrap()).code, 0);
    assert_eq!(fake.object(), None);

    // Without --wait nobody knows yet how it ends.
    fake.set_object(Some(sandbox("demo", "Running")));
    let done = fake.run(&["rm", "demo"]);
    assert_eq!(done.text(), "sandbox.cloche.dev/demo deleted\n");
    let done = fake.run(&["rm", "demo", "--wait"]);
    assert_eq!(done.code, 1);
    assert!(
        done.stderr.contains("there is no sandbox demo"),
        "{}",
        done.stderr
    );
}

#[test]
fn lists() {
    let fake = Fake::idle();
    let done = fake.run(&["ls"]);
    assert_eq!(
        (done.code, done.text(), done.stderr.as_str()),
        (0, "", "No sandboxes found.\n")
    );
    fake.set_object(Some(sandbox("demo", "Running")));
    assert_eq!(
        fake.run(&["ls"]).text(),
        "NAME   PHASE     REASON   AGE\ndemo   Running            <unknown>\n"
    );
    assert_eq!(
        fake.run(&["ls", "-o", "name"]).text(),
        "sandbox.cloche.dev/demo\n"
    );
    let json: Value =
        serde_json::from_slice(&fake.run(&["ls", "demo", "-o", "json"]).stdout).unwrap();
    assert_eq!(json, sandbox("demo", "Running"));
    assert!(fake.run(&["describe", "demo"]).text().contains("Status:"));
    let done = fake.run(&["describe", "other"]);
    assert_eq!(done.code, 1);
    assert_eq!(
        done.stderr,
        "error: cannot get sandbox other: there is no sandbox other \
         (`kubectl sandbox ls` shows the sandboxes that there are)\n"
    );
    assert_eq!(fake.run(&["ls", "-o", "xml"]).code, 125);
}

#[test]
fn waits() {
    let fake = Fake::idle();
    let done = fake.run(&["wait", "demo", "--for=phase=Running", "--timeout", "0"]);
    assert_eq!(done.code, 1);
    assert!(
        done.stderr.starts_with("error: there is no sandbox demo"),
        "{}",
        done.stderr
    );
    assert_eq!(fake.run(&["wait", "demo", "--for=delete"]).code, 0);
    assert_eq!(fake.run(&["wait", "demo", "--for=nonsense"]).code, 1);

    // One that was just put down is not there yet.
    let child = fake.spawn(&["wait", "demo", "--for=phase=Running"]);
    fake.set_object(Some(sandbox("demo", "Running")));
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    fake.set_object(None);
    let absent = ["wait", "demo", "--for=condition=Ready", "--timeout", "50ms"];
    let done = fake.run(&absent);
    assert_eq!(done.code, 1);
    assert!(
        done.stderr.ends_with("it is now not there\n"),
        "{}",
        done.stderr
    );

    fake.set_object(Some(sandbox("demo", "Starting")));
    let done = fake.run(&["wait", "demo", "--for=condition=Ready", "--timeout", "50ms"]);
    assert_eq!(done.code, 1);
    assert_eq!(
        done.stderr,
        "error: timed out after 0 s waiting for condition Ready=True of sandbox demo; it is now Starting\n"
    );

    let child = fake.spawn(&["wait", "demo", "--for=condition=Ready"]);
    fake.set_object(Some(with_status(
        "demo",
        json!({"phase": "Ended", "termination": {"reason": "DeadlineExceeded"}}),
    )));
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!(done.code, 1);
    assert_eq!(
        done.stderr,
        "error: sandbox demo has ended and will not reach condition Ready=True: it is Ended (DeadlineExceeded)\n"
    );
    let child = fake.spawn(&["wait", "demo", "--for=delete"]);
    fake.set_object(None);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
}

#[test]
fn a_wait_outlives_the_agent() {
    let mut fake = Fake::idle();
    fake.set_object(Some(sandbox("demo", "Starting")));
    let child = fake.spawn(&["wait", "demo", "--for=phase=Running"]);
    fake.wait_for_watches(1);
    fake.kill();
    fake.set_object(Some(sandbox("demo", "Running")));
    fake.restart();
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!(
        (done.code, done.text(), done.stderr.as_str()),
        (0, "sandbox.cloche.dev/demo condition met\n", "")
    );
}

#[test]
fn logs() {
    let fake = Fake::idle();
    let piece = |stream: Stream, offset, data: &[u8]| {
        Reply::Output(Output {
            stream: stream.into(),
            offset,
            data: data.to_vec(),
        })
    };
    fake.set_log(vec![
        Reply::Gap(Gap {
            stream: Stream::Stdout.into(),
            offset: 0,
            end: 5,
        }),
        piece(Stream::Stdout, 5, b"out\xff"),
        piece(Stream::Stderr, 0, b"err"),
        Reply::Exit(Exit::default()),
    ]);
    let done = fake.run(&["log", "demo"]);
    assert_eq!((done.code, &done.stdout[..]), (0, &b"out\xff"[..]));
    assert_eq!(
        done.stderr,
        "kubectl-sandbox: 5 bytes are no longer kept\nerr"
    );

    fake.set_log(vec![piece(Stream::Stdout, 900, b"tail")]);
    let done = fake.run(&["log", "demo", "--tail-bytes", "4", "-f"]);
    assert_eq!(
        (done.code, done.text(), done.stderr.as_str()),
        (0, "tail", "")
    );
}

#[test]
fn deletes() {
    let fake = Fake::idle();
    fake.set_object(Some(sandbox("demo", "Running")));
    let done = fake.run(&["rm", "other", "demo", "--wait"]);
    assert_eq!(done.code, 1);
    assert_eq!(
        done.text(),
        "sandbox.cloche.dev/demo deleted (Deleted: its object was deleted)\n"
    );
    assert!(
        done.stderr.contains("there is no sandbox other"),
        "{}",
        done.stderr
    );
    assert!(
        done.stderr
            .ends_with("error: 1 of 2 sandboxes could not be deleted\n"),
        "{}",
        done.stderr
    );
    assert_eq!(fake.object(), None);

    // Without --wait nobody knows yet how it ends.
    fake.set_object(Some(sandbox("demo", "Running")));
    let done = fake.run(&["rm", "demo"]);
    assert_eq!(done.text(), "sandbox.cloche.dev/demo deleted\n");
    let done = fake.run(&["rm", "demo", "--wait"]);
    assert_eq!(done.code, 1);
    assert!(
        done.stderr.contains("there is no sandbox demo"),
        "{}",
        done.stderr
    );
}
