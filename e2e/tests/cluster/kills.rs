//! Agent, operator and gateway killed while a command talks and sandboxes come and go.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_e2e::cluster::{self, Cluster};
use cloche_e2e::deadline::{until, within};
use serde_json::json;

use crate::scene;

const WHOLE: Duration = Duration::from_mins(3);
/// Lines that the command prints, slowly enough to be there during every kill.
const LINES: usize = 4000;

/// Each part is killed and started again; the client sees pauses, every line once, and the command's own code.
#[tokio::test]
async fn a_command_outlives_the_parts() {
    cluster::run(1, scene::options().unwrap(), async |cluster| {
        scene::start(cluster, "talks", &json!({})).await?;
        let program = format!(
            "import time\nfor n in range({LINES}):\n    print(n, flush=True)\n    time.sleep(0.002)\nraise SystemExit(5)"
        );
        let client = cluster.spawn_sandbox(&["exec", "talks", "--", "python3", "-c", &program])?;
        let (output, killed) = tokio::join!(
            within(WHOLE, "the command ends", async {
                let output = client.wait_with_output().await;
                output.context("wait for kubectl sandbox")
            }),
            kill_each(cluster)
        );
        killed?;
        let output = output?;
        let mut expected = String::new();
        for number in 0..LINES {
            writeln!(expected, "{number}").context("write")?;
        }
        ensure!(
            output.status.code() == Some(5),
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        ensure!(
            output.stdout == expected.as_bytes(),
            "{} bytes in place of {}",
            output.stdout.len(),
            expected.len()
        );
        Ok(())
    })
    .await
    .unwrap();
}

/// Waits until the command runs.
async fn talks(cluster: &Cluster) -> Result<()> {
    until(WHOLE, "the command runs", async || {
        let list = scene::python(
            cluster,
            "talks",
            "import os; print(sum(b'for n in range' in open(f'/proc/{p}/cmdline','rb').read() for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()))",
        )
        .await?;
        Ok((list.trim() != "0").then_some(()))
    })
    .await
}

/// Ends in the middle of the command's time: each part once, each awaited until it serves again.
async fn kill_each(cluster: &mut Cluster) -> Result<()> {
    talks(cluster).await?;
    let agent = &mut cluster.agents[0];
    agent.kill().await?;
    agent.restart().await?;
    cluster.operator.kill().await?;
    cluster.operator.start()?;
    cluster.gateway.kill().await?;
    cluster.gateway.start()?;
    cluster.ready().await
}
