//! `exec -it` at a real pseudo terminal.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod fake;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::{Mutex, mpsc};

use cloche_proto::agent::v1alpha1::session_request::Kind as Ask;
use cloche_proto::agent::v1alpha1::session_response::Kind as Reply;
use cloche_proto::agent::v1alpha1::{StdinTaken, Stream, TerminalSize};
use nix::sys::signal::Signal;
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use fake::{DEADLINE, Fake, signal};

struct Terminal {
    /// What a person types at and looks at.
    person: File,
    /// What the program has.
    program: OwnedFd,
}

impl Terminal {
    fn new() -> Self {
        let pty = nix::pty::openpty(None, None).unwrap();
        let terminal = Self {
            person: File::from(pty.master),
            program: pty.slave,
        };
        terminal.resize(40, 100);
        terminal
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.person, size).unwrap();
    }

    fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.program).unwrap().local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    fn spawn(&self, fake: &Fake, args: &[&str]) -> Child {
        let end = || Stdio::from(self.program.try_clone().unwrap());
        fake.command(args)
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap()
    }

    fn read(&mut self, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        self.person.read_exact(&mut data).unwrap();
        data
    }
}

fn shell() -> (Fake, mpsc::Receiver<Ask>) {
    let (told, asks) = mpsc::channel();
    let told = Mutex::new(told);
    let fake = Fake::start(move |mut wire| {
        let told = told.lock().unwrap().clone();
        async move {
            let command = wire.open.command.clone().unwrap();
            assert_eq!(
                command.terminal,
                Some(TerminalSize {
                    rows: 40,
                    columns: 100
                })
            );
            assert!(command.stdin);
            wire.opened(0).await;
            wire.output(Stream::Stdout, 0, b"\x1b[1m$ ").await;
            while let Some(ask) = wire.next().await {
                let end = matches!(&ask, Ask::Stdin(stdin) if stdin.data.ends_with(&[4]));
                let killed = matches!(&ask, Ask::Kill(_));
                told.send(ask).unwrap();
                if end || killed {
                    wire.exit(5).await;
                    return;
                }
            }
        }
    });
    (fake, asks)
}

fn typed(asks: &mpsc::Receiver<Ask>, length: usize) -> Vec<u8> {
    let mut data = Vec::new();
    while data.len() < length {
        match asks.recv_timeout(DEADLINE).unwrap() {
            Ask::Stdin(stdin) => data.extend(stdin.data),
            other => panic!("keys are expected, not {other:?}"),
        }
    }
    data
}

#[test]
fn keys_sizes_and_the_mode() {
    let (fake, asks) = shell();
    let mut terminal = Terminal::new();
    assert!(!terminal.is_raw());
    let mut child = terminal.spawn(&fake, &["exec", "-it", "demo", "--", "sh"]);
    assert_eq!(terminal.read(6), b"\x1b[1m$ ", "exact, nothing translated");
    assert!(terminal.is_raw());

    let keys = b"ls\r\x03\x1a\x11\x13\x1b[A\xff";
    terminal.person.write_all(keys).unwrap();
    assert_eq!(typed(&asks, keys.len()), keys);

    terminal.resize(50, 132);
    signal(&child, Signal::SIGWINCH);
    let resize = asks.recv_timeout(DEADLINE).unwrap();
    assert_eq!(
        resize,
        Ask::Resize(TerminalSize {
            rows: 50,
            columns: 132
        })
    );

    terminal.person.write_all(&[4]).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert!(!terminal.is_raw());
}

#[test]
fn one_who_attaches_brings_the_size() {
    let (told, asks) = mpsc::channel();
    let told = Mutex::new(told);
    let fake = Fake::start(move |mut wire| {
        let told = told.lock().unwrap().clone();
        async move {
            wire.opened(0).await;
            told.send(wire.next().await.unwrap()).unwrap();
            wire.exit(0).await;
        }
    });
    let terminal = Terminal::new();
    let mut child = terminal.spawn(&fake, &["exec", "-it", "demo", "--command-id", "one"]);
    assert_eq!(
        asks.recv_timeout(DEADLINE).unwrap(),
        Ask::Resize(TerminalSize {
            rows: 40,
            columns: 100
        })
    );
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn one_whose_keys_go_nowhere_can_still_leave() {
    let (told, asks) = mpsc::channel();
    let told = Mutex::new(told);
    let fake = Fake::start(move |mut wire| {
        let told = told.lock().unwrap().clone();
        async move {
            wire.opened(0).await;
            wire.send(Reply::StdinTaken(StdinTaken {
                closed: true,
                taken_over: true,
                ..StdinTaken::default()
            }))
            .await;
            while let Some(ask) = wire.next().await {
                told.send(ask).unwrap();
            }
        }
    });
    let mut terminal = Terminal::new();
    let mut child = terminal.spawn(&fake, &["exec", "-it", "demo", "--", "sh"]);
    let mut seen = String::new();
    while !seen.contains("taken over") {
        seen.push(char::from(terminal.read(1)[0]));
    }
    terminal.person.write_all(b"x\x03\x03\x03").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!terminal.is_raw());
    drop(fake);
    assert_eq!(
        asks.iter().next(),
        None,
        "the command is the other client's"
    );
}

#[test]
fn the_mode_is_restored_when_the_user_leaves() {
    let (fake, asks) = shell();
    let mut terminal = Terminal::new();
    let mut child = terminal.spawn(&fake, &["exec", "-it", "demo", "--", "sh"]);
    terminal.read(6);
    signal(&child, Signal::SIGHUP);
    let ask = asks.recv_timeout(DEADLINE).unwrap();
    assert!(
        matches!(ask, Ask::Signal(signal) if signal.number == 1),
        "{ask:?}"
    );
    assert_eq!(child.wait().unwrap().code(), Some(129));
    assert!(!terminal.is_raw());
}

#[test]
fn the_mode_is_restored_after_an_error() {
    let fake = Fake::idle();
    let terminal = Terminal::new();
    let mut child = terminal.spawn(&fake, &["exec", "-it", "demo", "--", "sh"]);
    assert_eq!(child.wait().unwrap().code(), Some(125));
    assert!(!terminal.is_raw());
}

#[test]
fn interrupts_end_a_wait_for_a_lost_agent() {
    let (mut fake, _asks) = shell();
    let mut terminal = Terminal::new();
    let mut child = terminal.spawn(&fake, &["exec", "-it", "demo", "--", "sh"]);
    terminal.read(6);
    fake.kill();
    let mut seen = String::new();
    while !seen.contains("trying on") {
        seen.push(char::from(terminal.read(1)[0]));
    }
    terminal.person.write_all(&[3]).unwrap();
    terminal.person.write_all(&[3, 3]).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!terminal.is_raw());
}
