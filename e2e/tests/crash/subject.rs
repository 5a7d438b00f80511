//! The sandboxes that these tests kill things under, and what each has to show at the end.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cloche_e2e::audit::Ledger;
use cloche_e2e::deadline::until;
use cloche_e2e::image::{Entry, Image, Layer, busybox_layer};
use cloche_e2e::level::Seen;
use cloche_e2e::session::command;
use cloche_e2e::{Agent, Options, client};
use cloche_proto::agent::v1alpha1::session_response::Kind as Reply;
use cloche_proto::agent::v1alpha1::{Exit, LogRequest, Stream};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long anything of one sandbox may take on a machine that does much else.
pub(super) const LIMIT: Duration = Duration::from_mins(1);

/// Says once that it ran, in its output and in a file, then does `rest`.
const ONCE: &str =
    "n=$(head -c 8 /dev/urandom | od -An -tx1 | tr -d ' \\n'); echo $n >>/ran; echo ran $n; ";

/// A number of repetitions: `whole` times `CLOCHE_SCALE`, and no fewer than `least`.
pub(super) fn scaled(whole: usize, least: usize) -> usize {
    let scale: f64 = std::env::var("CLOCHE_SCALE").map_or(1.0, |scale| scale.parse().unwrap());
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a small number of repetitions"
    )]
    let scaled = (whole as f64 * scale) as usize;
    scaled.max(least)
}

/// The numbers 1 to `last`, each with `end`.
pub(super) fn numbers(last: usize, end: &str) -> String {
    (1..=last).fold(String::new(), |mut text, number| {
        write!(text, "{number}{end}").unwrap();
        text
    })
}

/// Local images, a folder each.
pub(super) struct Images(TempDir);

impl Images {
    /// A busybox by each of these names; no two have the same digest.
    pub(super) fn new(names: impl IntoIterator<Item = String>) -> Result<Self> {
        let images = Self(tempfile::tempdir().context("make a folder of images")?);
        for name in names {
            let mark = Layer::default().add("mark", Entry::File(name.as_bytes().to_vec()))?;
            let config = cloche_e2e::image::Config {
                env: vec!["PATH=/bin".to_owned()],
                cmd: vec!["sh".to_owned()],
                ..Default::default()
            };
            Image::new(vec![busybox_layer()?, mark], &config)?
                .write(&images.0.path().join(name), "latest")?;
        }
        Ok(images)
    }

    /// Busybox alone, as `oci:busybox`.
    pub(super) fn busybox() -> Self {
        Self::new(["busybox".to_owned()]).unwrap()
    }

    /// An agent that has them, without a pool.
    pub(super) fn options(&self) -> Options {
        Options::default().images(self.0.path())
    }
}

/// A manifest of a small sandbox; `spec` is laid over.
pub(super) fn manifest(name: &str, spec: &Value) -> String {
    let mut whole = json!({
        "image": "oci:busybox",
        "resources": {"requests": {"cpu": "10m"}, "limits": {"memory": "64Mi"}},
        "lifecycle": {"terminationGracePeriodSeconds": 30},
    });
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    json!({
        "apiVersion": "cloche.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": name},
        "spec": whole,
    })
    .to_string()
}

/// Runs `rest` after it has said that it ran.
pub(super) fn once(rest: &str) -> Value {
    json!({"command": ["sh", "-c", format!("{ONCE}{rest}")]})
}

/// Stays; ends at SIGTERM, and says so.
pub(super) fn stays() -> Value {
    once("trap 'echo told to end; exit 0' TERM; sleep 1000 & wait")
}

/// Ends by itself with exit code 7.
pub(super) fn ends() -> Value {
    once("exit 7")
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
    while let Some(reply) = replies.message().await.context("read on in a log")? {
        match reply.kind {
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
    Ok((output, exit))
}

/// The command of `name` has run exactly once, by its log; its mark.
pub(super) async fn ran_once(agent: &Agent, name: &str, more: &str) -> Result<String> {
    let (output, _) = kept(agent, name, "").await?;
    let text = String::from_utf8(output).context("read a log as text")?;
    let mark: String = text
        .strip_prefix("ran ")
        .map(|rest| rest.chars().take(16).collect())
        .unwrap_or_default();
    ensure!(
        mark.len() == 16 && text == format!("ran {mark}\n{more}"),
        "{name} printed {text:?}"
    );
    Ok(mark)
}

/// The sandbox of [`stays`] runs, serves commands, and its command has run exactly once.
pub(super) async fn stands(agent: &Agent, name: &str) -> Result<()> {
    agent.wait_running(name, LIMIT).await?;
    // It runs from its start on, and says so a little later.
    until(LIMIT, "it says that it ran", async || {
        let (output, _) = kept(agent, name, "").await?;
        Ok(output.contains(&b'\n').then_some(()))
    })
    .await?;
    let mark = ran_once(agent, name, "").await?;
    let file = agent.output(name, command(["cat", "/ran"]), LIMIT).await?;
    ensure!(
        file == format!("{mark}\n"),
        "{name} printed {mark:?} and wrote {file:?}"
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
