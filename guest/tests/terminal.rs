//! Terminals of a real holder.

mod support;

use cloche_proto::frame::{DownKind, Resize, SessionSpec, SignalScope, TerminalSize};
use support::{Agent, Sandbox, argv, shell, with_terminal};

struct Typist<'a> {
    agent: &'a mut Agent,
    offset: u64,
}

impl Typist<'_> {
    /// Types, and waits until `answer` was printed after that.
    fn expect(&mut self, keys: &[u8], answer: &str) -> String {
        let from = self.agent.stdout("t").len();
        self.agent.stdin("t", self.offset, keys, false);
        self.offset += keys.len() as u64;
        self.agent
            .until(answer, |agent| agent.stdout("t")[from..].contains(answer));
        self.agent.stdout("t")[from..].to_owned()
    }
}

fn bash() -> SessionSpec {
    let mut spec = with_terminal(argv(&[
        "bash",
        "--norc",
        "--noprofile",
        "--noediting",
        "-i",
    ]));
    spec.env.push(b"PS1=$ ".to_vec());
    spec
}

#[test]
fn shell_has_job_control_and_a_name_and_a_size() {
    let (_sandbox, mut agent) = Sandbox::start();
    agent.create("t", bash());
    agent.until_stdout("t", "$ ");
    assert!(
        !agent.stdout("t").contains("no job control"),
        "{}",
        agent.stdout("t")
    );
    let mut typist = Typist {
        agent: &mut agent,
        offset: 0,
    };
    let name = typist.expect(
        b"tty; stat -c %u:%a $(tty); echo $TERM; stty size; echo do''ne\n",
        "done",
    );
    assert!(
        name.contains("/dev/pts/") && name.contains("0:620"),
        "{name}"
    );
    assert!(name.contains("xterm") && name.contains("24 80"), "{name}");

    typist.agent.send(DownKind::Resize(Resize {
        command_id: "t".to_owned(),
        size: Some(TerminalSize {
            rows: 50,
            columns: 132,
        }),
    }));
    typist.agent.ping();
    let size = typist.expect(b"stty size; echo do''ne\n", "done");
    assert!(size.contains("50 132"), "{size}");

    // ^C ends the foreground job by the line discipline, ^Z stops it, and the shell lives on.
    typist.expect(b"sh -c 'echo go\"\"ing; exec sleep 1000'\n", "going");
    typist.expect(b"\x03", "$ ");
    typist.expect(b"echo co''de $?\n", "code 130");
    typist.expect(b"sh -c 'echo go\"\"ing; exec sleep 1000' | cat\n", "going");
    typist.expect(b"\x1a", "Stopped");
    typist.expect(b"kill %1; echo kil''led\n", "killed");

    // The same by signals to the foreground.
    typist.expect(b"sh -c 'echo go\"\"ing; exec sleep 1000'\n", "going");
    typist
        .agent
        .signal("t", nix::libc::SIGINT, SignalScope::Foreground);
    typist.expect(b"", "$ ");
    typist.expect(b"echo co''de $?\n", "code 130");

    // The end of stdin is the end-of-file character.
    typist.expect(b"cat; echo aft''er $?\n", "");
    let offset = typist.offset;
    agent.stdin("t", offset, b"", true);
    agent.until_stdout("t", "after 0");
    assert!(agent.reports["t"].stdin_closed);
    agent.signal("t", nix::libc::SIGHUP, SignalScope::Leader);
    assert_eq!(agent.finish("t").signal, nix::libc::SIGHUP);
    agent.until("the terminal's end", |agent| {
        agent.reports["t"].stdout_end.is_some()
    });
}

#[test]
fn end_behind_a_begun_line_is_an_end_too() {
    let (_sandbox, mut agent) = Sandbox::start();
    agent.create("t", with_terminal(shell("wc -c; echo done")));
    agent.stdin("t", 0, b"abc", true);
    assert_eq!(agent.finish("t").code, 0);
    assert!(
        agent.stdout("t").contains("3\r\ndone"),
        "{}",
        agent.stdout("t")
    );
}

#[test]
fn terminal_belongs_to_the_user() {
    let (_sandbox, mut agent) = Sandbox::start();
    let spec = SessionSpec {
        user: "ann".to_owned(),
        ..with_terminal(shell("stat -c %u $(tty); echo x >/dev/tty"))
    };
    assert_eq!(agent.run("t", spec).code, 0);
    assert!(agent.stdout("t").contains("1000"), "{}", agent.stdout("t"));
}

#[test]
fn failure_to_start_is_printed_on_the_terminal() {
    let (_sandbox, mut agent) = Sandbox::start();
    let exit = agent.run("t", with_terminal(argv(&["no-such"])));
    assert_eq!(exit.code, 127);
    assert_eq!(agent.stdout("t"), "cloche-init: no-such: not found\n");
}
