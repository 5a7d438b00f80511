//! What the README promises, by the programs that a user has.

use anyhow::{Context as _, Result, ensure};
use cloche_e2e::audit::{Leak, Ledger, World, judge_idle};
use cloche_e2e::helm::{self, Release};

/// The repository's example.
const EXAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../examples/cluster/hello.yaml"
);

#[tokio::test]
async fn the_example_runs_answers_and_goes() {
    helm::run(hello).await.unwrap();
}

async fn hello(release: &Release) -> Result<()> {
    release.kubectl_text(&["apply", "-f", EXAMPLE]).await?;
    let ready = [
        "wait",
        "--for=condition=Ready",
        "sbx/hello",
        "--timeout=60s",
    ];
    release.kubectl_text(&ready).await?;
    let program = "import sys; print(6 * 7); print('told', file=sys.stderr); sys.exit(3)";
    let output = release
        .kubectl(&["sandbox", "exec", "hello", "--", "python3", "-c", program])
        .await?;
    ensure!(output.status.code() == Some(3), "{output:?}");
    ensure!(output.stdout == b"42\n", "{output:?}");
    ensure!(output.stderr == b"told\n", "{output:?}");
    sees(release, "hello").await?;
    release
        .kubectl_text(&["delete", "sbx", "hello", "--timeout=60s"])
        .await
        .map(drop)
}

/// What every test here ends with would tell of this sandbox.
async fn sees(release: &Release, name: &str) -> Result<()> {
    let object = release.sandboxes().await?.get(name).await?;
    let uid = object.metadata.uid.context("its UID")?;
    let owner = release.node(1)?.owner()?;
    let leaks = judge_idle(&World::of(&owner)?, &Ledger::read(&owner.state)?);
    let record = Leak::Record("sandbox", uid);
    ensure!(leaks.contains(&record), "no {record} in {leaks:?}");
    Ok(())
}
