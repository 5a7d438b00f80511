//! What the README promises, by the programs that a user has.

use anyhow::{Context as _, Result, ensure};
use cloche_e2e::audit::{Leak, Ledger, World, judge_idle};
use cloche_e2e::helm::{self, Release};
use cloche_e2e::subject;
use serde_json::json;

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

/// The agents find the operator by its Service, and the chart gives both what they need for that and no more.
#[tokio::test]
async fn a_value_comes_from_a_secret() {
    helm::run(async |release: &Release| {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db", "namespace": "default"},
            "stringData": {"password": "hunter2"},
        });
        release.apply(&secret.to_string()).await?;
        let password = json!({"secretKeyRef": {"name": "db", "key": "password"}});
        let env = json!([{"name": "PASSWORD", "valueFrom": password}]);
        let spec = json!({"image": "busybox:latest", "env": env});
        release.apply(&subject::manifest("taker", &spec)).await?;
        release.wait_ready("taker").await?;
        let seen = release.exec_text("taker", &["sh", "-c", "echo $PASSWORD"]).await?;
        ensure!(seen == "hunter2\n", "{seen}");
        for account in ["cloche-agent", "cloche-gateway"] {
            let account = format!("--as=system:serviceaccount:cloche-system:{account}");
            let may = release.kubectl(&["auth", "can-i", "get", "secrets/db", &account]).await?;
            ensure!(may.stdout.starts_with(b"no"), "{may:?}");
        }
        release.kubectl_text(&["delete", "secret/db", "sbx/taker", "--timeout=60s"]).await.map(drop)
    })
    .await
    .unwrap();
}
