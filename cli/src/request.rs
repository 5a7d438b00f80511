//! From arguments to requests. No I/O.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::time::Duration;

use cloche_crds::SandboxSpec;
use cloche_crds::quantity::Quantity;
use cloche_crds::sandbox::{EnvVar, Lifecycle, ResourceList, Resources};
use cloche_crds::{IdleAction, Sandbox};
use cloche_proto::agent::v1alpha1::{Command, Open, TerminalSize};

use crate::args::{self, Exec, Run, Shape};
use crate::error::Error;

/// How long a command that nobody named outlives its client: twice the time for which a client tries to come back.
const KILL_ON_DETACH: Duration = Duration::from_mins(2);

/// An interactive shell, run by the sandbox's own shell in its own place: `$0` is that shell.
pub(crate) const SHELL: &str = r#"exec "$0""#;

/// The session that `exec` asks for. `made_up` names it where the user did not; `size` is the local terminal's.
pub(crate) fn exec(exec: &Exec, made_up: String, size: TerminalSize) -> Result<Open, Error> {
    let command = if exec.argv.is_empty() {
        None
    } else {
        Some(Command {
            argv: argv(exec)?,
            shell: exec.shell.clone(),
            env: exec.env.iter().map(variable).collect::<Result<_, _>>()?,
            cwd: exec.cwd.clone(),
            user: exec.user.clone(),
            terminal: exec.interaction.tty.then_some(size),
            stdin: exec.interaction.stdin,
            timeout_ms: exec.timeout.map_or(0, milliseconds),
        })
    };
    let named = exec.command_id.is_some();
    Ok(Open {
        command_id: exec.command_id.clone().unwrap_or(made_up),
        command,
        stdin: exec.interaction.stdin,
        kill_on_detach_ms: if named {
            0
        } else {
            milliseconds(KILL_ON_DETACH)
        },
        ..Open::default()
    })
}

fn argv(exec: &Exec) -> Result<Vec<Vec<u8>>, Error> {
    if exec.shell.is_some() && exec.argv.len() > 1 {
        return Err(Error::Usage(
            "with --shell the command is one string: put it in quotes".to_owned(),
        ));
    }
    Ok(exec
        .argv
        .iter()
        .map(|argument| argument.clone().into_vec())
        .collect())
}

fn variable(text: &OsString) -> Result<Vec<u8>, Error> {
    let bytes = text.clone().into_vec();
    match bytes.iter().position(|byte| *byte == b'=') {
        None | Some(0) => Err(Error::Usage(format!(
            "--env {}: write NAME=VALUE",
            text.display()
        ))),
        Some(_) => Ok(bytes),
    }
}

/// The seconds of a flag, as the field that it stands for counts them.
fn whole_seconds(flag: &str, given: Option<Duration>) -> Result<Option<i64>, Error> {
    let seconds = |time: Duration| {
        i64::try_from(time.as_secs())
            .ok()
            .filter(|seconds| *seconds > 0 && time.subsec_nanos() == 0)
            .ok_or_else(|| Error::Usage(format!("{flag}: write whole seconds, such as 90s")))
    };
    given.map(seconds).transpose()
}

/// Never 0 for a time above zero, since 0 means "never".
fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .max(1)
}

/// The object that `run` makes. With a terminal or stdin the command is run by exec: the object has none.
pub(crate) fn run(run: &Run, name: &str) -> Result<Sandbox, Error> {
    let argv = if by_exec(run) { &[][..] } else { &run.argv };
    sandbox(name, &run.image, &run.shape, argv)
}

/// A sandbox of these parts; without `argv` it idles.
pub(crate) fn sandbox(
    name: &str,
    image: &str,
    shape: &Shape,
    argv: &[String],
) -> Result<Sandbox, Error> {
    let env: Vec<EnvVar> = shape
        .env
        .iter()
        .map(|text| match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok(EnvVar {
                name: name.to_owned(),
                value: Some(value.to_owned()),
                value_from: None,
            }),
            Some(_) | None => Err(Error::Usage(format!("--env {text}: write NAME=VALUE"))),
        })
        .collect::<Result<_, _>>()?;
    let lifecycle = Lifecycle {
        ttl_seconds: whole_seconds("--ttl", shape.ttl)?,
        idle_timeout_seconds: whole_seconds("--idle-timeout", shape.idle_timeout)?,
        idle_action: shape.idle_action.map(|action| match action {
            args::IdleAction::Stop => IdleAction::Stop,
            args::IdleAction::Pause => IdleAction::Pause,
            args::IdleAction::End => IdleAction::End,
        }),
        ..Lifecycle::default()
    };
    let limits = ResourceList {
        cpu: shape.cpu.clone().map(Quantity),
        memory: shape.memory.clone().map(Quantity),
        ephemeral_storage: shape.ephemeral_storage.clone().map(Quantity),
    };
    let spec = SandboxSpec {
        image: image.to_owned(),
        command: (!argv.is_empty()).then(|| argv.to_vec()),
        env: (!env.is_empty()).then_some(env),
        resources: (limits != ResourceList::default()).then(|| Resources {
            limits: Some(limits),
            ..Resources::default()
        }),
        lifecycle: (lifecycle != Lifecycle::default()).then_some(lifecycle),
        ..SandboxSpec::default()
    };
    Ok(Sandbox::new(name, spec))
}

/// Whether `run` runs its command by exec.
pub(crate) fn by_exec(run: &Run) -> bool {
    run.interaction.stdin || run.interaction.tty
}

/// Its command as exec's arguments.
pub(crate) fn exec_of(run: &Run, name: &str) -> Exec {
    let shell = run.argv.is_empty();
    Exec {
        name: name.to_owned(),
        interaction: run.interaction,
        user: String::new(),
        cwd: String::new(),
        env: Vec::new(),
        timeout: None,
        command_id: None,
        shell: shell.then(String::new),
        argv: if shell {
            vec![OsString::from(SHELL)]
        } else {
            run.argv.iter().map(OsString::from).collect()
        },
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command as Subcommand};

    fn parsed(line: &[&str]) -> Subcommand {
        Cli::try_parse_from(std::iter::once(&"s").chain(line))
            .unwrap()
            .command
    }

    fn open(line: &[&str]) -> Result<Open, Error> {
        let Subcommand::Exec(args) = parsed(line) else {
            panic!("exec expected");
        };
        let size = TerminalSize {
            rows: 50,
            columns: 132,
        };
        exec(&args, "made-up".into(), size)
    }

    fn manifest(line: &[&str]) -> Result<serde_json::Value, Error> {
        let Subcommand::Run(args) = parsed(line) else {
            panic!("run expected");
        };
        run(&args, "demo").map(|sandbox| serde_json::to_value(sandbox).unwrap())
    }

    #[test]
    fn sessions() {
        insta::assert_debug_snapshot!("exec", open(&["exec", "demo", "--", "ls", "-l"]).unwrap());
        insta::assert_debug_snapshot!(
            "exec_full",
            open(&[
                "exec",
                "demo",
                "-it",
                "--user",
                "1:2",
                "--cwd",
                "sub",
                "--env",
                "A=b=c",
                "--env",
                "E=",
                "--timeout",
                "1m30s",
                "--command-id",
                "one",
                "--shell=/bin/ash",
                "--",
                "ls | wc",
            ])
            .unwrap()
        );
        insta::assert_debug_snapshot!(
            "attach",
            open(&["exec", "demo", "-i", "--command-id", "one"]).unwrap()
        );
        for wrong in [
            &["exec", "d", "--shell", "--", "ls", "-l"][..],
            &["exec", "d", "--env", "A", "--", "ls"],
            &["exec", "d", "--env", "=b", "--", "ls"],
        ] {
            assert!(matches!(open(wrong), Err(Error::Usage(_))), "{wrong:?}");
        }
    }

    #[test]
    fn bytes_of_arguments_are_kept() {
        let mut args = exec_of(
            &match parsed(&["run", "--image", "i", "-i"]) {
                Subcommand::Run(run) => run,
                _ => panic!("run expected"),
            },
            "demo",
        );
        args.shell = None;
        args.argv = vec![OsString::from_vec(vec![0xff, b'=', 0x80])];
        args.env = args.argv.clone();
        let open = exec(&args, "a".into(), TerminalSize::default()).unwrap();
        let command = open.command.unwrap();
        assert_eq!(command.argv, [[0xff, b'=', 0x80]]);
        assert_eq!(command.env, [[0xff, b'=', 0x80]]);
    }

    #[test]
    fn manifests() {
        insta::assert_json_snapshot!(
            "run",
            manifest(&[
                "run", "demo", "--image", "python:3", "--cpu", "500m", "--memory", "64Mi", "--env",
                "A=b", "--ttl", "10m", "--", "python3", "-c", "print(1)",
            ])
            .unwrap()
        );
        insta::assert_json_snapshot!(
            "run_interactive",
            manifest(&["run", "demo", "--image", "python:3", "-it", "--", "python3"]).unwrap()
        );
        for wrong in [
            &["run", "d", "--image", "i", "--ttl", "500ms"][..],
            &["run", "d", "--image", "i", "--env", "A"],
        ] {
            assert!(matches!(manifest(wrong), Err(Error::Usage(_))), "{wrong:?}");
        }
    }
}
