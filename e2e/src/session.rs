//! Commands in sandboxes, with every byte and offset checked.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cloche_proto::agent::v1alpha1::session_request::Kind as Ask;
use cloche_proto::agent::v1alpha1::session_response::Kind as Reply;
use cloche_proto::agent::v1alpha1::{
    Command, Exit, Kill, Open, Opened, SendSignal, SessionRequest, SessionResponse, Stdin, Stream,
    TerminalSize,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::agent::Agent;
use crate::client::{Client, key};
use crate::deadline::within;

/// A command without a terminal or stdin.
pub fn command<A: AsRef<[u8]>>(argv: impl IntoIterator<Item = A>) -> Command {
    Command {
        argv: argv
            .into_iter()
            .map(|argument| argument.as_ref().to_vec())
            .collect(),
        ..Command::default()
    }
}

/// A string for the sandbox's shell.
pub fn shell(line: &str) -> Command {
    Command {
        shell: Some(String::new()),
        ..command([line])
    }
}

/// An open session: one connection. Dropping it detaches.
#[derive(Debug)]
pub struct Session {
    /// What the agent answered.
    pub opened: Opened,
    /// Where the outputs began.
    start: (u64, u64),
    /// Output so far, of this connection.
    pub stdout: Vec<u8>,
    /// The same of stderr.
    pub stderr: Vec<u8>,
    /// Stdin that the agent has safe.
    pub stdin_taken: u64,
    /// Another client sends stdin.
    pub taken_over: bool,
    requests: mpsc::Sender<SessionRequest>,
    replies: Streaming<SessionResponse>,
}

impl Session {
    /// Opens on a connection of its own; the refusal as gRPC gives it.
    pub async fn open(
        agent: &Agent,
        name: &str,
        open: Open,
    ) -> Result<Result<Self, tonic::Status>> {
        Self::open_on(&mut agent.client().await?, name, open).await
    }

    /// The same on a connection that is there already.
    pub async fn open_on(
        client: &mut Client,
        name: &str,
        open: Open,
    ) -> Result<Result<Self, tonic::Status>> {
        let start = (open.stdout_offset, open.stderr_offset);
        let open = Open {
            key: Some(key(name)),
            ..open
        };
        let (requests, receiver) = mpsc::channel(16);
        let sent = requests.send(SessionRequest {
            kind: Some(Ask::Open(open)),
        });
        ensure!(sent.await.is_ok(), "the request channel is closed");
        let mut replies = match client.grpc().session(ReceiverStream::new(receiver)).await {
            Ok(response) => response.into_inner(),
            Err(status) => return Ok(Err(status)),
        };
        let first = match replies.message().await {
            Ok(first) => first.and_then(|reply| reply.kind),
            Err(status) => return Ok(Err(status)),
        };
        let Some(Reply::Opened(opened)) = first else {
            bail!("the first reply is {first:?} and not `opened`");
        };
        let stdin_taken = opened.stdin_offset.unwrap_or(0);
        Ok(Ok(Self {
            opened,
            start,
            stdout: Vec::new(),
            stderr: Vec::new(),
            stdin_taken,
            taken_over: false,
            requests,
            replies,
        }))
    }

    async fn ask(&self, kind: Ask) -> Result<()> {
        self.requests
            .send(SessionRequest { kind: Some(kind) })
            .await
            .context("the session's stream is closed")
    }

    /// Sends stdin.
    pub async fn stdin(&self, offset: u64, data: &[u8], end: bool) -> Result<()> {
        let data = data.to_vec();
        self.ask(Ask::Stdin(Stdin { offset, data, end })).await
    }

    /// Sends a signal.
    pub async fn signal(&self, number: i32) -> Result<()> {
        self.ask(Ask::Signal(SendSignal { number })).await
    }

    /// Kills the command's tree.
    pub async fn kill(&self) -> Result<()> {
        self.ask(Ask::Kill(Kill {})).await
    }

    /// Changes the terminal's size.
    pub async fn resize(&self, rows: u32, columns: u32) -> Result<()> {
        self.ask(Ask::Resize(TerminalSize { rows, columns })).await
    }

    /// Takes one reply; the end, when it is one. Output that is missing, doubled or out of order is an error.
    pub async fn step(&mut self) -> Result<Option<Exit>> {
        let reply = self.replies.message().await.context("the session broke")?;
        let kind = reply
            .context("the session's stream ended without an exit")?
            .kind;
        match kind.context("a reply without a kind")? {
            Reply::Opened(_) => bail!("`opened` came twice"),
            Reply::Output(output) => {
                let (start, kept) = match Stream::try_from(output.stream) {
                    Ok(Stream::Stdout) => (self.start.0, &mut self.stdout),
                    Ok(Stream::Stderr) => (self.start.1, &mut self.stderr),
                    Ok(Stream::Unspecified) | Err(_) => bail!("output of stream {}", output.stream),
                };
                let next = start + kept.len() as u64;
                ensure!(
                    output.offset == next,
                    "output at {} where {next} is next",
                    output.offset
                );
                kept.extend(output.data);
                Ok(None)
            }
            Reply::Gap(gap) => bail!(
                "bytes {} to {} of stream {} are lost",
                gap.offset,
                gap.end,
                gap.stream
            ),
            Reply::StdinTaken(taken) if taken.taken_over => {
                self.taken_over = true;
                Ok(None)
            }
            Reply::StdinTaken(taken) => {
                ensure!(
                    taken.offset >= self.stdin_taken,
                    "stdin was taken back from {} to {}",
                    self.stdin_taken,
                    taken.offset
                );
                self.stdin_taken = taken.offset;
                Ok(None)
            }
            Reply::Exit(exit) => Ok(Some(exit)),
        }
    }

    /// Reads on until `done` says so.
    pub async fn until(
        &mut self,
        what: &str,
        limit: Duration,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<()> {
        within(limit, what, async {
            while !done(self) {
                if let Some(exit) = self.step().await? {
                    bail!(
                        "the command ended before ({exit:?}), its stderr: {}",
                        String::from_utf8_lossy(&self.stderr)
                    );
                }
            }
            Ok(())
        })
        .await
    }

    /// Reads on to the command's end.
    pub async fn end(&mut self, limit: Duration) -> Result<Exit> {
        within(limit, "the command ends", async {
            loop {
                if let Some(exit) = self.step().await? {
                    return Ok(exit);
                }
            }
        })
        .await
    }
}

/// What a command did.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// Its end.
    pub exit: Exit,
}

impl Done {
    /// Standard output as text.
    pub fn text(&self) -> Result<&str> {
        std::str::from_utf8(&self.stdout).context("read the command's output as text")
    }
}

impl Agent {
    /// Runs a command to its end.
    pub async fn exec(&self, name: &str, command: Command, limit: Duration) -> Result<Done> {
        let open = Open {
            command: Some(command),
            ..Open::default()
        };
        let mut session = within(limit, "the session opens", async {
            Session::open(self, name, open).await
        })
        .await??;
        let exit = session.end(limit).await?;
        Ok(Done {
            stdout: session.stdout,
            stderr: session.stderr,
            exit,
        })
    }

    /// Runs a command that must succeed; its output.
    pub async fn output(&self, name: &str, command: Command, limit: Duration) -> Result<String> {
        let done = self.exec(name, command, limit).await?;
        ensure!(
            done.exit.code == 0,
            "the command in {name} ended with {:?}: {}",
            done.exit,
            String::from_utf8_lossy(&done.stderr)
        );
        done.text().map(str::to_owned)
    }
}
