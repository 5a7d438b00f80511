//! What a session runs: argument vector, environment, and the paths at which the program may lie.

use std::ffi::CString;

use cloche_proto::frame::{ExitCause, SessionSpec};
use nix::errno::Errno;

use crate::core::Failure;

/// Where programs are looked for when the environment has no PATH.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Directories of PATH that are looked at.
const MAX_PATH: usize = 256;

/// Ready for execve(2).
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// Paths to try, in order.
    pub candidates: Vec<CString>,
    /// Arguments, the program's name first.
    pub argv: Vec<CString>,
    /// Environment.
    pub env: Vec<CString>,
    /// The program's name, for messages.
    pub name: String,
    /// The first argument is to be the candidate that is run. A shell looks at it: bash called sh is another shell.
    pub is_shell: bool,
}

/// Prepares `spec` for a user whose home directory is `home`.
pub(super) fn prepare(spec: &SessionSpec, home: &[u8]) -> Result<Program, Failure> {
    let env = environment(spec, home);
    let mut argv = spec.argv.clone();
    let candidates = match &spec.shell {
        None => {
            let name = argv.first().map(Vec::as_slice).unwrap_or_default();
            candidates(name, &env)
        }
        Some(shell) => {
            let [command] = argv.as_slice() else {
                return Err(setup("a shell runs exactly one string".to_owned()));
            };
            if !shell.is_empty() && !shell.starts_with('/') {
                return Err(setup(format!("shell {shell:?} is no absolute path")));
            }
            let shells: Vec<Vec<u8>> = if shell.is_empty() {
                vec![b"/bin/bash".to_vec(), b"/bin/sh".to_vec()]
            } else {
                vec![shell.clone().into_bytes()]
            };
            let name = shells.last().cloned().unwrap_or_default();
            argv = vec![name, b"-c".to_vec(), command.clone()];
            shells
        }
    };
    let name = argv.first().map(Vec::as_slice).unwrap_or_default();
    Ok(Program {
        name: String::from_utf8_lossy(name).into_owned(),
        is_shell: spec.shell.is_some(),
        candidates: strings(candidates)?,
        argv: strings(argv)?,
        env: strings(env)?,
    })
}

fn environment(spec: &SessionSpec, home: &[u8]) -> Vec<Vec<u8>> {
    let mut env = spec.env.clone();
    let has = |env: &[Vec<u8>], name: &[u8]| env.iter().any(|entry| entry.starts_with(name));
    if !has(&env, b"HOME=") {
        env.push([b"HOME=", home].concat());
    }
    if spec.terminal.is_some() && !has(&env, b"TERM=") {
        env.push(b"TERM=xterm".to_vec());
    }
    env
}

/// As execvp(3): a name with a slash is a path, any other is looked for in PATH, where an empty part is the working directory.
fn candidates(name: &[u8], env: &[Vec<u8>]) -> Vec<Vec<u8>> {
    if name.is_empty() || name.contains(&b'/') {
        return if name.is_empty() {
            Vec::new()
        } else {
            vec![name.to_vec()]
        };
    }
    let path = env
        .iter()
        .find_map(|entry| entry.strip_prefix(b"PATH="))
        .unwrap_or(DEFAULT_PATH);
    path.split(|byte| *byte == b':')
        .take(MAX_PATH)
        .map(|directory| match directory {
            b"" => name.to_vec(),
            directory => [directory, b"/", name].concat(),
        })
        .collect()
}

fn strings(list: Vec<Vec<u8>>) -> Result<Vec<CString>, Failure> {
    list.into_iter()
        .map(|bytes| {
            CString::new(bytes).map_err(|error| {
                let text = String::from_utf8_lossy(&error.into_vec()).into_owned();
                setup(format!("{text:?} has a NUL byte in it"))
            })
        })
        .collect()
}

fn setup(message: String) -> Failure {
    Failure::new(ExitCause::SetupFailed, message)
}

/// Which of the errors of several candidates counts, as execvp(3) chooses: one that is not "not there" wins.
pub(super) fn weightier(old: Option<Errno>, new: Errno) -> Errno {
    let absent = |error: Errno| matches!(error, Errno::ENOENT | Errno::ENOTDIR);
    match old {
        Some(old) if !absent(old) => old,
        _ => new,
    }
}

/// Whether execve(2) of the next candidate may succeed after this error.
pub(super) fn goes_on(error: Errno) -> bool {
    matches!(
        error,
        Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ESTALE | Errno::ENODEV
    )
}

/// What the error of execve(2) means. `exists` tells whether a file lies at one of the candidates.
pub(super) fn refusal(name: &str, error: Option<Errno>, exists: bool) -> Failure {
    let (cause, why) = match error {
        Some(Errno::ENOENT | Errno::ENOTDIR) if exists => (
            ExitCause::NotFound,
            "the interpreter or loader that it names is not in the image".to_owned(),
        ),
        None | Some(Errno::ENOENT | Errno::ENOTDIR) => {
            (ExitCause::NotFound, "not found".to_owned())
        }
        Some(Errno::ENAMETOOLONG | Errno::ELOOP) => {
            (ExitCause::NotFound, describe(error).to_lowercase())
        }
        Some(Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE | Errno::ENOSPC) => {
            (ExitCause::NoResources, describe(error))
        }
        Some(Errno::ENOEXEC) => (
            ExitCause::NotExecutable,
            "not a program of this machine, nor a script that names its interpreter".to_owned(),
        ),
        Some(
            Errno::EACCES
            | Errno::EPERM
            | Errno::EISDIR
            | Errno::EINVAL
            | Errno::ETXTBSY
            | Errno::ELIBBAD,
        ) => (ExitCause::NotExecutable, describe(error).to_lowercase()),
        Some(_) => (ExitCause::SetupFailed, describe(error).to_lowercase()),
    };
    Failure::new(cause, format!("{name}: {why}"))
}

fn describe(error: Option<Errno>) -> String {
    error
        .map(|error| error.desc().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(argv: &[&str], shell: Option<&str>, env: &[&str]) -> SessionSpec {
        SessionSpec {
            argv: argv.iter().map(|text| text.as_bytes().to_vec()).collect(),
            shell: shell.map(str::to_owned),
            env: env.iter().map(|text| text.as_bytes().to_vec()).collect(),
            ..SessionSpec::default()
        }
    }

    fn texts(list: &[CString]) -> Vec<&str> {
        list.iter().map(|text| text.to_str().unwrap()).collect()
    }

    #[test]
    fn names_are_looked_for_as_execvp_does() {
        let program = prepare(&spec(&["ls", "-l"], None, &["PATH=/a::/b/"]), b"/").unwrap();
        assert_eq!(texts(&program.candidates), ["/a/ls", "ls", "/b//ls"]);
        assert_eq!(texts(&program.argv), ["ls", "-l"]);
        let program = prepare(&spec(&["./ls"], None, &["PATH=/a"]), b"/").unwrap();
        assert_eq!(texts(&program.candidates), ["./ls"]);
        let program = prepare(&spec(&["ls"], None, &[]), b"/").unwrap();
        assert_eq!(program.candidates.len(), 6);
        assert!(
            prepare(&spec(&[], None, &[]), b"/")
                .unwrap()
                .candidates
                .is_empty()
        );
    }

    #[test]
    fn shell_runs_one_string() {
        let program = prepare(&spec(&["echo $A"], Some(""), &[]), b"/").unwrap();
        assert_eq!(texts(&program.candidates), ["/bin/bash", "/bin/sh"]);
        assert_eq!(texts(&program.argv), ["/bin/sh", "-c", "echo $A"]);
        let program = prepare(&spec(&["x"], Some("/opt/fish"), &[]), b"/").unwrap();
        assert_eq!(texts(&program.argv), ["/opt/fish", "-c", "x"]);
        for bad in [
            spec(&["a", "b"], Some(""), &[]),
            spec(&[], Some(""), &[]),
            spec(&["a"], Some("fish"), &[]),
            spec(&["a\0b"], None, &[]),
            spec(&["a"], None, &["A=\0"]),
        ] {
            assert_eq!(
                prepare(&bad, b"/").unwrap_err().cause,
                ExitCause::SetupFailed
            );
        }
    }

    #[test]
    fn home_and_term_are_added_where_missing() {
        let mut plain = spec(&["x"], None, &["A=1"]);
        assert_eq!(
            texts(&prepare(&plain, b"/root").unwrap().env),
            ["A=1", "HOME=/root"]
        );
        plain.terminal = Some(cloche_proto::frame::TerminalSize::default());
        plain.env = vec![b"HOME=/h".to_vec()];
        assert_eq!(
            texts(&prepare(&plain, b"/root").unwrap().env),
            ["HOME=/h", "TERM=xterm"]
        );
    }

    #[test]
    fn refusals_are_told_apart() {
        for (error, exists, cause, code) in [
            (None, false, ExitCause::NotFound, 127),
            (Some(Errno::ENOENT), false, ExitCause::NotFound, 127),
            (Some(Errno::ENOENT), true, ExitCause::NotFound, 127),
            (Some(Errno::EACCES), true, ExitCause::NotExecutable, 126),
            (Some(Errno::ENOEXEC), true, ExitCause::NotExecutable, 126),
            (Some(Errno::EAGAIN), true, ExitCause::NoResources, 126),
            (Some(Errno::E2BIG), true, ExitCause::SetupFailed, 126),
        ] {
            let failure = refusal("x", error, exists);
            assert_eq!((failure.cause, failure.code()), (cause, code));
        }
        assert_eq!(weightier(Some(Errno::EACCES), Errno::ENOENT), Errno::EACCES);
        assert_eq!(weightier(Some(Errno::ENOENT), Errno::EACCES), Errno::EACCES);
    }
}
