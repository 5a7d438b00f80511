//! What a session runs: the image's word, then the spec's, then the request's. Pure.

use std::collections::BTreeSet;

use cloche_crds::MainCommand;
use cloche_crds::sandbox::Capability;
use cloche_proto::frame::{ReadOnlyRoot, Rlimit, SessionSpec, TerminalSize};

use super::record::{ImageUse, SandboxRecord};
use super::values::Values;

/// PATH where neither image nor spec has one.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// `RLIMIT_NPROC` of setrlimit(2) on x86-64.
const RLIMIT_NPROC: u32 = 6;

/// What a client asks for, beyond what the sandbox says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Program and arguments; one string with `shell`.
    pub argv: Vec<Vec<u8>>,
    /// Run by a shell: empty for the sandbox's own.
    pub shell: Option<String>,
    /// `NAME=value`, over image and spec.
    pub env: Vec<Vec<u8>>,
    /// Absolute, relative to the sandbox's working directory, or empty for it.
    pub cwd: String,
    /// Empty for the sandbox's.
    pub user: String,
    /// Give it a terminal.
    pub terminal: Option<TerminalSize>,
    /// It has a stdin.
    pub stdin: bool,
    /// Milliseconds, 0 for none.
    pub timeout_ms: u64,
}

/// Why a command cannot be run as asked.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Nothing to run.
    #[error("no command: give a program and its arguments, or a shell and a string")]
    Empty,
    /// A shell takes one string.
    #[error("a command for a shell is one string, not {0}")]
    ShellArguments(usize),
    /// A shell has to be absolute.
    #[error("the shell {0:?} is not an absolute path")]
    Shell(String),
    /// Not `NAME=value`.
    #[error("the environment entry {0:?} is not NAME=value")]
    Env(String),
    /// A NUL byte ends strings of the kernel.
    #[error("a NUL byte in {0}")]
    Nul(&'static str),
    /// Too long for one frame.
    #[error(
        "command, arguments and environment have {0} bytes; at most 200 KiB are taken: put long input into stdin or a file"
    )]
    TooLong(usize),
    /// The spec asks for the image's entrypoint, and it has none.
    #[error("spec.args is set but the image has no entrypoint: set spec.command")]
    NoEntrypoint,
}

/// Longest command, arguments and environment together: leaves room in one frame for the rest.
const MAX_BYTES: usize = 200 * 1024;

/// The sandbox's own command; `None` where it idles.
pub fn main(record: &SandboxRecord, image: &ImageUse) -> Result<Option<SessionSpec>, CommandError> {
    let argv: Vec<String> = match &record.spec.main {
        MainCommand::Idle => return Ok(None),
        MainCommand::Command(argv) => argv.clone(),
        MainCommand::Entrypoint(_) if image.config.entrypoint.is_empty() => {
            return Err(CommandError::NoEntrypoint);
        }
        MainCommand::Entrypoint(args) => image
            .config
            .entrypoint
            .iter()
            .chain(args)
            .cloned()
            .collect(),
    };
    let request = Request {
        argv: argv.into_iter().map(String::into_bytes).collect(),
        ..Request::default()
    };
    session(record, image, &request).map(Some)
}

/// A client's command.
pub fn session(
    record: &SandboxRecord,
    image: &ImageUse,
    request: &Request,
) -> Result<SessionSpec, CommandError> {
    check(request)?;
    let spec = &record.spec;
    let security = &spec.security;
    let home = working_dir(record, image);
    let cwd = if request.cwd.is_empty() {
        home.to_owned()
    } else if request.cwd.starts_with('/') {
        request.cwd.clone()
    } else {
        format!("{}/{}", home.trim_end_matches('/'), request.cwd)
    };
    let shell = request.shell.as_ref().map(|shell| {
        if shell.is_empty() {
            spec.shell.clone().unwrap_or_default()
        } else {
            shell.clone()
        }
    });
    let session = SessionSpec {
        argv: request.argv.clone(),
        shell,
        env: environment(record, image, &request.env),
        create_cwd: cwd == home,
        cwd: cwd.into_bytes(),
        user: if request.user.is_empty() {
            user(record, image)
        } else {
            request.user.clone()
        },
        extra_groups: security.groups.iter().copied().collect(),
        capabilities: mask(&security.capabilities),
        no_new_privileges: !security.allow_privilege_escalation,
        rlimits: vec![Rlimit {
            resource: RLIMIT_NPROC,
            soft: u64::from(spec.resources.pids),
            hard: u64::from(spec.resources.pids),
        }],
        terminal: request.terminal,
        stdin: request.stdin || request.terminal.is_some(),
        timeout_ms: request.timeout_ms,
    };
    let bytes = session
        .argv
        .iter()
        .chain(&session.env)
        .map(Vec::len)
        .sum::<usize>();
    if bytes > MAX_BYTES {
        Err(CommandError::TooLong(bytes))
    } else {
        Ok(session)
    }
}

/// Where commands start: the spec's word, else the image's, else `/`.
pub fn working_dir<'a>(record: &'a SandboxRecord, image: &'a ImageUse) -> &'a str {
    match (&record.spec.working_dir, image.config.working_dir.as_str()) {
        (Some(dir), _) => dir,
        (None, "") => "/",
        (None, dir) => dir,
    }
}

/// What of the root stays writable where the rest does not: /tmp, and what the spec names.
pub fn read_only_root(record: &SandboxRecord) -> Option<ReadOnlyRoot> {
    let security = &record.spec.security;
    let paths = std::iter::once("/tmp".to_owned()).chain(security.writable_paths.iter().cloned());
    security.read_only_root.then(|| ReadOnlyRoot {
        writable: paths.collect(),
    })
}

/// As whom commands run: the spec's word, else the image's, else `0:0`. A user without a group has that of the image's /etc/passwd.
pub fn user(record: &SandboxRecord, image: &ImageUse) -> String {
    let security = &record.spec.security;
    let of_image = match image.config.user.as_str() {
        "" => "0:0",
        user => user,
    };
    match (security.user, security.group) {
        (None, None) => of_image.to_owned(),
        (Some(user), None) => user.to_string(),
        (Some(user), Some(group)) => format!("{user}:{group}"),
        (None, Some(group)) => {
            let user = of_image.split(':').next().unwrap_or_default();
            format!("{user}:{group}")
        }
    }
}

/// As the kernel writes a set: the bit of each by its number.
fn mask(capabilities: &BTreeSet<Capability>) -> u64 {
    let bits = capabilities
        .iter()
        .map(|capability| 1 << capability.number());
    bits.fold(0, std::ops::BitOr::bitor)
}

fn check(request: &Request) -> Result<(), CommandError> {
    if request.argv.first().is_none_or(Vec::is_empty) {
        return Err(CommandError::Empty);
    }
    if let Some(shell) = &request.shell {
        if request.argv.len() != 1 {
            return Err(CommandError::ShellArguments(request.argv.len()));
        }
        if !shell.is_empty() && !shell.starts_with('/') {
            return Err(CommandError::Shell(shell.clone()));
        }
    }
    if let Some(entry) = request
        .env
        .iter()
        .find(|entry| name(entry).is_none_or(<[u8]>::is_empty))
    {
        return Err(CommandError::Env(
            String::from_utf8_lossy(entry).into_owned(),
        ));
    }
    let has_nul = |bytes: &Vec<u8>| bytes.contains(&0);
    if request.argv.iter().any(has_nul) {
        return Err(CommandError::Nul("the command"));
    }
    if request.env.iter().any(has_nul) {
        return Err(CommandError::Nul("the environment"));
    }
    if request.cwd.contains('\0')
        || request.user.contains('\0')
        || request.shell.iter().any(|shell| shell.contains('\0'))
    {
        return Err(CommandError::Nul("the working directory, user or shell"));
    }
    Ok(())
}

/// Image, then spec, then request; a later one of the same name takes the place of the earlier. PATH always has a value.
fn environment(record: &SandboxRecord, image: &ImageUse, request: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let path = std::iter::once(format!("PATH={DEFAULT_PATH}").into_bytes());
    let from_image = image
        .config
        .env
        .iter()
        .map(|entry| entry.clone().into_bytes());
    let own = record.spec.env.iter();
    let own = own.map(|entry| (entry.name.as_str(), entry.value.as_str()));
    let from_spec = own
        .chain(record.values.iter().flat_map(Values::iter))
        .map(|(name, value)| format!("{name}={value}").into_bytes());
    let mut merged: Vec<Vec<u8>> = Vec::new();
    for entry in path
        .chain(from_image)
        .chain(from_spec)
        .chain(request.iter().cloned())
    {
        match merged.iter_mut().find(|older| name(older) == name(&entry)) {
            Some(older) => *older = entry,
            None => merged.push(entry),
        }
    }
    merged
}

fn name(entry: &[u8]) -> Option<&[u8]> {
    entry
        .iter()
        .position(|byte| *byte == b'=')
        .map(|at| &entry[..at])
}

#[cfg(test)]
mod tests;
