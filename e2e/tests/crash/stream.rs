//! A command that talks while the agent is killed again and again: no byte is lost or doubled, and its exit is right.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_e2e::deadline::within;
use cloche_e2e::session::{Session, command};
use cloche_e2e::{Agent, trial};
use cloche_proto::agent::v1alpha1::{Command, Exit, Open, TerminalSize};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::subject::{Images, LIMIT, kept, numbers, want};

/// The agent is killed so often, besides at its fault points.
const KILLS: usize = 4;
/// For a whole command.
const WHOLE: Duration = Duration::from_mins(3);

/// Opens the command `talk`, or goes on with it after `stdout`.
async fn attach(agent: &Agent, command: &Command, stdout: &[u8]) -> Result<Session> {
    let open = Open {
        command_id: "talk".to_owned(),
        command: Some(command.clone()),
        stdout_offset: stdout.len() as u64,
        stdin: command.stdin,
        ..Open::default()
    };
    Ok(Session::open(agent, "talks", open).await??)
}

/// Runs `command` while the agent is killed whenever a part of `expected` has come; after each kill it is started with one of the
/// `faults`, at which it may kill itself. All of the output, and the exit.
async fn talk(
    agent: &mut Agent,
    command: &Command,
    expected: usize,
    faults: &[&str],
) -> Result<(Vec<u8>, Exit)> {
    let mut stdout = Vec::new();
    let mut faults = faults.iter();
    let mut kills = 0;
    loop {
        // Large, and kept while the command runs.
        let outcome = match Box::pin(attach(agent, command, &stdout)).await {
            Ok(mut session) => {
                let created = kills == 0;
                ensure!(session.opened.created == created, "{:?}", session.opened);
                let until = expected * (kills + 1) / (KILLS + 2);
                let outcome = loop {
                    if kills < KILLS && stdout.len() + session.stdout.len() >= until {
                        break Ok(None);
                    }
                    match session.step().await {
                        Ok(None) => {}
                        other => break other,
                    }
                };
                stdout.append(&mut session.stdout);
                outcome
            }
            Err(problem) => Err(problem),
        };
        match outcome {
            Ok(Some(exit)) => {
                ensure!(kills >= KILLS, "it ended after {kills} kills");
                return Ok((stdout, exit));
            }
            Ok(None) => agent.kill().await?,
            // Only its fault point may have broken the stream.
            Err(problem) => agent.wait_for_fault().await.context(problem)?,
        }
        kills += 1;
        agent.restart_with_fault(faults.next().copied())?;
        // It adopts a sandbox that prints, and may pass its fault point before anyone has seen it serve.
        while let Err(problem) = agent.serves().await {
            agent.wait_for_fault().await.context(problem)?;
            agent.restart_with_fault(faults.next().copied())?;
        }
    }
}

#[tokio::test]
async fn numbered_lines() {
    let images = Images::busybox().unwrap();
    trial::run(images.options(), async |agent| {
        want(agent, "talks", &json!({}))?;
        agent.wait_running("talks", LIMIT).await?;
        let last = 400_000;
        let talks = command(["sh", "-c", &format!("seq 1 {last}; exit 3")]);
        let expected = numbers(last, "\n");
        // The last of the agents that are killed is so at once after it stored output, before it has acknowledged it.
        let faults = ["session-output-written:3", "session-output-written"];
        let work = Box::pin(talk(agent, &talks, expected.len(), &faults));
        let (stdout, exit) = within(WHOLE, "it ends", work).await?;
        ensure!(
            stdout == expected.as_bytes(),
            "{}",
            difference(&stdout, &expected)
        );
        ensure!((exit.code, exit.signal) == (3, 0), "{exit:?}");

        let (again, exit) = kept(agent, "talks", "talk").await?;
        ensure!(again == stdout, "the log holds something else");
        ensure!(exit.context("an exit")?.code == 3);
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_terminal() {
    let images = Images::busybox().unwrap();
    trial::run(images.options(), async |agent| {
        want(agent, "talks", &json!({}))?;
        agent.wait_running("talks", LIMIT).await?;
        let last = 100_000;
        // First with the terminal as it is made, then raw: its line ends are what it was told.
        let line = format!("seq 1 {last}; stty raw; seq 1 {last}; exit 4");
        let talks = Command {
            terminal: Some(TerminalSize {
                rows: 24,
                columns: 80,
            }),
            ..command(["sh", "-c", &line])
        };
        let expected = numbers(last, "\r\n") + &numbers(last, "\n");
        let work = Box::pin(talk(
            agent,
            &talks,
            expected.len(),
            &["session-output-written:2"],
        ));
        let (stdout, exit) = within(WHOLE, "it ends", work).await?;
        ensure!(
            stdout == expected.as_bytes(),
            "{}",
            difference(&stdout, &expected)
        );
        ensure!((exit.code, exit.signal) == (4, 0), "{exit:?}");
        Ok(())
    })
    .await
    .unwrap();
}

/// Where two texts part.
fn difference(found: &[u8], expected: &str) -> String {
    let expected = expected.as_bytes();
    let at = found
        .iter()
        .zip(expected)
        .take_while(|(left, right)| left == right)
        .count();
    let near = |text: &[u8]| {
        String::from_utf8_lossy(
            &text[at.min(text.len())..][..60.min(text.len() - at.min(text.len()))],
        )
        .into_owned()
    };
    format!(
        "{} bytes and not {}; from {at} on {:?} and not {:?}",
        found.len(),
        expected.len(),
        near(found),
        near(expected)
    )
}

/// Bytes without a period.
fn noise(length: usize) -> Vec<u8> {
    let block = |number: usize| Sha256::digest(number.to_le_bytes());
    (0..length.div_ceil(32))
        .flat_map(block)
        .take(length)
        .collect()
}

/// Sends what the sandbox does not have yet of `input`, up to `until` of it, and waits until that is safe.
async fn feed(session: &mut Session, input: &[u8], until: usize) -> Result<()> {
    /// Sent at once, and on its way at most.
    const PIECE: usize = 64 << 10;
    let offset = session.opened.stdin_offset;
    let mut sent = usize::try_from(offset.context("where stdin goes on")?)?;
    ensure!(
        sent <= input.len(),
        "it has {sent} bytes of stdin and was sent fewer"
    );
    while session.stdin_taken < until as u64 {
        if sent < until && sent - usize::try_from(session.stdin_taken)? < 4 * PIECE {
            let end = until.min(sent + PIECE);
            session.stdin(sent as u64, &input[sent..end], false).await?;
            sent = end;
        } else {
            let exit = session.step().await?;
            ensure!(exit.is_none(), "it ended: {exit:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn stdin_half_sent() {
    let images = Images::busybox().unwrap();
    trial::run(images.options(), async |agent| {
        want(agent, "talks", &json!({}))?;
        agent.wait_running("talks", LIMIT).await?;
        let input = noise(6 << 20);
        let sums = Command {
            stdin: true,
            ..command(["sh", "-c", "sha256sum; exit 5"])
        };
        let mut safe = 0;
        for part in 1..=KILLS {
            let mut session = attach(agent, &sums, b"").await?;
            ensure!(
                session.opened.stdin_offset >= Some(safe),
                "stdin that was safe is lost"
            );
            let until = input.len() * part / (KILLS + 1);
            let work = feed(&mut session, &input, until);
            within(WHOLE, "stdin is taken", work).await?;
            safe = session.stdin_taken;
            // More is on its way, of which nobody knows how far it comes.
            session
                .stdin(until as u64, &input[until..until + (512 << 10)], false)
                .await?;
            agent.kill().await?;
            agent.restart().await?;
        }
        let mut session = attach(agent, &sums, b"").await?;
        let work = feed(&mut session, &input, input.len());
        within(WHOLE, "stdin is taken", work).await?;
        session.stdin(input.len() as u64, b"", true).await?;
        let exit = session.end(LIMIT).await?;
        let sum = Sha256::digest(&input)
            .iter()
            .fold(String::new(), |mut text, byte| {
                write!(text, "{byte:02x}").unwrap();
                text
            });
        let said = String::from_utf8(session.stdout)?;
        ensure!(said == format!("{sum}  -\n"), "{said:?} and not {sum}");
        ensure!(exit.code == 5, "{exit:?}");
        Ok(())
    })
    .await
    .unwrap();
}
