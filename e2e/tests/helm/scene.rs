//! What these tests have in common.

use std::process::Output;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cloche_e2e::deadline::within;
use cloche_e2e::helm::Release;
use cloche_e2e::{subject, talk};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_mins(2);
/// How long `kubectl sandbox` waits for an agent to come back.
const PATIENCE: Duration = Duration::from_mins(1);
/// Its code where it has given up.
const LOST: i32 = 125;
/// By which a second client finds the command.
const COMMAND: &str = "--command-id=talk";

/// A manifest of a small sandbox that idles.
pub(crate) fn manifest(name: &str) -> String {
    subject::manifest(name, &json!({"image": "busybox:latest"}))
}

/// Applies one, and waits until it is Ready.
pub(crate) async fn start(release: &Release, name: &str) -> Result<()> {
    release.apply(&manifest(name)).await?;
    release.wait_ready(name).await.map(drop)
}

/// A client of a command that numbers its lines.
pub(crate) struct Talk {
    sandbox: &'static str,
    client: JoinHandle<Result<Output>>,
}

impl Talk {
    /// Starts it, and waits for its first line.
    pub(crate) async fn begin(release: &Release, sandbox: &'static str) -> Result<Self> {
        let argv = ["exec", sandbox, COMMAND, "--", "sh", "-c", talk::COMMAND];
        let mut client = release.spawn_sandbox(&argv)?;
        let mut stdout = BufReader::new(client.stdout.take().context("the client's output")?);
        let mut printed = Vec::new();
        let first = within(LIMIT, "the command talks", async {
            let read = stdout.read_until(b'\n', &mut printed).await;
            read.context("read the client's output")
        });
        first.await?;
        let client = tokio::spawn(async move {
            // Read all the time: a client that cannot print waits.
            let rest = stdout.read_to_end(&mut printed);
            let (rest, ended) = tokio::join!(rest, client.wait_with_output());
            rest.context("read the client's output")?;
            let ended = ended.context("wait for the client")?;
            Ok(Output {
                stdout: printed,
                ..ended
            })
        });
        Ok(Self { sandbox, client })
    }

    /// How the client ended.
    async fn ended(self) -> Result<Output> {
        within(LIMIT, "the client ends", async {
            self.client.await.context("the client's task")?
        })
        .await
    }

    /// Tells the command to stop. A client from before the pause must have seen all, or, after one of `lasted`, may have given up; one
    /// that comes back afterwards sees all in any case.
    pub(crate) async fn end(self, release: &Release, lasted: Duration) -> Result<()> {
        let sandbox = self.sandbox;
        release.exec_text(sandbox, &["touch", talk::STOP]).await?;
        let first = self.ended().await?;
        if lasted > PATIENCE && first.status.code() == Some(LOST) {
            talk::in_order(&first.stdout)?;
        } else {
            talk::whole(&first).context("the client from before")?;
        }
        let again = release.sandbox(&["exec", sandbox, COMMAND]).await?;
        talk::whole(&again).context("a client afterwards")
    }
}
