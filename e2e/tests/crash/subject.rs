//! The sandboxes that these tests kill things under, and what each has to show at the end.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cloche_e2e::audit::Ledger;
use cloche_e2e::deadline::until;
use cloche_e2e::level::Seen;
use cloche_e2e::session::command;
pub(super) use cloche_e2e::subject::{Images, ends, once, stays};
use cloche_e2e::subject::{manifest, mark};
use cloche_e2e::{Agent, client};
use cloche_proto::agent::v1alpha1::session_response::Kind as Reply;
use cloche_proto::agent::v1alpha1::{Exit, LogRequest, Stream};
use cloche_proto::frame::MAIN_BEFORE;
use nix::unistd::Pid;
use serde_json::Value;

/// How long anything of one sandbox may take on a machine that does much else.
pub(super) const LIMIT: Duration = Duration::from_mins(1);

/// The numbers 1 to `last`, each with `end`.
pub(super) fn numbers(last: usize, end: &str) -> String {
    (1..=last).fold(String::new(), |mut text, number| {
        write!(text, "{number}{end}").unwrap();
        text
    })
}

/// Where the manifest of `name` lies when a test puts it there.
fn file(agent: &Agent, name: &str) -> PathBuf {
    agent.manifests().join(format!("{name}.yaml"))
}

/// Wants a sandbox, whether the agent runs or not.
pub(super) fn want(agent: &Agent, name: &str, spec: &Value) -> Result<()> {
    // Renamed into place: the agent never sees half of it.
    let half = agent.scratch().join(format!("{name}.half"));
    std::fs::write(&half, manifest(name, spec)).context("write a manifest")?;
    std::fs::rename(&half, file(agent, name)).context("name a manifest")
}

/// Wants it no longer.
pub(super) fn drop_want(agent: &Agent, name: &str) -> Result<()> {
    std::fs::remove_file(file(agent, name))
        .with_context(|| format!("remove the manifest of {name}"))
}

/// All that is kept of a command's stdout, and its exit if it has ended. `id` empty: of the sandbox's own command.
pub(super) async fn kept(agent: &Agent, name: &str, id: &str) -> Result<(Vec<u8>, Option<Exit>)> {
    let request = LogRequest {
        key: Some(client::key(name)),
        command_id: id.to_owned(),
        ..LogRequest::default()
    };
    let mut client = agent.client().await?;
    let response = client.grpc().log(request).await;
    let mut replies = response
        .with_context(|| format!("read the log of {name}"))?
        .into_inner();
    let (mut output, mut exit) = (Vec::new(), None);
    let mut begun = Vec::new();
    while let Some(reply) = replies.message().await.context("read on in a log")? {
        match reply.kind {
            Some(Reply::Gap(gap)) if begun.len() < 2 && (gap.offset, gap.end) == (0, 0) => {
                begun.push(gap.stream);
            }
            Some(Reply::Output(piece)) if piece.stream == Stream::Stdout as i32 => {
                ensure!(
                    piece.offset == output.len() as u64,
                    "a piece of the log at {} where {} is next",
                    piece.offset,
                    output.len()
                );
                output.extend(piece.data);
            }
            Some(Reply::Exit(end)) => exit = Some(end),
            other => bail!("in the log of {name}: {other:?}"),
        }
    }
    let both = [Stream::Stdout as i32, Stream::Stderr as i32];
    ensure!(begun == both, "the log of {name} begins with {begun:?}");
    Ok((output, exit))
}

/// The command of `name` has run exactly once, by its log; its mark.
pub(super) async fn ran_once(agent: &Agent, name: &str, more: &str) -> Result<String> {
    let (output, _) = kept(agent, name, "").await?;
    let text = String::from_utf8(output).context("read a log as text")?;
    mark(&text, more).with_context(|| format!("what {name} printed"))
}

/// It runs, and says so a little later.
async fn says_that_it_ran(agent: &Agent, name: &str) -> Result<()> {
    agent.wait_running(name, LIMIT).await?;
    until(LIMIT, "it says that it ran", async || {
        let (output, _) = kept(agent, name, "").await?;
        Ok(output.contains(&b'\n').then_some(()))
    })
    .await
}

/// The sandbox of [`stays`] runs, serves commands, and its command has run exactly once.
pub(super) async fn stands(agent: &Agent, name: &str) -> Result<()> {
    says_that_it_ran(agent, name).await?;
    let mark = ran_once(agent, name, "").await?;
    let file = agent.output(name, command(["cat", "/ran"]), LIMIT).await?;
    ensure!(
        file == format!("{mark}\n"),
        "{name} printed {mark:?} and wrote {file:?}"
    );
    Ok(())
}

/// The sandbox of [`stays`] was stopped and brought back: its command ran, was told to end, and ran again, by its output and a file.
pub(super) async fn ran_twice(agent: &Agent, name: &str) -> Result<()> {
    says_that_it_ran(agent, name).await?;
    let second = ran_once(agent, name, "").await?;
    let (first, exit) = kept(agent, name, MAIN_BEFORE).await?;
    let first = String::from_utf8(first).context("read a log as text")?;
    let first = mark(&first, "told to end\n").context("what it printed before")?;
    let exit = exit.context("no end of what ran before")?;
    ensure!(exit.code == 0, "{exit:?}");
    let file = agent.output(name, command(["cat", "/ran"]), LIMIT).await?;
    ensure!(
        file == format!("{first}\n{second}\n"),
        "{name} printed {first:?}, then {second:?}, and wrote {file:?}"
    );
    Ok(())
}

/// The sandbox of [`ends`] has ended as its command did, which has run exactly once.
pub(super) async fn has_ended(agent: &Agent, name: &str) -> Result<()> {
    let seen = agent.wait_finished(name, LIMIT).await?;
    ended_as(&seen, "Error", Some(7))?;
    ran_once(agent, name, "").await.map(drop)
}

/// It ended by this reason, with this exit code.
pub(super) fn ended_as(seen: &Seen, reason: &str, exit_code: Option<i64>) -> Result<()> {
    ensure!(
        (seen.reason(), seen.exit_code()) == (reason, exit_code),
        "it should have ended by {reason} with {exit_code:?}: {:#}",
        seen.0["status"]
    );
    Ok(())
}

/// The sentries of all instances: processes on the host.
pub(super) fn sentries(agent: &Agent) -> Result<Vec<Pid>> {
    let read = |id: &String| -> Result<Pid> {
        let path = agent.state().join("instances").join(id).join("record.json");
        let record = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let record: Value = serde_json::from_slice(&record)?;
        let pid = record["record"]["stage"]["sentry"]["pid"].as_i64();
        let pid = pid.with_context(|| format!("no sentry in {record}"))?;
        Ok(Pid::from_raw(i32::try_from(pid)?))
    };
    Ledger::read(&agent.state())?
        .made
        .iter()
        .map(read)
        .collect()
}
