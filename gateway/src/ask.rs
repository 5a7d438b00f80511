//! What a client asks for in the query of its URL. Pure.
//!
//! A parameter that is not known here is refused: nothing is accepted and ignored.

use cloche_proto::agent::v1alpha1::{Command, Open, Stream, TerminalSize};
use percent_encoding::percent_decode_str;

use crate::refusal::{Kind, Refusal};

/// Most bytes of a query: a command line and its environment, with everything escaped.
const QUERY: usize = 64 << 10;
/// A terminal's size until the client tells one.
const TERMINAL: TerminalSize = TerminalSize {
    rows: 24,
    columns: 80,
};
/// How long a command goes on without a client, where the client gave it no name: nobody can ask for it again. Longer than the gateway
/// itself tries to come back to it.
const NAMELESS_MS: u64 = 120_000;

/// A command to run or to join, in the remote-command protocol.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ask {
    /// Without key, uid and, if the client gave no name, command id.
    pub(crate) open: Open,
    /// Which outputs the client wants.
    pub(crate) stdout: bool,
    /// The same of standard error.
    pub(crate) stderr: bool,
}

/// Output to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AskLog {
    /// Empty: the sandbox's own command.
    pub(crate) command_id: String,
    /// Goes on until the output is closed.
    pub(crate) follow: bool,
    /// 0: everything.
    pub(crate) tail_bytes: u64,
    /// One stream; `None`: both, in the order in which they come.
    pub(crate) stream: Option<Stream>,
    /// Where stdout and stderr go on; `None`: as `tail_bytes` says.
    pub(crate) offsets: [Option<u64>; 2],
}

/// Reads the query of `exec`.
pub(crate) fn exec(query: &str) -> Result<Ask, Refusal> {
    let mut command = Command::default();
    let mut streams = Streams::default();
    let mut open = Open::default();
    let mut tty = false;
    let mut size = TERMINAL;
    for (key, value) in parameters(query)? {
        // Need not be text.
        match key.as_str() {
            "command" => {
                command.argv.push(value);
                continue;
            }
            "env" => {
                command.env.push(value);
                continue;
            }
            _ => {}
        }
        let value = text(&key, value)?;
        if streams.take(&key, &value, &mut tty)? {
            continue;
        }
        match key.as_str() {
            "commandId" => open.command_id = value,
            "user" => command.user = value,
            "cwd" => command.cwd = value,
            "shell" => command.shell = Some(value),
            "timeoutSeconds" => command.timeout_ms = milliseconds(&key, &value)?,
            "killOnDetachSeconds" => open.kill_on_detach_ms = milliseconds(&key, &value)?,
            "rows" => size.rows = side(&key, &value)?,
            "columns" => size.columns = side(&key, &value)?,
            _ => return Err(unknown(&key)),
        }
    }
    if command.argv.is_empty() {
        return Err(bad("you must specify at least 1 command for the sandbox"));
    }
    if open.command_id.is_empty() && open.kill_on_detach_ms == 0 {
        open.kill_on_detach_ms = NAMELESS_MS;
    }
    command.terminal = tty.then_some(size);
    command.stdin = streams.stdin;
    open.stdin = streams.stdin;
    open.command = Some(command);
    streams.ask(open, tty)
}

/// Reads the query of `attach`.
pub(crate) fn attach(query: &str) -> Result<Ask, Refusal> {
    let mut streams = Streams::default();
    let mut open = Open::default();
    let mut tty = false;
    for (key, value) in parameters(query)? {
        let value = text(&key, value)?;
        if streams.take(&key, &value, &mut tty)? {
            continue;
        }
        match key.as_str() {
            "commandId" => open.command_id = value,
            _ => return Err(unknown(&key)),
        }
    }
    if open.command_id.is_empty() {
        cloche_proto::frame::MAIN_SESSION.clone_into(&mut open.command_id);
    }
    open.stdin = streams.stdin;
    streams.ask(open, tty)
}

/// Reads the query of `log`.
pub(crate) fn log(query: &str) -> Result<AskLog, Refusal> {
    let mut ask = AskLog::default();
    for (key, value) in parameters(query)? {
        let value = text(&key, value)?;
        match key.as_str() {
            "commandId" => ask.command_id = value,
            "follow" => ask.follow = is_true(&key, &value)?,
            "tailBytes" => ask.tail_bytes = number(&key, &value)?,
            "stdoutOffset" => ask.offsets[0] = Some(number(&key, &value)?),
            "stderrOffset" => ask.offsets[1] = Some(number(&key, &value)?),
            "stream" => {
                ask.stream = match value.as_str() {
                    "" => None,
                    "stdout" => Some(Stream::Stdout),
                    "stderr" => Some(Stream::Stderr),
                    _ => {
                        return Err(bad(&format!(
                            "stream is {value:?}; it must be stdout or stderr"
                        )));
                    }
                }
            }
            _ => return Err(unknown(&key)),
        }
    }
    Ok(ask)
}

/// The streams of a remote command, as Kubernetes names them and by its defaults.
struct Streams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            stdin: false,
            stdout: true,
            stderr: true,
        }
    }
}

impl Streams {
    /// Takes a parameter, if it is one of these.
    fn take(&mut self, key: &str, value: &str, tty: &mut bool) -> Result<bool, Refusal> {
        let field = match key {
            "stdin" => &mut self.stdin,
            "stdout" => &mut self.stdout,
            "stderr" => &mut self.stderr,
            "tty" => tty,
            _ => return Ok(false),
        };
        *field = is_true(key, value)?;
        Ok(true)
    }

    fn ask(self, open: Open, tty: bool) -> Result<Ask, Refusal> {
        // A terminal has one output.
        let stderr = self.stderr && !tty;
        if !(self.stdin || self.stdout || stderr) {
            return Err(bad(
                "you must specify at least one of stdin, stdout, stderr",
            ));
        }
        Ok(Ask {
            open,
            stdout: self.stdout,
            stderr,
        })
    }
}

/// Names and values, of which only the names are text.
fn parameters(query: &str) -> Result<Vec<(String, Vec<u8>)>, Refusal> {
    if query.len() > QUERY {
        let message = format!(
            "the query is {} bytes long; at most {QUERY} are allowed",
            query.len()
        );
        return Err(bad(&message));
    }
    query
        .split('&')
        .filter(|parameter| !parameter.is_empty())
        .map(|parameter| {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            Ok((text(key, unescaped(key))?, unescaped(value)))
        })
        .collect()
}

fn unescaped(text: &str) -> Vec<u8> {
    percent_decode_str(&text.replace('+', " ")).collect()
}

fn text(key: &str, value: Vec<u8>) -> Result<String, Refusal> {
    String::from_utf8(value).map_err(|_| bad(&format!("{key} is no UTF-8")))
}

fn is_true(key: &str, value: &str) -> Result<bool, Refusal> {
    match value {
        "true" | "1" | "True" | "TRUE" => Ok(true),
        "false" | "0" | "" | "False" | "FALSE" => Ok(false),
        _ => Err(bad(&format!(
            "{key} is {value:?}; it must be true or false"
        ))),
    }
}

fn number(key: &str, value: &str) -> Result<u64, Refusal> {
    value
        .parse()
        .map_err(|_| bad(&format!("{key} is {value:?}; it must be a whole number")))
}

fn milliseconds(key: &str, value: &str) -> Result<u64, Refusal> {
    let seconds = number(key, value)?;
    let milliseconds = seconds
        .checked_mul(1000)
        .filter(|milliseconds| *milliseconds > 0);
    milliseconds.ok_or_else(|| bad(&format!("{key} is {value:?}; leave it out for no limit")))
}

fn side(key: &str, value: &str) -> Result<u32, Refusal> {
    let side = value.parse::<u16>().ok().filter(|side| *side > 0);
    side.map(u32::from)
        .ok_or_else(|| bad(&format!("{key} is {value:?}; it must be 1 to 65535")))
}

fn unknown(key: &str) -> Refusal {
    bad(&format!("the parameter {key:?} is not known here"))
}

fn bad(message: &str) -> Refusal {
    Refusal::new(Kind::BadRequest, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_environments_need_not_be_text() {
        let ask = exec("command=a%ff+b&command=&env=A%3D%80").unwrap();
        let command = ask.open.command.unwrap();
        assert_eq!(command.argv, [&b"a\xff b"[..], b""]);
        assert_eq!(command.env, [b"A=\x80"]);
        for query in ["command=a&cwd=%ff", "command=a&%ff=b"] {
            assert!(exec(query).is_err(), "{query}");
        }
    }

    #[test]
    fn what_kubectl_asks_for() {
        let ask = exec("command=sh&command=-c&command=echo+a%26b&stdin=true&stdout=true&tty=true")
            .unwrap();
        let command = ask.open.command.clone().unwrap();
        assert_eq!(command.argv, [&b"sh"[..], b"-c", b"echo a&b"]);
        assert_eq!(command.terminal, Some(TERMINAL));
        assert!(command.stdin && ask.open.stdin && ask.stdout);
        assert!(!ask.stderr, "a terminal has one output");
        assert_eq!(ask.open.kill_on_detach_ms, NAMELESS_MS);
    }

    #[test]
    fn what_only_a_sandbox_can() {
        let ask = exec(
            "command=make&commandId=build&user=1000&cwd=src&env=A=b%3Dc&env=D=&shell=&timeoutSeconds=5&killOnDetachSeconds=9",
        )
        .unwrap();
        let wanted = Open {
            command_id: "build".into(),
            kill_on_detach_ms: 9000,
            command: Some(Command {
                argv: vec![b"make".to_vec()],
                shell: Some(String::new()),
                env: vec![b"A=b=c".to_vec(), b"D=".to_vec()],
                cwd: "src".into(),
                user: "1000".into(),
                timeout_ms: 5000,
                ..Command::default()
            }),
            ..Open::default()
        };
        assert_eq!(ask.open, wanted);
        assert_eq!(
            exec("command=a&commandId=b")
                .unwrap()
                .open
                .kill_on_detach_ms,
            0
        );
        assert_eq!(attach("").unwrap().open.command_id, "main");
        assert_eq!(attach("commandId=x&stdin=1").unwrap().open.command, None);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for query in [
            "",
            "stdin=true",
            "command=a&container=b",
            "command=a&stdin=maybe",
            "command=a&timeoutSeconds=0",
            "command=a&timeoutSeconds=-1",
            "command=a&timeoutSeconds=18446744073709551615",
            "command=a&rows=0",
            "command=a&columns=70000",
            "command=a&stdout=false&stderr=false",
            "command=a&tty=true&stdout=false",
            &format!("command={}", "a".repeat(QUERY)),
        ] {
            let refusal = exec(query).unwrap_err();
            assert_eq!(refusal.kind, Kind::BadRequest, "{query}");
        }
        assert!(attach("command=a").is_err());
        for query in ["tailBytes=-1", "stream=x", "follow=2", "tail=1"] {
            assert!(log(query).is_err(), "{query}");
        }
    }

    #[test]
    fn logs() {
        let ask =
            log("commandId=build&follow=true&tailBytes=10&stream=stderr&stderrOffset=7").unwrap();
        let wanted = AskLog {
            command_id: "build".into(),
            follow: true,
            tail_bytes: 10,
            stream: Some(Stream::Stderr),
            offsets: [None, Some(7)],
        };
        assert_eq!(ask, wanted);
        assert_eq!(log("").unwrap(), AskLog::default());
    }
}
