//! The remote-command protocol of Kubernetes, as kube's own client speaks it, through the apiserver to a real sandbox.

use std::borrow::Cow;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_e2e::cluster::{self, Cluster};
use cloche_e2e::deadline::within;
use kube::Client;
use kube::api::{Api, AttachParams, AttachedProcess, Execute};
use kube::core::{NamespaceResourceScope, ObjectMeta};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::scene;

const LIMIT: Duration = Duration::from_mins(2);
/// How long a stream is held, times `CLOCHE_SCALE`: beyond the minute after which the apiserver ends plain requests.
const HELD: f64 = 90.0;

/// A sandbox, as that client asks for its `exec`.
#[derive(Clone, Debug, serde::Deserialize)]
struct Reached {
    metadata: ObjectMeta,
}

impl Execute for Reached {}

impl kube::Resource for Reached {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Sandbox".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "subresources.cloche.dev".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1alpha1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "sandboxes".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

async fn reach(client: Client, command: &[&str], params: &AttachParams) -> Result<AttachedProcess> {
    let sandboxes: Api<Reached> = Api::default_namespaced(client);
    let process = sandboxes
        .exec("demo", command.iter().copied(), params)
        .await;
    process.with_context(|| format!("exec {command:?}"))
}

async fn stdout(process: &mut AttachedProcess) -> Result<Vec<u8>> {
    let mut read = Vec::new();
    let mut stdout = process.stdout().context("its output")?;
    stdout
        .read_to_end(&mut read)
        .await
        .context("read its output")?;
    Ok(read)
}

#[tokio::test]
async fn kubes_own_client_runs_commands() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        scene::start(cluster, "demo", &json!({})).await?;
        let client = cluster.plane.client().await?;
        let output = AttachParams::default();
        let mut fails = reach(client.clone(), &["sh", "-c", "echo hi; exit 7"], &output).await?;
        let ended = fails.take_status().context("its status")?;
        ensure!(stdout(&mut fails).await? == b"hi\n");
        let status = ended.await.context("how it ended")?;
        ensure!(
            status.reason.as_deref() == Some("NonZeroExitCode"),
            "{status:?}"
        );
        let causes = status.details.and_then(|details| details.causes);
        let cause = causes
            .unwrap_or_default()
            .into_iter()
            .next()
            .context("a cause")?;
        ensure!(cause.message.as_deref() == Some("7"), "{cause:?}");

        stdin_over_restarts(cluster, client).await?;
        only_readers_are_refused(cluster).await
    })
    .await
    .unwrap();
}

/// Every byte once, in both directions, over kills of the agent.
async fn stdin_over_restarts(cluster: &mut Cluster, client: Client) -> Result<()> {
    let both = AttachParams::default().stdin(true).stderr(false);
    let mut cat = reach(client, &["cat"], &both).await?;
    let ended = cat.take_status().context("its status")?;
    let mut stdin = cat.stdin().context("its input")?;
    let sent: Vec<u8> = (0..400_000_u32).flat_map(u32::to_le_bytes).collect();
    let agent = &mut cluster.agents[0];
    let write = async {
        for piece in sent.chunks(sent.len() / 4) {
            stdin.write_all(piece).await.context("write its input")?;
            agent.kill().await?;
            agent.restart().await?;
        }
        stdin.shutdown().await.context("end its input")?;
        drop(stdin);
        anyhow::Ok(())
    };
    let both = async { tokio::try_join!(write, stdout(&mut cat)) };
    let ((), read) = within(LIMIT, "cat ends", both).await?;
    ensure!(
        read == sent,
        "{} bytes in place of {}",
        read.len(),
        sent.len()
    );
    let status = ended.await.context("how it ended")?;
    ensure!(status.status.as_deref() == Some("Success"), "{status:?}");
    Ok(())
}

/// A WebSocket is a GET: who may only `get` passes the apiserver, and not the gateway.
async fn only_readers_are_refused(cluster: &Cluster) -> Result<()> {
    let rules = json!({"apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "reader", "namespace": "default"},
            "rules": [{
                "apiGroups": ["subresources.cloche.dev"],
                "resources": ["sandboxes/exec", "sandboxes/attach", "sandboxes/log"],
                "verbs": ["get"],
            }],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "reader", "namespace": "default"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}],
        },
    ]});
    cluster.apply(&rules.to_string()).await?;
    let bob = cluster.client_as("bob").await?;
    let refused = reach(bob, &["true"], &AttachParams::default()).await;
    let refused = refused.err().context("a refusal")?;
    let told = format!("{refused:#}");
    ensure!(told.contains("403") || told.contains("orbidden"), "{told}");
    let output = cluster
        .sandbox(&["--as", "bob", "exec", "demo", "--", "true"])
        .await?;
    ensure!(!output.status.success(), "{output:?}");
    Ok(())
}

#[tokio::test]
async fn streams_outlive_the_apiservers_minute() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        scene::start(cluster, "demo", &json!({})).await?;
        let client = cluster.plane.client().await?;
        let both = AttachParams::default().stdin(true).stderr(false);
        let mut cat = reach(client, &["cat"], &both).await?;
        let mut stdin = cat.stdin().context("its input")?;
        stdin
            .write_all(b"early\n")
            .await
            .context("write its input")?;
        let scale = cloche_e2e::random::scale()?;
        // What is tested is time itself.
        tokio::time::sleep(Duration::from_secs_f64(HELD * scale)).await;
        stdin
            .write_all(b"late\n")
            .await
            .context("write its input")?;
        stdin.shutdown().await.context("end its input")?;
        drop(stdin);
        let read = within(LIMIT, "cat ends", stdout(&mut cat)).await?;
        ensure!(read == b"early\nlate\n", "{read:?}");
        Ok(())
    })
    .await
    .unwrap();
}
