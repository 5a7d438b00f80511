//! Sessions of a real holder: what commands get, how they end, why they do not start.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use cloche_proto::frame::{ExitCause, MAX_SESSIONS, Rlimit, SessionSpec, SignalScope, Stream};
use support::{Sandbox, USUAL, argv, cause, eventually, shell, with_terminal};

#[test]
fn command_runs_and_its_end_is_told() {
    let (_sandbox, mut agent) = Sandbox::start();
    assert_eq!(
        agent.shell("a", "echo out; echo err >&2; exit 3"),
        (3, "out\n".to_owned(), "err\n".to_owned())
    );
    assert!(agent.reports["a"].pid > 1);
    let exit = agent.run("b", shell("kill -TERM $$"));
    assert_eq!((exit.code, exit.signal), (143, 15));
    assert_eq!(cause(&exit), ExitCause::Unspecified);
    // A real-time signal, which some wait(2) wrappers cannot say.
    let exit = agent.run("c", shell("kill -40 $$"));
    assert_eq!((exit.code, exit.signal), (168, 40));
    assert_eq!(agent.shell("d", "echo on").1, "on\n");
}

#[test]
#[allow(clippy::too_many_lines)] // a table
fn failures_to_start_are_told_apart_and_explained() {
    let (sandbox, mut agent) = Sandbox::start();
    let script = |name: &str, text: &str, mode: u32| {
        let path = sandbox.root.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let plain = script("plain", "#!/bin/sh\n", 0o644);
    let nonsense = script("nonsense", "no program\n", 0o755);
    let orphan = script("orphan", "#!/no/interpreter\n", 0o755);
    let with = |spec: SessionSpec, user: &str, cwd: &str| SessionSpec {
        user: user.to_owned(),
        cwd: cwd.as_bytes().to_vec(),
        ..spec
    };
    let ok = || argv(&["true"]);
    for (id, spec, cause_expected, code, text) in [
        (
            "missing",
            argv(&["no-such-program"]),
            ExitCause::NotFound,
            127,
            "no-such-program: not found",
        ),
        (
            "path",
            argv(&["/no/such"]),
            ExitCause::NotFound,
            127,
            "/no/such: not found",
        ),
        ("empty", argv(&[]), ExitCause::NotFound, 127, "not found"),
        (
            "orphan",
            argv(&[&orphan]),
            ExitCause::NotFound,
            127,
            "interpreter",
        ),
        (
            "mode",
            argv(&[&plain]),
            ExitCause::NotExecutable,
            126,
            "permission denied",
        ),
        (
            "dir",
            argv(&["/usr"]),
            ExitCause::NotExecutable,
            126,
            "permission denied",
        ),
        (
            "format",
            argv(&[&nonsense]),
            ExitCause::NotExecutable,
            126,
            "not a program",
        ),
        (
            "cwd",
            with(ok(), "", "/no/such"),
            ExitCause::BadDirectory,
            126,
            "/no/such: no such file",
        ),
        (
            "cwdfile",
            with(ok(), "", "/etc/passwd"),
            ExitCause::BadDirectory,
            126,
            "not a directory",
        ),
        (
            "cwdrel",
            with(ok(), "", "tmp"),
            ExitCause::BadDirectory,
            126,
            "absolute",
        ),
        (
            "cwdperm",
            with(ok(), "ann", "/root"),
            ExitCause::BadDirectory,
            126,
            "permission denied",
        ),
        (
            "user",
            with(ok(), "nobody", "/"),
            ExitCause::BadUser,
            126,
            "\"nobody\" is not in",
        ),
        (
            "group",
            with(ok(), "ann:nogroup", "/"),
            ExitCause::BadUser,
            126,
            "\"nogroup\" is not in",
        ),
        (
            "caps",
            SessionSpec {
                capabilities: 1 << 60,
                ..ok()
            },
            ExitCause::SetupFailed,
            126,
            "0x1000000000000000",
        ),
        (
            "nul",
            argv(&["true", "a\0b"]),
            ExitCause::SetupFailed,
            126,
            "NUL",
        ),
        (
            "shell",
            SessionSpec {
                shell: Some("/bin/nosh".to_owned()),
                ..argv(&["true"])
            },
            ExitCause::NotFound,
            127,
            "/bin/nosh: not found",
        ),
    ] {
        let exit = agent.run(id, spec);
        assert_eq!(
            (cause(&exit), exit.code),
            (cause_expected, code),
            "{id}: {}",
            exit.message
        );
        assert!(exit.message.contains(text), "{id}: {}", exit.message);
        let stderr = agent.stderr(id);
        assert_eq!(stderr, format!("cloche-init: {}\n", exit.message), "{id}");
        assert_eq!(agent.reports[id].pid, 0, "{id}");
        assert_eq!(
            agent.reports[id].stderr_end,
            Some(stderr.len() as u64),
            "{id}"
        );
    }
    assert_eq!(agent.shell("after", "echo on").1, "on\n");
}

#[test]
fn user_is_the_guests_and_rights_are_exactly_those_asked_for() {
    let (_sandbox, mut agent) = Sandbox::start();
    let look =
        "id -u; id -g; id -G; echo $HOME; grep -E '^(Cap|NoNew)' /proc/self/status | tr -d '\\t'";
    let usual = format!("{USUAL:016x}");
    let none = "0".repeat(16);
    let rights = |prm: &str, bnd: &str, nnp: u8| {
        format!(
            "CapInh:{prm}\nCapPrm:{prm}\nCapEff:{prm}\nCapBnd:{bnd}\nCapAmb:{none}\nNoNewPrivs:{nnp}\n"
        )
    };
    let net_raw = USUAL | 1 << 13;
    for (id, user, capabilities, no_new_privileges, expected) in [
        (
            "root",
            "",
            net_raw,
            false,
            format!("0\n0\n0\n/root\n{}", rights(&usual, &usual, 0)),
        ),
        (
            "rootnnp",
            "",
            USUAL,
            true,
            format!("0\n0\n0\n/root\n{}", rights(&usual, &usual, 1)),
        ),
        (
            "none",
            "root",
            0,
            false,
            format!("0\n0\n0\n/root\n{}", rights(&none, &none, 0)),
        ),
        (
            "ann",
            "ann",
            USUAL,
            false,
            format!(
                "1000\n1000\n1000 2000\n/home/ann\n{}",
                rights(&none, &usual, 0)
            ),
        ),
        (
            "num",
            "4242:77",
            0,
            true,
            format!("4242\n77\n77\n/\n{}", rights(&none, &none, 1)),
        ),
    ] {
        let spec = SessionSpec {
            user: user.to_owned(),
            capabilities,
            no_new_privileges,
            ..shell(look)
        };
        let exit = agent.run(id, spec);
        assert_eq!(
            (exit.code, agent.stdout(id)),
            (0, expected),
            "{id}: {}",
            agent.stderr(id)
        );
    }
    let spec = SessionSpec {
        extra_groups: vec![5000],
        user: "ann".to_owned(),
        ..shell("id -G")
    };
    agent.run("extra", spec);
    assert_eq!(agent.stdout("extra"), "1000 2000 5000\n");
}

#[test]
fn hostile_user_files_hurt_nobody_but_the_session() {
    let (sandbox, mut agent) = Sandbox::start();
    let etc = sandbox.root.path().join("etc");
    fs::remove_file(etc.join("group")).unwrap();
    nix::unistd::mkfifo(&etc.join("group"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(etc.join("passwd"), vec![b':'; 3_000_000]).unwrap();
    assert_eq!(agent.run("a", argv(&["true"])).code, 0);
    fs::remove_file(etc.join("passwd")).unwrap();
    let exit = agent.run(
        "b",
        SessionSpec {
            user: "12:13".to_owned(),
            ..shell("id -u; id -g")
        },
    );
    assert_eq!((exit.code, agent.stdout("b")), (0, "12\n13\n".to_owned()));
    let exit = agent.run(
        "c",
        SessionSpec {
            user: "ann".to_owned(),
            ..argv(&["true"])
        },
    );
    assert_eq!(cause(&exit), ExitCause::BadUser);
}

#[test]
fn process_state_is_fresh() {
    let (_sandbox, mut agent) = Sandbox::start();
    let (code, stdout, stderr) = agent.shell(
        "a",
        "umask; ulimit -n; grep -E '^Sig(Blk|Ign)' /proc/self/status | tr -d '\\t'; ls /proc/self/fd | tr '\\n' ' '; \
         readlink /proc/self/fd/0; ps -o sid= -p $$ | tr -d ' '; echo $$",
    );
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(lines[0], "0022");
    assert_eq!(lines[2], "SigBlk:0000000000000000");
    assert_eq!(lines[3], "SigIgn:0000000000000000");
    // 3 is ls's own.
    assert_eq!(lines[4], "0 1 2 3 /dev/null");
    assert_eq!(lines[5], lines[6], "it leads its session");
    let outer = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    assert_eq!(
        lines[1],
        outer.0.to_string(),
        "the holder's own limit shows"
    );
}

#[test]
fn limits_are_set() {
    let (_sandbox, mut agent) = Sandbox::start();
    let limit = |resource, soft, hard| Rlimit {
        resource,
        soft,
        hard,
    };
    let rlimits = vec![limit(7, 50, 60), limit(4, 0, 0), limit(1, 4096, u64::MAX)];
    let spec = SessionSpec {
        rlimits,
        ..shell("ulimit -n; ulimit -Hn; ulimit -c; ulimit -f; ulimit -Hf")
    };
    assert_eq!(agent.run("a", spec).code, 0);
    assert_eq!(agent.stdout("a"), "50\n60\n0\n8\nunlimited\n");
    let spec = SessionSpec {
        rlimits: vec![limit(99, 1, 1)],
        ..argv(&["true"])
    };
    let exit = agent.run("b", spec);
    assert_eq!(cause(&exit), ExitCause::SetupFailed);
    assert!(
        exit.message.contains("resource limit 99"),
        "{}",
        exit.message
    );
}

#[test]
fn missing_directory_is_made_for_the_user_alone() {
    let (sandbox, mut agent) = Sandbox::start();
    let base = sandbox.root.path().join("work");
    fs::create_dir(&base).unwrap();
    fs::set_permissions(sandbox.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let deep = base.join("a/b");
    let spec = SessionSpec {
        user: "ann".to_owned(),
        create_cwd: true,
        cwd: deep.to_str().unwrap().as_bytes().to_vec(),
        ..shell("pwd; touch mine")
    };
    assert_eq!(
        agent.run("a", spec.clone()).code,
        0,
        "{}",
        agent.stderr("a")
    );
    assert_eq!(agent.stdout("a"), format!("{}\n", deep.display()));
    let owner = |path| {
        fs::metadata(path)
            .map(|meta| (meta.uid(), meta.gid()))
            .unwrap()
    };
    assert_eq!((owner(&base), owner(&deep)), ((0, 0), (1000, 1000)));
    // A link where a directory is to be made is not followed to a place of somebody else's.
    std::os::unix::fs::symlink(sandbox.root.path().join("elsewhere"), base.join("link")).unwrap();
    let cwd = base.join("link/x").to_str().unwrap().as_bytes().to_vec();
    assert_eq!(
        cause(&agent.run("b", SessionSpec { cwd, ..spec })),
        ExitCause::BadDirectory
    );
    assert!(!sandbox.root.path().join("elsewhere").exists());
}

#[test]
fn shell_is_the_one_asked_for_or_the_best_there_is() {
    let (_sandbox, mut agent) = Sandbox::start();
    let spec = SessionSpec {
        shell: Some(String::new()),
        ..shell("echo \"$0 ${BASH_VERSION:+bash}\"; shopt -o posix")
    };
    agent.run("a", spec);
    assert_eq!(agent.stdout("a"), "/bin/bash bash\nposix          \toff\n");
    agent.run("b", shell("echo \"$0 ${BASH_VERSION:+bash}\""));
    assert!(agent.stdout("b").starts_with("/bin/sh"));
}

#[test]
fn spec_may_be_nearly_a_frame_long() {
    let (_sandbox, mut agent) = Sandbox::start();
    let value = "x".repeat(120_000);
    let env = |name: &str| format!("{name}={value}").into_bytes();
    let mut spec = shell("echo ${#A} ${#B}");
    spec.env.extend([env("A"), env("B")]);
    assert_eq!(agent.run("a", spec).code, 0);
    assert_eq!(agent.stdout("a"), "120000 120000\n");
}

#[test]
fn stdin_is_a_window_with_offsets_and_an_end() {
    let (sandbox, mut agent) = Sandbox::start();
    let cat = SessionSpec {
        stdin: true,
        ..argv(&["cat"])
    };
    agent.create("a", cat.clone());
    agent.stdin("a", 0, b"hello ", false);
    agent.stdin("a", 3, b"lo world", false);
    agent.stdin("a", 999, b"lost", false);
    agent.until("the end of what joins on", |agent| {
        agent.stdout("a") == "hello world"
    });
    agent.stdin("a", 11, b"!", true);
    assert_eq!(agent.finish("a").code, 0);
    agent.until("the end of stdout", |agent| {
        agent.reports["a"].stdout_end == Some(12)
    });
    assert_eq!(agent.stdout("a"), "hello world!");
    assert!(agent.reports["a"].stdin_closed);

    // The window: what does not fit is not taken, and the command gets all that was.
    let go = sandbox.root.path().join("go");
    let wait = format!(
        "while [ ! -e {} ]; do sleep 0.02; done; wc -c",
        go.display()
    );
    agent.create(
        "b",
        SessionSpec {
            stdin: true,
            ..shell(&wait)
        },
    );
    let block = vec![b'x'; 64 * 1024];
    for number in 0..40u64 {
        agent.stdin("b", number * 65536, &block, false);
    }
    agent.ping();
    agent.until("the window to be full", |agent| {
        agent.reports["b"].stdin_offset >= 1024 * 1024
    });
    let taken = agent.reports["b"].stdin_offset;
    let pipe = 65536;
    assert!(taken <= 1024 * 1024 + pipe, "{taken} bytes were taken");
    fs::write(&go, "").unwrap();
    agent.until("room", |agent| agent.reports["b"].stdin_drained == taken);
    agent.stdin("b", taken, b"rest", true);
    assert_eq!(agent.finish("b").code, 0);
    assert_eq!(agent.stdout("b").trim(), (taken + 4).to_string());
}

#[test]
fn closed_stdin_is_told() {
    let (_sandbox, mut agent) = Sandbox::start();
    agent.create(
        "a",
        SessionSpec {
            stdin: true,
            ..shell("exec <&-; echo closed; read x <&2; sleep 1000")
        },
    );
    agent.until("the command's closing", |agent| {
        agent
            .reports
            .get("a")
            .is_some_and(|report| report.stdin_closed)
    });
    agent.create(
        "b",
        SessionSpec {
            stdin: true,
            ..argv(&["sleep", "1000"])
        },
    );
    agent.create("c", argv(&["sleep", "1000"]));
    agent.until("both reports", |agent| {
        ["b", "c"].iter().all(|id| agent.reports.contains_key(*id))
    });
    assert!(!agent.reports["b"].stdin_closed && agent.reports["c"].stdin_closed);
}

#[test]
fn end_is_told_while_a_child_holds_the_output() {
    let (_sandbox, mut agent) = Sandbox::start();
    agent.create(
        "a",
        shell(
            "echo first; (read x </proc/self/fd/9; echo late) 9<>\"$0.none\" & sleep 0.3 & exit 4",
        ),
    );
    let exit = agent.finish("a");
    assert_eq!(
        (exit.code, agent.stdout("a").lines().next()),
        (4, Some("first"))
    );
    agent.create("b", shell("(sleep 0.5; echo late) & echo early"));
    assert_eq!(
        (agent.finish("b").code, agent.stdout("b").as_str()),
        (0, "early\n")
    );
    assert_eq!(agent.reports["b"].stdout_end, None);
    agent.until("the child's output and end", |agent| {
        agent.stdout("b") == "early\nlate\n" && agent.reports["b"].stdout_end == Some(11)
    });
    assert_eq!(agent.reports["b"].stdout_at_exit, Some(6));
}

#[test]
fn signals_reach_the_command_or_its_group() {
    let (_sandbox, mut agent) = Sandbox::start();
    let trap = "trap 'echo got; exit 5' TERM; sleep 1000 & echo up; wait";
    agent.create("a", shell(trap));
    agent.until_stdout("a", "up");
    agent.signal("a", 15, SignalScope::Leader);
    assert_eq!(agent.finish("a").code, 5);
    assert_eq!(agent.reports["a"].stdout_end, None, "its child lives on");
    agent.create("b", shell("sleep 1000 & echo up; wait"));
    agent.until_stdout("b", "up");
    agent.signal("b", 15, SignalScope::Foreground);
    assert_eq!(agent.finish("b").signal, 15);
    agent.until("the child's end too", |agent| {
        agent.reports["b"].stdout_end.is_some()
    });
    // Nobody is there to be signalled any more: nothing happens to anybody.
    agent.signal("b", 9, SignalScope::Leader);
    agent.signal("nobody", 9, SignalScope::Leader);
    assert_eq!(agent.shell("c", "echo on").1, "on\n");
}

#[test]
fn spawner_keeps_open_what_it_needs() {
    let (sandbox, mut agent) = Sandbox::start();
    agent.run("a", with_terminal(argv(&["/bin/true"])));
    let files = fs::read_dir(format!("/proc/{}/fd", sandbox.spawner())).unwrap();
    let files: Vec<_> = files
        .map(|file| fs::read_link(file.unwrap().path()).unwrap())
        .collect();
    // Its standard streams, the holder's socket, and what tells of children.
    assert_eq!(files.len(), 5, "{files:?}");
}

#[test]
fn signals_right_after_the_start_are_not_lost() {
    let (_sandbox, mut agent) = Sandbox::start();
    for round in 0..20 {
        for (scope, spec) in [
            (SignalScope::Foreground, argv(&["/bin/sleep", "1000"])),
            (
                SignalScope::Foreground,
                with_terminal(argv(&["/bin/sleep", "1000"])),
            ),
            (SignalScope::Leader, argv(&["/bin/sleep", "1000"])),
            (SignalScope::Tree, argv(&["/bin/sleep", "1000"])),
        ] {
            let id = format!("s{round}-{scope:?}-{}", spec.terminal.is_some());
            agent.create(&id, spec);
            agent.signal(&id, 2, scope);
            assert_eq!(agent.finish(&id).signal, 2, "{id}");
        }
    }
}

#[test]
fn sessions_are_bounded_and_forgetting_makes_room() {
    let (sandbox, mut agent) = Sandbox::start();
    for number in 0..MAX_SESSIONS {
        agent.create(&format!("n{number}"), argv(&["true"]));
        if number % 16 == 15 {
            agent.finish(&format!("n{number}"));
        }
    }
    for number in 0..MAX_SESSIONS {
        assert_eq!(agent.finish(&format!("n{number}")).code, 0);
    }
    let exit = agent.run("more", argv(&["true"]));
    assert_eq!((cause(&exit), exit.code), (ExitCause::NoResources, 126));
    assert!(exit.message.contains("256 sessions"), "{}", exit.message);
    // A retry never runs a command twice.
    let ends = agent.reports["n7"].clone();
    agent.create("n7", shell("echo again"));
    agent.ping();
    assert_eq!(
        (&agent.reports["n7"], agent.stdout("n7").as_str()),
        (&ends, "")
    );
    for number in 0..MAX_SESSIONS {
        agent.forget(&format!("n{number}"));
    }
    agent.reports.remove("more");
    agent.output.clear();
    assert_eq!(agent.shell("more", "echo room").1, "room\n");
    eventually("groups of forgotten sessions are gone", || {
        sandbox.group_count() == 1
    });
}

#[test]
fn name_is_set_once_and_its_files_are_not_followed() {
    let (sandbox, mut agent) = Sandbox::start();
    let etc = sandbox.root.path().join("etc");
    fs::write(etc.join("hosts"), "127.0.0.1 localhost\n10.1.1.1 db\n").unwrap();
    assert_eq!(agent.setup("my-box"), "");
    assert_eq!(
        agent.shell("a", "hostname; cat /etc/hostname").1,
        "my-box\nmy-box\n"
    );
    let hosts = fs::read_to_string(etc.join("hosts")).unwrap();
    assert_eq!(
        hosts,
        "127.0.0.1 localhost\n10.1.1.1 db\n127.0.1.1\tmy-box\t# cloche\n"
    );
    // A repeat leaves what the guest has written since.
    fs::write(etc.join("hosts"), "own\n").unwrap();
    agent.setup("my-box");
    assert_eq!(fs::read_to_string(etc.join("hosts")).unwrap(), "own\n");
    // What is no file of /etc is neither followed nor waited for.
    let victim = sandbox.root.path().join("victim");
    fs::write(&victim, "untouched").unwrap();
    fs::remove_file(etc.join("hosts")).unwrap();
    std::os::unix::fs::symlink(&victim, etc.join("hosts")).unwrap();
    assert_eq!(
        agent.setup("other"),
        "",
        "what an image has there is its own affair"
    );
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    assert_eq!(agent.shell("b", "hostname").1, "other\n");
    assert!(agent.setup("not a name").contains("no host name"));
}

#[test]
fn output_streams_are_apart_and_big() {
    let (_sandbox, mut agent) = Sandbox::start();
    let exit = agent.run(
        "a",
        shell("head -c 5000000 /dev/zero; head -c 3000000 /dev/zero >&2"),
    );
    assert_eq!(exit.code, 0);
    let length = |stream: Stream| agent.output[&("a".to_owned(), stream as i32)].len();
    assert_eq!(
        (length(Stream::Stdout), length(Stream::Stderr)),
        (5_000_000, 3_000_000)
    );
}
